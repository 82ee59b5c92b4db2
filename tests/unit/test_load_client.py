"""The instrument against a server whose truth and lies are known: each lie fails under its own name."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from truth_server import serving

from orchestrator.errors import MeasurementFailed
from orchestrator.load_client import bench_json, measure_window, repeat_greedy
from orchestrator.proofs import ServerExpectation
from orchestrator.workload import Request, Workload, load_workload
from trackers.records import Check, Measurement

EXPECTED = ServerExpectation(model="m", version="0.32.0", drafter="none", prefix_caching=False)
FAST: dict[str, Any] = {"ttft_ms": 3, "itl_ms": 0.3}


def workload(kind: Any = "generate", **fields: Any) -> Workload:
    return Workload(name="w", kind=kind, **{"output_tokens": 12, "prompt_tokens": 40, **fields})


def measured(truth: dict[str, Any], load: Workload | None = None, **options: Any) -> Measurement:
    with serving(**{**FAST, **truth}) as url:
        return measure_window(url, load or workload(), model="m", **{"server": EXPECTED, **options})


def failing(measurement: Measurement) -> dict[str, str]:
    # Answers of milliseconds on a busy machine: the two proofs about time have tests of their own.
    timed = {"client_bound", "token_identity"}
    return {check.name: check.detail for check in measurement.disproved if check.name not in timed}


def verdict(measurement: Measurement, name: str) -> Check:
    return next(check for check in measurement.checks if check.name == name)


def test_an_honest_server_passes_every_proof_and_its_counts_are_exact() -> None:
    found = measured({"k": 4, "chunks": [3, 1]}, server=EXPECTED.model_copy(update={"drafter": "ngram"}))
    assert failing(found) == {}
    assert (found.completed, found.failed, found.total_output_tokens) == (4, 0, 48)
    assert found.acceptance is not None
    assert found.acceptance.accepted_per_position == (12, 12, 0, 0)
    assert found.metrics["mean_ttft_ms"] >= 3
    proven = {check.name for check in found.checks if check.passed}
    assert proven >= {"served_model", "served_version", "settings_in_effect", "sole_user", "cold_prefix"}
    assert proven >= {"streams_finished", "output_length", "no_preemptions", "same_server", "drafts_alive"}


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"request_rate": 100.0}], ids=["closed", "open"])
def test_warm_up_and_cool_down_are_sent_and_not_measured(load: dict[str, Any]) -> None:
    found = measured({}, workload(requests_per_window=5, **load))
    assert failing(found) == {}
    assert (found.completed, found.total_output_tokens) == (5, 60)
    assert verdict(found, "sole_user").detail == f"{len(workload(requests_per_window=5, **load).requests(0))} requests"


STAGED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("served_model", {"model": "other", "lies": {"any_model": True}}, {}),
    ("served_model", {"model": "other"}, {}),
    ("served_version", {"version": "0.27.1"}, {}),
    ("settings_in_effect", {"prefix_caching": True}, {}),
    ("settings_in_effect", {"k": 2}, {}),
    ("same_server", {"lies": {"restarted": True}}, {}),
    ("no_preemptions", {"lies": {"preempts": True}}, {}),
    ("sole_user", {"lies": {"stranger": True}}, {}),
    ("output_length", {"lies": {"cap": 9}}, {}),
    ("output_length", {"lies": {"uneven": True}}, {}),
    ("streams_finished", {"lies": {"no_usage": True}}, {"kind": "generate"}),
    ("reasoning_as_asked", {"lies": {"reasons": True}}, {"endpoint": "chat"}),
    ("tool_call_parsed", {"tools": "text"}, {"kind": "tool_loop", "endpoint": "chat"}),
    ("tool_call_parsed", {"tools": "refuse"}, {"kind": "tool_loop", "endpoint": "chat"}),
    ("tool_call_parsed", {"tools": "none"}, {"kind": "tool_loop", "endpoint": "chat"}),
    ("tool_turn_finished", {"lies": {"answer_cut": True}}, {"kind": "tool_loop", "endpoint": "chat"}),
]


@pytest.mark.parametrize(("name", "truth", "load"), STAGED, ids=lambda value: str(value)[:60])
def test_a_lie_fails_under_its_name(name: str, truth: dict[str, Any], load: dict[str, Any]) -> None:
    if name == "streams_finished":
        with pytest.raises(MeasurementFailed, match="no_usage"):
            measured(truth, workload(**load))
        return
    assert name in failing(measured(truth, workload(**load)))


def test_a_call_that_came_back_as_text_has_its_own_name() -> None:
    found = measured({"tools": "text"}, workload("tool_loop", endpoint="chat"))
    assert failing(found)["tool_call_parsed"] == "4 x tool_call_not_parsed"


def test_a_whole_tool_turn_passes() -> None:
    found = measured({}, workload("tool_loop", endpoint="chat"))
    assert failing(found) == {}
    assert verdict(found, "tool_call_parsed").passed
    assert found.completed == 8


def test_a_missing_drafter_is_seen() -> None:
    found = measured({}, server=EXPECTED.model_copy(update={"drafter": "mtp"}))
    assert set(failing(found)) == {"settings_in_effect", "drafts_alive"}


CACHED = ServerExpectation(model="m", prefix_caching=True)


def test_a_warm_cache_in_a_cold_run_is_caught() -> None:
    with serving(**FAST, prefix_caching=True) as url:
        first, second = (measure_window(url, workload(), model="m", server=CACHED) for _ in range(2))
    assert failing(first) == {}
    assert set(failing(second)) == {"cold_prefix"}


def test_salt_at_the_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the field's harness did: the same text for all, and the salt behind it.
    honest = Workload.requests

    def salted_last(self: Workload, window: int) -> list[Request]:
        text = " ".join(f"word{at}" for at in range(60))
        bodies = [{**each.body, "prompt": f"{text} [{each.index}]"} for each in honest(self, window)]
        return [replace(each, body=body) for each, body in zip(honest(self, window), bodies, strict=True)]

    monkeypatch.setattr(Workload, "requests", salted_last)
    found = measured({"prefix_caching": True}, server=CACHED)
    assert set(failing(found)) == {"cold_prefix"}
    assert failing(found)["cold_prefix"].startswith("180 of 244 prompt tokens")


def test_the_users_own_prompts_without_our_salt_claim_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "the same words for every one of them, again"}) + "\n")
    load = load_workload({"name": "w", "kind": "jsonl", "path": str(path), "output_tokens": 4, "salted": False})
    found = measured({"prefix_caching": True}, load, server=CACHED)
    assert "cold_prefix" not in {check.name for check in found.checks}
    assert failing(measured({"prefix_caching": True}, load.model_copy(update={"salted": True}), server=CACHED)) == {}


def test_a_shared_prefix_is_served_from_the_cache_or_the_cache_is_off() -> None:
    load = workload("shared_prefix", prompt_tokens=200, requests_per_window=3)
    warm = measured({"prefix_caching": True, "ttft_ms": 40}, load, server=CACHED)
    off = measured({"ttft_ms": 40}, load)
    assert failing(warm) == failing(off) == {}
    assert warm.metrics["repeat_speedup"] > 2 * off.metrics["repeat_speedup"]


def test_the_same_greedy_prompt_gives_the_same_bytes_or_is_counted() -> None:
    with serving(**FAST) as url:
        assert repeat_greedy(url, workload(), model="m").passed
        assert repeat_greedy(url, workload(temperature=1.0), model="m").passed is None
    with serving(**FAST, lies={"fickle": True}) as url:
        check = repeat_greedy(url, workload(), model="m")
    assert (check.passed, check.detail) == (False, "0 of 2 byte-identical")


@pytest.mark.parametrize(
    ("truth", "options", "message"),
    [
        ({"api_key": "k"}, {}, "http_401: .*invalid api key"),
        ({"api_key": "k"}, {"api_key": "wrong"}, "http_401"),
        ({"lies": {"status": 429}}, {}, "http_429: refused, as told"),
        ({"lies": {"status": 500}}, {}, "http_500"),
        ({"lies": {"malformed": True}}, {}, "malformed_sse"),
        ({"lies": {"stream_error": True}}, {}, "stream_error: EngineDeadError"),
        (
            {"lies": {"stalls_after": 0.0001, "status": 0}, "model": "other"},
            {"server": None},
            "http_404: The model `m`",
        ),
    ],
)
def test_a_server_that_cannot_be_measured_is_a_clear_error(
    truth: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MeasurementFailed, match=message) as caught:
        measured(truth, **options)
    assert "wrong" not in str(caught.value).split("http_401")[0]


def test_nothing_listening_is_a_clear_error() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(MeasurementFailed, match=r"unreachable.*\n.*Is the server up"):
            measure_window(f"http://127.0.0.1:{held.getsockname()[1]}", workload(), model="m")


def test_a_server_that_dies_inside_the_window_leaves_what_it_gave() -> None:
    # Tokens far enough apart that a busy client sees them apart: a stream in one piece has no speed.
    found = measured({"lies": {"dies_after": 3}, "itl_ms": 20}, workload(requests_per_window=6))
    assert (found.completed, found.failed) == (3, 3)
    assert found.total_output_tokens > 0
    assert found.metrics["decode_tok_s"] > 0
    assert set(failing(found)) >= {"streams_finished", "same_server"}
    assert "early_eof" in failing(found)["streams_finished"]


def test_a_stream_that_stalls_ends_the_wait_and_leaves_the_others() -> None:
    found = measured({"lies": {"stalls_after": 3}}, workload(requests_per_window=4), stall_s=0.3)
    assert (found.completed, found.failed) == (3, 1)
    assert failing(found)["streams_finished"].startswith("1 x stalled, of 4")


@pytest.mark.parametrize("load", [{}, {"concurrency": 4}, {"request_rate": 5.0}], ids=["one", "four", "open"])
def test_a_window_that_outlasts_its_bound_is_cut_and_kept(load: dict[str, Any]) -> None:
    slow = workload(requests_per_window=100, **load)
    found = measured({"ttft_ms": 60, "itl_ms": 1}, slow, timeout_s=1.0 if load != {"request_rate": 5.0} else 4.0)
    assert 0 < found.completed < 100
    assert found.completed + found.failed == 100
    assert "window_over" in failing(found)["streams_finished"]


def test_a_server_without_counters_is_measured_with_the_proofs_that_are_left() -> None:
    found = measured({"lies": {"no_metrics": True}}, server=None)
    assert failing(found) == {}
    assert found.acceptance is None
    assert verdict(found, "cold_prefix").passed is None
    assert "tokens_per_pass" not in found.metrics


def test_the_result_has_the_shape_of_vllm_bench_serve() -> None:
    load = workload(goodput="ttft:1000", requests_per_window=3)
    shaped = bench_json(measured({"k": 2, "chunks": [2], "itl_ms": 10}, load))
    assert json.loads(json.dumps(shaped)) == shaped
    assert (shaped["completed"], shaped["num_prompts"], shaped["max_concurrency"]) == (3, 3, 1)
    assert shaped["request_goodput"] == pytest.approx(shaped["request_throughput"])
    assert shaped["spec_decode_per_position_acceptance_rates"] == [1.0, 0.0]
    for family in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{part}_{family}_ms" for part in ("mean", "median", "std", "p99")} <= shaped.keys()


def test_settings_of_the_request_are_in_the_record() -> None:
    found = measured({}, workload(endpoint="chat", reasoning_effort="low", seed=5))
    assert found.extra["reasoning_effort"] == "low"
    assert (found.extra["enable_thinking"], found.extra["seed"], found.extra["model"]) == ("False", "5", "m")
