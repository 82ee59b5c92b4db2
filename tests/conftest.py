"""Stores to write to, each made once: an SQLite file with its tables, a server, a private PostgreSQL."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from orchestrator.clock import SystemClock
from orchestrator.mlflow_ui import serve_ui
from orchestrator.process_tree import free_port
from trackers.mlflow_tracker import MlflowTracker

sys.path.insert(0, str(Path(__file__).parent / "fakes"))

# Ray reads it once, in whichever test imports Ray first: the same for all, as repeak sets it.
os.environ["RAY_AUTH_MODE"] = "token"

# An example may take long where the machine is shared; what is slow is no fault of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if not os.environ.get("REPEAK_LONG") else ():
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: REPEAK_LONG=1 asks for it, as CI does"))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with MLflow's tables: making them takes many seconds, copying them none."""
    home = tmp_path_factory.mktemp("store")
    path = home / "empty.db"
    with MlflowTracker(f"sqlite:///{path}", home / "artifacts") as tracker:
        tracker._do(lambda client: client.search_experiments())
    return path


@pytest.fixture
def sqlite_uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[str]:
    """An MLflow server, as `repeak ui` starts it."""
    home = tmp_path_factory.mktemp("server")
    shutil.copyfile(empty_store, home / "mlflow.db")
    uri, artifacts = f"sqlite:///{home}/mlflow.db", home / "artifacts"
    with serve_ui(uri, artifacts, home / "server.log", SystemClock(), port=free_port(), timeout_s=600) as (
        base,
        _,
    ):
        yield base


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    """A PostgreSQL of our own on a free port, with a password, run by its own user where we are root."""
    if not POSTGRES:
        pytest.skip("Debian's package postgresql is not installed")
    place = Path(tempfile.mkdtemp(prefix="repeak-pg-"))
    password, port = secrets.token_hex(8), free_port()
    (place / "password").write_text(password)
    user: list[str] = []
    if os.geteuid() == 0:
        for path in (place, place / "password"):
            shutil.chown(path, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def control(tool: str, *arguments: str) -> None:
        command = [*user, str(POSTGRES[-1].parent / tool), "-D", f"{place}/data", *arguments]
        subprocess.run(command, check=True, timeout=120, cwd=place, stdout=subprocess.DEVNULL)

    try:
        control("initdb", "-U", "repeak", "-A", "scram-sha-256", f"--pwfile={place}/password", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place} -c fsync=off"
        control("pg_ctl", "-w", "-t", "60", "-l", f"{place}/log", "-o", options, "start")
        try:
            yield f"postgresql://repeak:{password}@127.0.0.1:{port}/postgres"
        finally:
            control("pg_ctl", "-w", "-t", "60", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)
