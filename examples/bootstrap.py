"""Make the project's own virtual environment from its hashed lock; standard library only, any Python 3.11-3.13."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NEEDED = ((3, 11), (3, 12), (3, 13))


def fail(what: str, hint: str) -> None:
    sys.exit(f"{what}\n  {hint}")


def interpreter() -> str:
    """This Python if it fits, else one of the right version on PATH."""
    if sys.version_info[:2] in NEEDED:
        return sys.executable
    for major, minor in NEEDED:
        found = shutil.which(f"python{major}.{minor}")
        if found and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
            return found
    fail(
        f"Python {sys.version.split()[0]} is too old or too new, and no python3.11 to 3.13 is on PATH.",
        "Install one of them, or start this script with it.",
    )
    raise AssertionError


def make_venv(python: str) -> None:
    """A virtual environment in the checkout: the system's Python is never touched."""
    probe = [python, "-c", "import venv, ensurepip"]
    if subprocess.run(probe, check=False, capture_output=True).returncode == 0:
        command = [python, "-m", "venv", "--clear", str(VENV)]
    elif importlib.util.find_spec("virtualenv") is not None:
        command = [sys.executable, "-m", "virtualenv", "--python", python, "--clear", str(VENV)]
    else:
        fail(
            f"{python} cannot make virtual environments: its modules venv and ensurepip are missing.",
            "On Debian or Ubuntu: apt install python3-venv. Elsewhere: python3 -m pip install --user virtualenv.",
        )
    subprocess.run(command, check=True)


def install(lock: str) -> Path:
    """The environment with what `lock` names and the project itself, editable; its interpreter.

    Reused while the lock, the project's metadata and the interpreter are the same.
    """
    python = VENV / "bin" / "python"
    mark = hashlib.sha256()
    for name in (lock, "pyproject.toml"):
        mark.update((ROOT / name).read_bytes())
    stamp = VENV / f".{lock}.stamp"
    if python.exists() and stamp.exists() and stamp.read_text() == mark.hexdigest():
        return python
    if not python.exists() or subprocess.run([python, "-m", "pip", "-V"], check=False, capture_output=True).returncode:
        make_venv(interpreter())
    say(f"installing {lock} into {VENV.name}")
    # Bytecode once now, or every process that starts later compiles it again.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / lock)], check=True, env=env)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True, env=env)
    except subprocess.CalledProcessError as error:
        fail(
            f"pip could not install {lock} (it ended with {error.returncode}; what it says stands above).",
            "It needs a package index: the network, or pip's own settings for one. The same command goes on.",
        )
    except KeyboardInterrupt:
        fail("Stopped while installing.", "The same command goes on.")
    stamp.write_text(mark.hexdigest())
    return python


def say(text: str) -> None:
    print(f"== {text}", flush=True)
