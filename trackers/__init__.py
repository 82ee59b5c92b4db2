"""What one remembers: fingerprints, measurements, trial records, peaks, and where they are kept."""
