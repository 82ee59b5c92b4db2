"""The tuning plan."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestrator.plan import Limit, Precision, TuningPlan

LEAST = {
    "name": "study",
    "model": "org/name",
    "engines": ["vllm==0.26.0", "vllm==0.32.0"],
    "workloads": [{"name": "edit", "kind": "edit"}, {"name": "free", "kind": "generate"}],
}


def plan(**more) -> TuningPlan:
    return TuningPlan.model_validate({**LEAST, **more})


def mistakes(**more) -> str:
    with pytest.raises(ValidationError) as caught:
        plan(**more)
    return str(caught.value)


def test_the_least_plan_has_defaults_for_all_the_rest():
    least = plan()
    assert least.workload_names == ("edit", "free")
    assert least.space.size() == 1
    assert least.models["model"].reference == "org/name"
    assert [engine.name for engine in least.engines] == ["vllm-0.26.0", "vllm-0.32.0"]
    assert least.precision.zone == least.precision.relative == 0.01


@pytest.mark.parametrize("field", LEAST)
def test_what_has_no_default_is_asked_for(field):
    with pytest.raises(ValidationError, match="Field required"):
        TuningPlan.model_validate({name: value for name, value in LEAST.items() if name != field})


def test_a_plan_survives_being_written_and_read():
    whole = plan(
        serve={"max_model_len": 2048, "compilation_config": {"mode": 3}, "env": {"A": "1"}},
        incumbent="HF_TOKEN=x vllm serve org/name --max-num-seqs 8",
        space={
            "use": ["vllm-batching"],
            "drafter": ["none", "ngram"],
            "forbid": ["k > 4 and max_num_seqs > 8"],
        },
        objective={"limits": ["p99_ttft_ms <= 200"], "over": "weighted", "weights": {"edit": 2}},
        precision={"relative": "15%"},
        budget={"launches": 14, "time": "35m"},
    )
    again = TuningPlan.model_validate_json(whole.model_dump_json())
    assert again == whole
    assert again.space == whole.space
    assert again.budget.time_s == 2100
    assert "HF_TOKEN=x" not in whole.model_dump_json()


def test_it_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        plan().name = "other"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"space": {"max_num_seqs": [8]}, "serve": {"max_num_seqs": 4}},
            "max_num_seqs is a knob of the space too",
        ),
        ({"space": {"cudagraph_mode": ["FULL"]}, "serve": {"compilation_config": {}}}, "keep one of them"),
        (
            {"space": {"model_runner_v2": [0, 1]}, "serve": {"env": {"VLLM_USE_V2_MODEL_RUNNER": 1}}},
            "the knob model_runner_v2 too",
        ),
        (
            {"space": {"gpu_memory_utilization": [0.8, 0.9]}, "serve": {"kv_cache_memory_bytes": 1}},
            "no effect while kv_cache_memory_bytes",
        ),
        ({"objective": {"over": "weighted", "weights": {"edits": 1}}}, "did you mean edit?"),
        ({"objective": {"weights": {"edit": 1}}}, "set over: weighted"),
        ({"workloads": [LEAST["workloads"][0]] * 2}, "edit names 2 workloads"),
        ({"workloads": []}, "at least one workload"),
        ({"budget": {"launches": 0}}, "greater than or equal to 1"),
        ({"budget": {"time": "0m"}}, "greater than 0"),
        ({"precision": {"min_windows": 9, "max_windows": 4}}, "above max_windows"),
        ({"precision": {"launches": 3, "max_launches": 2}}, "above max_launches"),
        ({"tracking": {"uri": "postgresql://me:pw@host/db"}}, "carries a password"),
        ({"incumbent": "python x.py"}, "no `vllm serve`"),
        ({"model": {}}, "path or id"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(more, says):
    assert says in mistakes(**more)


def test_a_limit_is_met_at_or_under_zero_in_units_of_its_bound():
    limit = Limit(metric="p99_ttft_ms", op="<=", bound=200)
    assert limit.excess(200) == 0
    assert limit.excess(300) == pytest.approx(0.5)
    assert Limit(metric="kv_tokens", op=">=", bound=100).excess(50) == pytest.approx(0.5)
    assert Limit(metric="preemptions", op="<=", bound=0).excess(2) == 2
    assert str(limit) == "p99_ttft_ms <= 200"


def test_the_search_repeats_as_asked_and_a_finalist_is_one_launch_at_a_time():
    precision = Precision.model_validate({"launches": 2, "relative": "15%", "indifference": "5%"})
    assert (precision.rule().min_launches, precision.rule().max_launches) == (2, 2)
    assert (precision.rule(finalist=True).min_launches, precision.rule(finalist=True).max_launches) == (1, 1)
    assert precision.zone == pytest.approx(0.05)
