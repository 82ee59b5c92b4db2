"""What one chooses: knobs, search spaces, configurations, and the rules that need no engine."""
