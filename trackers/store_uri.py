"""The address of a store: which kinds there are, which are refused, and whether anything is there."""

from __future__ import annotations

import hashlib
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .problems import TrackerProblem

__all__ = ["check_reachable", "check_uri", "is_database", "key_of", "with_driver"]

_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def with_driver(uri: str) -> str:
    """The URI as SQLAlchemy needs it: its driver named where the one it takes by itself is not installed."""
    bare, other = uri.startswith("postgresql:"), find_spec("psycopg2") is not None
    if bare and other and find_spec("psycopg") is None:
        return uri.replace("postgresql:", "postgresql+psycopg2:", 1)
    return uri


def is_database(uri: str) -> bool:
    return _scheme(uri) not in ("http", "https")


def key_of(name: str) -> str:
    """A short directory name for an experiment: PostgreSQL keeps 200 characters of a run's artifact path."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def check_uri(uri: str, shown: str) -> None:
    """Refuse what cannot work or would surprise; `shown` is the URI without secrets."""
    scheme = _scheme(uri)
    if scheme not in ("http", "https", "sqlite", *_PORTS):
        hint = "Use sqlite:////absolute/path.db, postgresql://..., or the http(s):// of an MLflow server."
        raise TrackerProblem(f"{shown!r} is not a store that repeak can write to.", hint)
    if scheme in ("http", "https") and urlsplit(uri).username is not None:
        hint = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, instead."
        raise TrackerProblem(f"The address {shown!r} carries credentials.", hint)
    if scheme == "sqlite" and not uri.startswith("sqlite:////"):
        hint = "Write four slashes and the absolute path: sqlite:////home/me/mlflow.db."
        raise TrackerProblem(f"The SQLite file of {shown!r} would lie in the current directory.", hint)


def check_reachable(uri: str, shown: str, *, timeout_s: float = 5.0) -> None:
    """Say at once what MLflow would find out after minutes of trying: nothing there, or not a database."""
    where = urlsplit(uri)
    hint = "Nothing is lost: the journal has it, and `repeak sync` sends it when the store is back."
    try:
        if _scheme(uri) == "sqlite":
            _check_file(Path(unquote(uri.removeprefix("sqlite:///"))))
        elif is_database(uri) and where.hostname:
            address = where.hostname, where.port or _PORTS[_scheme(uri)]
            socket.create_connection(address, timeout_s).close()
    except OSError as error:
        raise TrackerProblem(f"The store {shown} cannot be used: {error}.", hint, outage=True) from error


def _check_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(13, "it is not writable", str(path))
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise OSError(22, "it is not an SQLite database", str(path))


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0].lower()
