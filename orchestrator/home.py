"""Where this project keeps what it makes on a machine: engine environments, caches, models."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["home", "store_uri"]


def home() -> Path:
    """`REPEAK_HOME` where it is set, otherwise `repeak` in the user's data directory; absolute, not made."""
    chosen = os.environ.get("REPEAK_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path here.
    return (Path(data) if data.startswith("/") else Path.home() / ".local" / "share") / "repeak"


def store_uri(given: str | None) -> str:
    """The plan's store, else MLflow's own variable, else one SQLite file in the data directory."""
    return given or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"
