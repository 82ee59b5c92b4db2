"""Doctor: look at what a study will stand on, and say how to fix what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil

import search_spaces
import trackers
from trackers.records import Frozen

from .home import home

__all__ = ["Finding", "examine"]

_ROOMS = ("orchestrator", "search_spaces", "trackers")
_NEED_DISK_GIB = 8.0


class Finding(Frozen):
    """One thing looked at; `fix` says what to do where it is not well."""

    name: str
    state: Literal["ok", "warning", "broken"]
    detail: str
    fix: str = ""


def examine() -> list[Finding]:
    """Every check, in the order a study meets them; none of them starts an engine or a cluster."""
    return [_guarded(check) for check in (_python, _rooms, _packages, _uv, _place, _disk, _memory, _gpu, _ray)]


def _guarded(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
        return Finding(name=check.__name__.strip("_"), state="broken", detail=f"{type(error).__name__}: {error}")


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)):
        return Finding(name="python", state="ok", detail=version)
    return Finding(name="python", state="broken", detail=version, fix="repeak runs on Python 3.11 to 3.13.")


def _rooms() -> Finding:
    """The three import names are generic: another distribution that owns one replaces our files silently."""
    here = Path(__file__).resolve().parent.parent
    places = {Path(str(room.__file__)).resolve().parent.parent for room in (search_spaces, trackers)}
    owners = {
        owner
        for room in _ROOMS
        for owner in importlib.metadata.packages_distributions().get(room, [])
        if owner != "repeak"
    }
    if places != {here} or owners:
        names = ", ".join(sorted(owners)) or "another folder"
        return Finding(
            name="import names",
            state="broken",
            detail=f"{' / '.join(_ROOMS)} do not all come from repeak: {names} owns one of them",
            fix="Install repeak into an environment of its own.",
        )
    return Finding(name="import names", state="ok", detail="all three rooms are repeak's own")


def _packages() -> Finding:
    names = ("ray", "optuna", "mlflow", "pydantic")
    versions = {name: importlib.metadata.version(name) for name in names}
    return Finding(name="packages", state="ok", detail=", ".join(f"{n} {v}" for n, v in versions.items()))


def _uv() -> Finding:
    import uv  # noqa: PLC0415 - only to find its binary

    binary = uv.find_uv_bin()
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=True)
    return Finding(name="uv", state="ok", detail=said.stdout.strip())


def _place() -> Finding:
    directory = home()
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        return Finding(
            name="data directory",
            state="broken",
            detail=f"{directory} cannot be written",
            fix="Set REPEAK_HOME to a directory of yours.",
        )
    return Finding(name="data directory", state="ok", detail=str(directory))


def _disk() -> Finding:
    free = shutil.disk_usage(home()).free / 2**30
    enough = free >= _NEED_DISK_GIB
    return Finding(
        name="disk",
        state="ok" if enough else "warning",
        detail=f"{free:.0f} GiB free",
        fix="" if enough else f"An engine environment takes up to {_NEED_DISK_GIB:.0f} GiB: see `repeak clean`.",
    )


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    load = os.getloadavg()[0] / max(1, len(os.sched_getaffinity(0)))
    detail = f"{memory.available / 2**30:.0f} of {memory.total / 2**30:.0f} GiB free, load {load:.1f} a core"
    if load > 1:
        return Finding(
            name="host",
            state="warning",
            detail=detail,
            fix="Something else is running: numbers measured now carry it.",
        )
    return Finding(name="host", state="ok", detail=detail)


def _gpu() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return Finding(name="gpu", state="ok", detail="none seen: CPU engines only")
    return Finding(name="gpu", state="ok", detail="; ".join(said.strip().splitlines()))


def _ray() -> Finding:
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return Finding(
            name="ray",
            state="ok",
            detail=f"RAY_ADDRESS is set; tune joins a cluster only by --address ({address})",
        )
    return Finding(name="ray", state="ok", detail="a local cluster is started when a study needs one")
