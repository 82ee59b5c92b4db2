"""MLflow's own pages on this machine only: the server's command, its environment, and links into it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trackers.store_uri import with_driver

from .clock import Clock
from .errors import TrackerError
from .process_tree import listener_belongs_to

if TYPE_CHECKING:
    import httpx

__all__ = ["compare_link", "experiment_link", "find_experiment", "serve_ui", "ui_command", "ui_environment"]

HOST = "127.0.0.1"


def ui_command(port: int) -> list[str]:
    """The server on loopback, answering to loopback names only; the store goes by environment."""
    hosts = ",".join(f"{name}:{port}" for name in (HOST, "localhost"))
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"),
        *(
            "--allowed-hosts",
            hosts,
            "--cors-allowed-origins",
            f"http://{HOST}:{port},http://localhost:{port}",
        ),
    ]


def ui_environment(uri: str, artifacts: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the store (a database, its password perhaps in the URI) and its artifacts."""
    return {
        **environ,
        "MLFLOW_BACKEND_STORE_URI": with_driver(uri),
        "MLFLOW_ARTIFACTS_DESTINATION": str(artifacts),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


@contextlib.contextmanager
def serve_ui(
    uri: str, artifacts: Path, log: Path, clock: Clock, *, port: int = 5000, timeout_s: float = 300.0
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(base address, process) of a server that answers; it and its workers are gone afterwards.

    Raises:
        TrackerError: The port is taken, or it ended or did not answer in time; `log` says why.
    """
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
        raise TrackerError(f"Port {port} is taken.", "Stop what uses it, or choose another with --port.")
    with log.open("wb") as output:
        process = subprocess.Popen(
            ui_command(port),
            env=ui_environment(uri, artifacts, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,
        )
    base = f"http://{HOST}:{port}"
    try:
        _wait(port, process, log, clock, timeout_s)
        yield base, process
    finally:
        _stop(process)


def find_experiment(base: str, name: str) -> str | None:
    """The id of an experiment by name, asked of a server on this machine; None where it cannot say."""
    import httpx  # noqa: PLC0415 - as below

    try:
        with _local(base) as client:
            answer = client.get("/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": name})
    except httpx.HTTPError:
        return None
    return str(answer.json()["experiment"]["experiment_id"]) if answer.is_success else None


def experiment_link(base: str, experiment_id: str | None, search: str = "") -> str:
    """The table of an experiment's runs, filtered by `search`; without the workflow MLflow opens its traces."""
    if not experiment_id:
        return f"{base}/"
    asked = f"&searchFilter={quote(search)}" if search else ""
    return f"{base}/#/experiments/{experiment_id}/runs?workflowType=machine_learning{asked}"


def compare_link(base: str, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> str:
    """MLflow's comparison of runs, charts and values side by side."""
    runs, experiments = (quote(json.dumps(list(ids), separators=(",", ":"))) for ids in (run_ids, experiment_ids))
    return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"


def _local(base: str) -> httpx.Client:
    import httpx  # noqa: PLC0415 - its import takes longer than most of what commands that look do

    # Neither a proxy nor certificates: it is this machine.
    return httpx.Client(base_url=base, timeout=30, trust_env=False, verify=False)  # noqa: S501


def _wait(port: int, process: subprocess.Popen[bytes], log: Path, clock: Clock, timeout_s: float) -> None:
    import httpx  # noqa: PLC0415 - as above

    deadline = clock.monotonic() + timeout_s
    with _local(f"http://{HOST}:{port}") as client:
        while clock.monotonic() < deadline:
            if process.poll() is not None:
                raise TrackerError(f"MLflow's server ended with code {process.returncode}.", f"Its log: {log}")
            with contextlib.suppress(httpx.HTTPError):
                if client.get("/health").is_success and listener_belongs_to(port, process.pid):
                    return
            clock.sleep(0.5)
    raise TrackerError(f"MLflow's server did not answer within {timeout_s:.0f} s.", f"Its log: {log}")


def _stop(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """The whole session of the server: it starts workers that it does not always take with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
