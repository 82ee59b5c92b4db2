"""On another node an environment comes out the same to each package, or is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wheel_index import PLATFORMS, package_settings, wheel

from orchestrator.engine_environment import EngineEnvironment, EnvironmentRequest, make_environment
from orchestrator.errors import EnvironmentBroken
from orchestrator.fingerprint import host_items
from orchestrator.interpreters import probe_interpreter
from orchestrator.node_environment import elsewhere, settle

SILENT = lambda _: None


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEnvironment:
    """The driver's environment; since it was made, the index has a newer part."""
    wheels = tmp_path / "wheels"
    wheel(wheels, "vllm", "1.0", "part>=1", {"vllm/__init__.py": "__version__ = '1.0'\n", **PLATFORMS})
    wheel(wheels, "part", "1.0")
    for name, value in package_settings(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels)).items():
        monkeypatch.setenv(name, value)
    found = make_environment(EnvironmentRequest(requirement="vllm==1.0"), root=tmp_path / "driver", progress=SILENT)
    wheel(wheels, "part", "2.0")
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path / "node"))
    return found


def away(environment: EngineEnvironment) -> EngineEnvironment:
    """As a node sees it that does not share the driver's filesystem."""
    return environment.model_copy(update={"python": Path("/nowhere/bin/python")})


def test_a_shared_filesystem_has_it_already(made: EngineEnvironment, tmp_path: Path) -> None:
    found, machine, unlike = settle(made, elsewhere(made), host_items(probe_interpreter(made.python)), SILENT)
    assert (found, unlike) == (made, [])
    assert machine
    assert not (tmp_path / "node").exists()


def test_a_node_makes_it_from_the_drivers_lock_and_once(made: EngineEnvironment, tmp_path: Path) -> None:
    lines: list[str] = []
    found, _, unlike = settle(away(made), elsewhere(made), {"gpu": "Card"}, lines.append)
    assert found.packages == made.packages == {"vllm": "1.0", "part": "1.0"}
    assert found.python.is_relative_to(tmp_path / "node")
    assert any("importing" in line for line in lines)
    assert "gpu Card against none" in unlike
    again, _, _ = settle(away(made), elsewhere(made), {}, lines.append)
    assert again == found


def test_one_that_came_out_otherwise_is_refused(made: EngineEnvironment) -> None:
    loose = EnvironmentRequest(requirement="vllm==1.0")
    with pytest.raises(EnvironmentBroken, match="another part than the driver's"):
        settle(away(made), loose, {}, SILENT)


def test_what_was_adopted_is_adopted_there_and_an_image_goes_by_its_digest(made: EngineEnvironment) -> None:
    adopted = made.model_copy(update={"adopted": True})
    assert elsewhere(adopted) == EnvironmentRequest(adopt=str(made.python))
    image = made.model_copy(update={"image": "host:5000/vllm/vllm-openai:v0.26.0@sha256:ab"})
    assert elsewhere(image) == EnvironmentRequest(image="host:5000/vllm/vllm-openai@sha256:ab")
    assert os.environ["REPEAK_HOME"].endswith("node")
