"""MLflow's pages are served to this machine only, and links lead where they say."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator import mlflow_ui
from orchestrator.errors import TrackerError
from orchestrator.mlflow_ui import compare_link, experiment_link, find_experiment, serve_ui, ui_command, ui_environment
from orchestrator.process_tree import free_port


class Stopped:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def time(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_the_server_binds_loopback_and_checks_hosts() -> None:
    command = ui_command(5001)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--allowed-hosts") + 1] == "127.0.0.1:5001,localhost:5001"
    assert "--disable-security-middleware" not in command


def test_a_password_in_the_address_is_not_in_the_command(tmp_path: Path) -> None:
    environment = ui_environment("postgresql+psycopg2://u:secret@h/d", tmp_path, {"HOME": "/h"})
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql+psycopg2://u:secret@h/d"
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["HOME"] == "/h"
    assert "secret" not in " ".join(ui_command(5000))


def test_a_comparison_link_names_runs_and_experiments_as_json() -> None:
    link = urlsplit(compare_link("http://127.0.0.1:5000", ["1"], ["a", "b"]))
    page, _, query = link.fragment.partition("?")
    assert page == "/compare-runs"
    assert {name: json.loads(value) for name, (value,) in parse_qs(query).items()} == {
        "runs": ["a", "b"],
        "experiments": ["1"],
    }


def test_an_experiment_link_falls_back_to_the_front_page() -> None:
    assert experiment_link("http://h", "7") == "http://h/#/experiments/7/runs?workflowType=machine_learning"
    filtered = experiment_link("http://h", "7", "tags.\"stack.vllm\" = '0.32.0'")
    assert filtered.endswith("&searchFilter=tags.%22stack.vllm%22%20%3D%20%270.32.0%27")
    assert experiment_link("http://h", None) == "http://h/"


def test_a_server_that_cannot_be_asked_has_no_experiment() -> None:
    assert find_experiment("http://127.0.0.1:1", "any") is None


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ui = serve_ui("sqlite:////x", tmp_path, tmp_path / "log", Stopped(), port=port)
        with pytest.raises(TrackerError, match=f"Port {port} is taken"), ui:
            pass


def serve(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_ui, "ui_command", lambda port: [sys.executable, "-c", code, str(port)])
    with serve_ui("sqlite:////x", tmp_path, tmp_path / "log", Stopped(), port=free_port()):
        pass


def test_a_server_that_never_answers_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackerError, match="did not answer within 300 s") as problem:
        serve("import sys; sys.stdin.close(); import signal; signal.pause()", tmp_path, monkeypatch)
    assert "log" in problem.value.hint


def test_a_server_that_ends_is_told_from_one_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(Stopped):
        def sleep(self, seconds: float) -> None:
            """Time stands still until the process has ended: `poll` decides."""

    monkeypatch.setattr(mlflow_ui, "ui_command", lambda port: [sys.executable, "-c", "raise SystemExit(3)"])
    ui = serve_ui("sqlite:////x", tmp_path, tmp_path / "log", Patient(), port=free_port())
    with pytest.raises(TrackerError, match="ended with code 3"), ui:
        pass
