"""The address of a store is understood or refused at once, with what to write instead."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from orchestrator.process_tree import free_port
from trackers import store_uri
from trackers.problems import TrackerProblem
from trackers.store_uri import check_reachable, check_uri, is_database, with_driver


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////x/mlflow.db",
        "http://h:5000",
        "https://h",
        "postgresql://u:p@h/d",
        "postgresql+psycopg2://h/d",
    ],
)
def test_a_store_that_can_work_is_taken(uri: str) -> None:
    check_uri(uri, uri)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("sqlite:///mlflow.db", "would lie in the current directory"),
        ("sqlite://", "would lie in the current directory"),
        ("mlruns", "is not a store"),
        ("file:///x", "is not a store"),
        ("", "is not a store"),
        ("http://user:pw@h:5000", "carries credentials"),
    ],
)
def test_a_store_that_would_surprise_is_refused_with_what_to_write(uri: str, message: str) -> None:
    with pytest.raises(TrackerProblem, match=message) as problem:
        check_uri(uri, uri)
    assert problem.value.hint


def test_a_server_keeps_its_own_artifacts_and_a_database_does_not() -> None:
    assert is_database("sqlite:////x")
    assert is_database("postgresql+psycopg2://h/d")
    assert not is_database("https://h")


def test_a_database_server_that_is_not_there_is_an_outage_at_once() -> None:
    uri = f"postgresql://u:p@127.0.0.1:{free_port()}/x"
    with pytest.raises(TrackerProblem, match=r"cannot be used: .*refused") as problem:
        check_reachable(uri, "postgresql://***@h/x")
    assert problem.value.outage
    assert "u:p" not in str(problem.value)


def test_a_database_server_that_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"postgresql://127.0.0.1:{server.getsockname()[1]}/x", "x")


def test_a_file_that_is_no_database_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("my notes, not a database")
    with pytest.raises(TrackerProblem, match="not an SQLite database"):
        check_reachable(f"sqlite:///{tmp_path}/notes.db", "x")


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackerProblem, match="cannot be used"):
        check_reachable(f"sqlite:///{tmp_path}/file/mlflow.db", "x")


def test_a_new_file_gets_its_directory(tmp_path: Path) -> None:
    check_reachable(f"sqlite:///{tmp_path}/a/b/mlflow.db", "x")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize(
    ("installed", "uri", "driver"),
    [
        ({"psycopg2"}, "postgresql://h/d", "postgresql+psycopg2://h/d"),
        ({"psycopg", "psycopg2"}, "postgresql://h/d", "postgresql://h/d"),
        (set(), "postgresql://h/d", "postgresql://h/d"),
        ({"psycopg2"}, "postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ({"psycopg2"}, "sqlite:////x", "sqlite:////x"),
    ],
)
def test_the_driver_that_is_installed_is_named(
    installed: set[str], uri: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_uri, "find_spec", lambda name: name if name in installed else None)
    assert with_driver(uri) == driver
