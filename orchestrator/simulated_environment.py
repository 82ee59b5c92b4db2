"""An engine environment whose engine is the simulated one: other parts see what they see of a real one."""

from __future__ import annotations

import hashlib
import shlex
import sys
from pathlib import Path

from .engine_environment import EngineEnvironment
from .simulated_spec import Simulation, write_simulation

__all__ = ["simulated_environment"]

_MAIN = "from orchestrator.simulated_engine import main\n\nmain()\n"


def simulated_environment(simulation: Simulation, directory: Path) -> EngineEnvironment:
    """Write a simulation and the commands that serve it into a directory.

    `bin/python -m vllm.entrypoints.cli.main serve` and `bin/vllm serve` start the simulated engine; its
    version is labelled `+simulated` wherever one is shown. Made again, a directory counts its starts anew.
    """
    version = f"{simulation.surface.version}+simulated"
    for part in ("bin", "site/vllm/entrypoints/cli", "site/vllm/platforms", f"site/vllm-{version}.dist-info"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    surface, site = directory / "surface.json", directory / "site"
    write_simulation(simulation, surface)
    Path(f"{surface}.launches").unlink(missing_ok=True)
    (site / "vllm/__init__.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    (site / "vllm/entrypoints/cli/main.py").write_text(_MAIN, encoding="utf-8")
    (site / "vllm/platforms/__init__.py").write_text("current_platform = object()\n", encoding="utf-8")
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (site / f"vllm-{version}.dist-info/METADATA").write_text(metadata, encoding="utf-8")
    # Through a shell, so that it works whatever the launcher leaves of its own environment.
    path = f"{site}:{Path(__file__).resolve().parents[1]}"
    start = f"SIMULATED_SURFACE={shlex.quote(str(surface))} PYTHONPATH={shlex.quote(path)} exec "
    start += shlex.quote(sys.executable)
    for name, arguments in (("python", ""), ("vllm", " -m vllm.entrypoints.cli.main")):
        (directory / "bin" / name).write_text(f'#!/bin/sh\n{start}{arguments} "$@"\n', encoding="utf-8")
        (directory / "bin" / name).chmod(0o755)
    digest = hashlib.sha256(surface.read_bytes()).hexdigest()
    return EngineEnvironment(
        key=f"simulated-{digest[:12]}",
        requirement=f"vllm=={version}",
        version=version,
        python=directory / "bin" / "python",
        directory=directory,
        flavour="other",
        lock_sha256=digest,
        packages={"vllm": version},
        adopted=True,
    )
