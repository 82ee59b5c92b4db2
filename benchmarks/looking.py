"""What looking costs: `show` and `compare` over a journal of 5 000 trials, and the size of a report of 200.

    python benchmarks/looking.py [--trials 5000]

The first look at a long journal makes its summary; each later one reads that. Times are of whole commands,
the interpreter's start and imports included; CPU seconds stand beside them for a machine that others use.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))
import two_engines as two
from two_engines import NEW, OLD

from orchestrator.library import shelves
from orchestrator.report import build_report
from orchestrator.report_html import write_report


def write(home: Path, name: str, trials: int) -> Path:
    """Half of the trials on each engine, beside those of a small tune."""
    wanted = two.plan(name)
    studies = {OLD: f"a{name[:3]:0<11}"[:12], NEW: f"b{name[:3]:0<11}"[:12]}
    extra = [
        two.record(
            studies[engine],
            1000 + n,
            engine,
            two.configuration("ngram", 1 + n % 8, width=n // 8),
            100.0 + n % 37,
            wanted=wanted,
        )
        for engine in studies
        for n in range(trials // 2)
    ]
    return two.write(home, wanted=wanted, extra=extra)


def timed(home: Path, *arguments: str) -> tuple[float, float]:
    """Seconds of wall clock and of CPU."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"import sys; from orchestrator.cli import main; main({list(arguments)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "REPEAK_HOME": str(home)},
    )
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5000)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["REPEAK_HOME"] = folder
        write(home, "small", 200)
        write_report(build_report(shelves("small"), None), home / "report.html")
        size = (home / "report.html").stat().st_size
        print(f"report of {len(shelves('small')[0].records) * 2} trials: {size / 1e6:.2f} MB")
        journal = write(home, "big", trials) / "journal.jsonl"
        print(f"journal of {trials} trials: {journal.stat().st_size / 1e6:.0f} MB")
        for what in (["show", "big"], ["show", "big"], ["compare", OLD, NEW, "--plan", "big"], ["show"]):
            took, cpu = timed(home, *what)
            print(f"repeak {' '.join(what)}: {took:.1f} s, {cpu:.1f} s of CPU")


if __name__ == "__main__":
    main()
