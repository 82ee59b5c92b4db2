"""Find a Python for an engine environment, and ask an engine's own Python what it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from . import engine_probe
from .container import removal
from .errors import EnvironmentBroken, PlanError
from .process_tree import COOKIE
from .watchdog import removed

__all__ = ["find_interpreter", "probe_interpreter"]

_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def find_interpreter(wanted: str | None) -> tuple[Path, str]:
    """An interpreter's absolute path and its version, 3.10 or newer; one that does not run is passed over.

    Args:
        wanted: A path, a version such as `3.12`, or None for the Python that runs us.

    Raises:
        PlanError: There is none.
    """
    for candidate in _candidates(wanted):
        ask = [str(candidate), "-c", "import platform; print(platform.python_version())"]
        try:
            version = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            continue
        if tuple(map(int, version.split(".")[:2])) >= (3, 10):
            return candidate, version
    raise PlanError(f"No working interpreter was found for Python {wanted}.", "Give the path of one, from 3.10 on.")


def _candidates(wanted: str | None) -> list[Path]:
    if wanted and "/" in wanted:
        return [Path(wanted).expanduser().absolute()]
    if not wanted:
        # Not the virtual environment's: the engine's would break when ours is made anew.
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return [path for path in (Path(sys.base_prefix) / "bin" / name, Path(sys.executable)) if path.is_file()]
    on_path = [Path(folder) / f"python{wanted}" for folder in os.get_exec_path() if folder.startswith("/")]
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    managed = sorted(versions.glob(f"{wanted}*/bin/python{'.'.join(wanted.split('.')[:2])}"))
    return [path for path in [*on_path, *managed] if path.is_file()]


def probe_interpreter(python: Path, *, import_engine: bool = False, timeout_s: float = 120) -> dict[str, Any]:
    """What `engine_probe` reports about the installation around an interpreter; changes nothing there.

    Raises:
        EnvironmentBroken: The interpreter does not run, does not end in time, or vLLM cannot be imported.
    """
    command = [str(python), "-", *(["--import"] if import_engine else [])]
    cookie = f"probe-{uuid.uuid4().hex[:12]}"
    environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN} | _QUIET | {COOKIE: cookie}
    source = Path(engine_probe.__file__).read_text(encoding="utf-8")
    hint = "Check that interpreter, or let an environment be built."
    try:
        done = subprocess.run(
            command,
            input=source,
            env=environ,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        removed(removal(python, cookie), environ)  # a container outlives the tool that asked for it
        raise EnvironmentBroken(f"{python} could not be asked what it holds: {error}", hint) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-1500:] or "it said nothing: perhaps its machine code does not suit this processor"
        raise EnvironmentBroken(f"{python} ended with {done.returncode} when asked what it holds:\n{said}", hint)
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report
