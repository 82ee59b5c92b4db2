"""Where this project keeps what it makes on a machine: engine environments, caches, studies, tools."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home", "room"]


def home() -> Path:
    """`REPEAK_HOME` where it is set, otherwise `repeak` in the user's data directory; absolute, maybe not made yet."""
    chosen = os.environ.get("REPEAK_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path here.
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return base / "repeak"


def room(name: str) -> Path:
    """A directory of the home by name, such as `environments` or `caches`, made where it is absent."""
    directory = home() / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory
