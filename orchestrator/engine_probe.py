"""Print, as one line of JSON, what is installed around an engine: run by the engine's own Python.

Started as `python - < engine_probe.py`, so that this directory is not on the module path of what it looks at.
Imports nothing of the engine's, unless `--import` asks for vLLM: the one proof that an installation works.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

_LEVELS = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "neon"))
_SMI = ("index", "name", "memory.total", "compute_cap", "driver_version", "uuid")
_SMI_TIMEOUT_S = 20


def packages() -> dict[str, str]:
    """Every installed distribution, normalised name -> version; the first on the path wins, as imports do."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def engine(installed: dict[str, str]) -> dict[str, str | None]:
    """The distribution that brings the module `vllm` (a fork may have any name) and its version."""
    if importlib.util.find_spec("vllm") is None:
        return {"distribution": None, "version": None}
    named = [name for name in installed if name.startswith("vllm-") and _brings_vllm(name)]
    named += [name for name in ("vllm",) if name in installed]
    named = named or list(importlib.metadata.packages_distributions().get("vllm", []))
    name = named[0] if named else None
    return {"distribution": name, "version": importlib.metadata.version(name) if name else None}


def _brings_vllm(name: str) -> bool:
    return any(str(file) == "vllm/__init__.py" for file in importlib.metadata.files(name) or ())


def torch_build() -> dict[str, str | None]:
    """CUDA and ROCm version that torch was built for, out of its version file."""
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    file = Path(places[0]) / "version.py" if places else None
    text = file.read_text(encoding="utf-8") if file and file.is_file() else ""
    found = {key: re.search(rf"^{key}\b[^=\n]*= *'([^']+)'", text, re.MULTILINE) for key in ("cuda", "hip")}
    return {key: match.group(1) if match else None for key, match in found.items()}


def cpu() -> dict[str, str | None]:
    """The processor's name and the widest vector unit it has that matters to an engine."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    have = set(flags.group(1).split()) if flags else set()
    return {
        "model": model.group(1).strip() if model else platform.processor() or None,
        "isa": next((level for flag, level in _LEVELS if flag in have), None),
    }


def gpus() -> list[dict[str, str]]:
    """The NVIDIA GPUs as nvidia-smi tells them: name, memory in MiB, driver; empty where it cannot."""
    ask = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(_SMI, row, strict=False)) for row in rows]


def imported() -> dict[str, str]:
    """What vLLM says of itself once imported."""
    version = importlib.import_module("vllm").__version__
    found = importlib.import_module("vllm.platforms").current_platform
    return {"version": str(version), "platform": getattr(found, "device_type", "") or type(found).__name__}


def main() -> None:
    installed = packages()
    report = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "engine": engine(installed),
        "torch": torch_build(),
        "cpu": cpu(),
        "gpus": gpus(),
        "packages": installed,
        "imported": imported() if "--import" in sys.argv[1:] else None,
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
