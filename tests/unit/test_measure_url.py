"""The instrument alone, against a server that is honest, lies, or goes away."""

from __future__ import annotations

from typing import Any

import pytest
from trial_records import window
from truth_server import serving

from orchestrator.errors import MeasurementFailed
from orchestrator.measure_url import Measured, measure_url
from orchestrator.stability import StabilityRule
from orchestrator.workload import Workload
from trackers.records import Acceptance, Check

RULE = StabilityRule(precision=0.5, min_windows=3, max_windows=4)
# Two at once: a single stream of milliseconds has proofs of time that a busy machine fails.
LOAD = Workload(name="w", kind="generate", output_tokens=12, prompt_tokens=40, requests_per_window=2, concurrency=2)


def measured(rule: StabilityRule = RULE, load: Workload = LOAD, **truth: Any) -> Measured:
    with serving(**{"ttft_ms": 20, "itl_ms": 4, **truth}) as url:
        return measure_url(url, load, model="m", rule=rule, timeout_s=5)


def test_windows_are_repeated_until_the_metric_settles_and_the_first_does_not_count() -> None:
    found = measured()
    assert found.ending != "failed", found.reason
    assert 3 <= len(found.windows) <= 4
    assert 0 not in found.counted
    assert found.pooled.completed == 2 * len(found.counted)
    assert found.pooled.metrics["decode_tok_s"] == pytest.approx(250, rel=0.2)


def test_the_result_has_the_keys_of_vllm_bench_serve_and_what_stands_behind_it() -> None:
    shown = measured(k=2, chunks=[2]).as_json()
    assert shown["total_output_tokens"] == 12 * shown["completed"] == 24 * shown["windows"]
    assert shown["median_ttft_ms"] >= 20
    assert shown["spec_decode_num_drafts"] > 0
    assert shown["spec_decode_per_position_acceptance_rates"][0] == pytest.approx(1, abs=0.2)
    assert {"ending", "reason", "checks", "seed", "request_throughput", "model_id"} <= shown.keys()


@pytest.mark.parametrize(
    ("lie", "name"),
    [
        ({"cap": 6}, "output_length"),
        ({"stranger": True}, "sole_user"),
        ({"preempts": True}, "no_preemptions"),
    ],
)
def test_a_proof_that_fails_ends_it_under_its_name(lie, name) -> None:
    found = measured(lies=lie)
    assert found.ending == "failed"
    assert name in found.reason
    assert len(found.windows) == 1
    assert next(check for check in found.checks if check.name == name).passed is False


def test_a_server_that_dies_between_windows_leaves_what_was_measured() -> None:
    found = measured(StabilityRule(precision=0.0001, min_windows=9, max_windows=20), lies={"dies_after": 20})
    assert found.ending == "failed"
    assert len(found.windows) >= 2
    assert found.pooled.metrics["decode_tok_s"] > 0


def test_where_nothing_could_be_measured_the_error_says_why() -> None:
    with pytest.raises(MeasurementFailed, match="http_429"):
        measured(lies={"status": 429})
    with pytest.raises(MeasurementFailed, match="unreachable"):
        measure_url("http://127.0.0.1:9", LOAD, model="m", rule=RULE, timeout_s=2)


def test_a_metric_that_is_never_measured_ends_it_at_once() -> None:
    with serving(ttft_ms=1, itl_ms=1) as url:
        found = measure_url(url, LOAD, model="m", rule=RULE, metric="acceptance_length", timeout_s=5)
    assert found.ending == "failed"
    assert "no acceptance_length" in found.reason or "client_bound" in found.reason


def test_pooling_sums_counts_averages_metrics_and_tells_each_proof_once() -> None:
    lost = Check(name="sole_user", passed=False, detail="a stranger")
    draws = Acceptance(drafts=10, draft_tokens=20, accepted_tokens=5, accepted_per_position=(4, 1))
    windows = (
        window(0, 0, checks=(Check(name="sole_user", passed=None),)),
        window(0, 1, checks=(Check(name="sole_user", passed=True),), acceptance=draws),
        window(0, 2, checks=(lost,), acceptance=draws),
    )
    found = Measured(windows=windows, counted=(1, 2), ending="stable", reason="")
    assert found.checks == (lost,)
    assert found.pooled.total_output_tokens == 400
    assert found.pooled.metrics["decode_tok_s"] == pytest.approx(50.15)
    assert found.pooled.acceptance == Acceptance(
        drafts=20, draft_tokens=40, accepted_tokens=10, accepted_per_position=(8, 2)
    )
