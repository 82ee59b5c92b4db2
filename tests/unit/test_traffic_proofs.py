"""Proofs about the traffic, from staged evidence; what a server can stage is in the load client's tests."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.evidence import Evidence
from orchestrator.load_metrics import Sample
from orchestrator.metrics_page import MetricsPage, parse_metrics
from orchestrator.traffic_proofs import TRAFFIC_PROOFS
from orchestrator.workload import Request, Workload
from trackers.records import Acceptance

PROOF = {proof.__name__: proof for proof in TRAFFIC_PROOFS}
MS = 1_000_000


def sample(chat: bool = False, tokens: int = 101, decode_ms: int = 1000, **fields: Any) -> Sample:
    body = {"messages": []} if chat else {"prompt": "p"}
    request = Request(0, "generate", "measured", "/", body, 101)
    return Sample(request, 0, [10 * MS, (10 + decode_ms) * MS], 50, tokens, "length", **fields)


def evidence(*samples: Sample, **fields: Any) -> Evidence:
    workload = fields.pop("workload", None) or Workload(name="w", kind="generate")
    return Evidence(workload=workload, samples=samples or (sample(),), **fields)


def pages(**grown: float) -> dict[str, MetricsPage]:
    lines = {name: f"vllm:{name}_total" for name in grown}
    return {
        "before": parse_metrics("\n".join(f"{line} 5" for line in lines.values())),
        "after": parse_metrics("\n".join(f"{lines[name]} {5 + value}" for name, value in grown.items())),
    }


def passed(name: str, e: Evidence) -> bool | None:
    verdict = PROOF[name](e)
    assert verdict is not None
    return verdict[0]


@pytest.mark.parametrize(("passes_s", "good"), [(100, True), (101.5, True), (98.5, True), (105, False), (90, False)])
def test_tokens_a_second_are_the_product_of_both_counters(passes_s: float, good: bool) -> None:
    assert passed("token_identity", evidence(metrics={"tokens_per_pass": 1.0, "passes_s": passes_s})) is good


def test_drafts_accepted_beyond_the_last_token_are_allowed_for() -> None:
    drafted = Acceptance(drafts=20, draft_tokens=160, accepted_tokens=87, accepted_per_position=(20,) * 8)
    split = {"tokens_per_pass": 5.35, "passes_s": 20}
    assert passed("token_identity", evidence(metrics=split, acceptance=drafted))
    assert not passed("token_identity", evidence(metrics=split))
    assert not passed("token_identity", evidence(metrics={"tokens_per_pass": 4.6, "passes_s": 20}, acceptance=drafted))


def test_the_identity_of_a_batch_is_not_claimed() -> None:
    many = Workload(name="w", kind="generate", concurrency=4)
    split = {"tokens_per_pass": 9.0, "passes_s": 9.0}
    assert PROOF["token_identity"](evidence(workload=many, metrics=split)) is None
    assert PROOF["token_identity"](evidence()) is None


def test_what_the_client_was_late_itself_is_allowed_for() -> None:
    split = {"tokens_per_pass": 1.0, "passes_s": 95}
    for share, good in ((0.0, False), (0.04, True)):
        late = {"share": share, "busy_share": 0.1}
        assert passed("token_identity", evidence(metrics=split, client=late)) is good
    assert not passed(
        "token_identity", evidence(metrics={**split, "passes_s": 85}, client={"share": 0.04, "busy_share": 0})
    )


def test_a_starved_client_has_no_times_to_hold_against_the_counters() -> None:
    split = {"tokens_per_pass": 1.0, "passes_s": 90}
    for share, claimed in ((0.01, True), (0.26, False)):
        found = PROOF["token_identity"](evidence(metrics=split, client={"share": share, "busy_share": 0.1}))
        assert (found is not None) is claimed


def test_a_bare_prompt_has_no_hits_and_a_chat_no_more_than_its_template() -> None:
    counts = pages(prefix_cache_hits=16, prefix_cache_queries=50)
    chat = Workload(name="w", kind="generate", endpoint="chat")
    assert not passed("cold_prefix", evidence(**counts))
    assert passed("cold_prefix", evidence(sample(chat=True), workload=chat, **counts))
    many = pages(prefix_cache_hits=80, prefix_cache_queries=90)
    assert not passed("cold_prefix", evidence(sample(chat=True), workload=chat, **many))


def test_a_shared_prefix_needs_hits_unless_the_cache_is_off() -> None:
    shared = Workload(name="w", kind="shared_prefix")
    two = (sample(), sample())
    assert passed("warm_prefix", evidence(*two, workload=shared, **pages(prefix_cache_hits=90)))
    assert not passed("warm_prefix", evidence(*two, workload=shared, **pages(prefix_cache_hits=0)))
    off = parse_metrics('vllm:cache_config_info{enable_prefix_caching="False"} 1\nvllm:prefix_cache_hits_total 5')
    before = pages(prefix_cache_hits=0)["before"]
    assert passed("warm_prefix", evidence(*two, workload=shared, before=before, after=off))


@pytest.mark.parametrize(
    ("client", "good"),
    [
        ({"share": 0.01, "busy_share": 0.1}, True),
        ({"share": 0.08, "busy_share": 0.1}, False),
        ({"share": 0.01, "busy_share": 0.9}, False),
    ],
)
def test_a_client_that_took_more_than_a_small_share_is_named(client: dict[str, float], good: bool) -> None:
    assert passed("client_bound", evidence(client=client)) is good


def test_reasoning_in_the_text_is_reasoning_too() -> None:
    chat = Workload(name="w", kind="generate", endpoint="chat")
    assert passed("reasoning_as_asked", evidence(sample(chat=True, text="Sure."), workload=chat))
    assert not passed("reasoning_as_asked", evidence(sample(chat=True, text="<think>hm"), workload=chat))
    assert PROOF["reasoning_as_asked"](evidence(workload=chat.model_copy(update={"enable_thinking": True}))) is None


def test_lengths_are_compared_with_each_requests_own() -> None:
    assert passed("output_length", evidence(sample(), sample()))
    verdict = PROOF["output_length"](evidence(sample(), sample(tokens=90)))
    assert verdict == (False, "1 x asked 101, got 90")


def test_streams_are_counted_by_what_ended_them() -> None:
    broken = [
        sample(error="stalled", detail="nothing for 5 s"),
        sample(error="http_429"),
        sample(error="http_429"),
    ]
    verdict = PROOF["streams_finished"](evidence(sample(), *broken))
    assert verdict == (False, "2 x http_429, 1 x stalled, of 4; stalled: nothing for 5 s")


def test_turns_of_a_tool_loop_fail_by_the_part_that_failed() -> None:
    e = evidence(turns={"done": 2, "tool_call_not_parsed": 1, "answer_cut": 3})
    assert PROOF["tool_call_parsed"](e) == (False, "1 x tool_call_not_parsed")
    assert PROOF["tool_turn_finished"](e) == (False, "3 x answer_cut")
    assert PROOF["tool_call_parsed"](evidence()) is None
