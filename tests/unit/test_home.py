"""Home is where the user says, then where the desktop's specification says."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.home import home


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPEAK_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def test_the_users_choice_wins_and_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPEAK_HOME", "here")
    assert home() == tmp_path / "here"
    monkeypatch.setenv("REPEAK_HOME", "~/there")
    assert home() == Path("/home/someone/there")


def test_the_data_directory_is_used_unless_it_is_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home() == Path("/data/repeak")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert home() == Path("/home/someone/.local/share/repeak")


def test_without_any_variable_it_is_in_the_users_share() -> None:
    assert home() == Path("/home/someone/.local/share/repeak")
