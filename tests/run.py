"""Everything that proves the project, on a machine that has only Python: `python3 tests/run.py [pytest arguments]`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from bootstrap import ROOT, install, say

# What tests use beside Python packages; a test that misses one is skipped and says so.
SYSTEM = {
    "chromium": "chromium",
    "pg_ctl": "postgresql",
    "systemd-analyze": "systemd",
    "npm": "npm",
}
LIMIT_S = 75 * 60


def system_packages() -> None:
    """Install what is missing, where this is a Debian and we may; otherwise leave it to the tests to say."""
    found = {name: shutil.which(name) for name in SYSTEM}
    found["pg_ctl"] = next((str(file) for file in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), None)
    missing = [SYSTEM[name] for name, path in found.items() if path is None]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    say(f"installing {', '.join(missing)}")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        try:
            subprocess.run(["apt-get", "-q", *command], check=False, timeout=600, env=env, **quiet)
        except subprocess.TimeoutExpired:
            say("apt-get took too long; tests that need these packages will be skipped")


def main() -> int:
    python = install("requirements-dev.lock")
    system_packages()
    arguments = sys.argv[1:]
    steps = [
        ("style", [python, "-m", "ruff", "check", "--quiet", "."]),
        ("format", [python, "-m", "ruff", "format", "--check", "--quiet", "."]),
        ("types", [python, "-m", "mypy"]),
    ]
    failed = []
    for name, command in [] if arguments else steps:
        say(name)
        if subprocess.run(command, cwd=ROOT, check=False, timeout=900).returncode:
            failed.append(name)
    say("tests")
    command = [python, "-m", "pytest", "-q", "-ra", "--durations=15", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False, timeout=LIMIT_S).returncode
    if failed:
        say(f"failed before the tests: {', '.join(failed)}")
    return code or bool(failed)


if __name__ == "__main__":
    sys.exit(main())
