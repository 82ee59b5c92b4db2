"""Rows about speed, on worked examples of the field and on real counters."""

from __future__ import annotations

import pytest

from orchestrator.audit_facts import AuditFacts
from orchestrator.audit_speed import speed_rows
from orchestrator.card import find_card
from orchestrator.model_arithmetic import Weights
from orchestrator.model_config import Fields
from orchestrator.model_shape import describe
from trackers.records import Acceptance, Measurement, WorkloadRef

SHAPE = describe(
    Fields(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 248320,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "torch_dtype": "bfloat16",
        },
        "hybrid",
    )
)


def stored(gb: float) -> Weights:
    return Weights(
        always=int(gb * 1e9),
        routed=0,
        table=0,
        drafter=0,
        beside=0,
        experts=0,
        experts_per_token=0,
        source="headers",
    )


def window(acceptance: Acceptance | None = None, tokens: int = 2000, **metrics: float) -> Measurement:
    return Measurement(
        workload=WorkloadRef(name="generate", sha256="0"),
        launch=1,
        window=1,
        started_at=0,
        duration_s=1,
        completed=8,
        failed=0,
        total_input_tokens=0,
        total_output_tokens=tokens,
        metrics=metrics,
        acceptance=acceptance,
    )


def rows(**facts):
    base = {
        "engine": "0.26.0",
        "shape": SHAPE,
        "card": find_card("NVIDIA GH200 480GB"),
        "weights": stored(30.8),
    }
    return {found.name: found for found in speed_rows(AuditFacts(**(base | facts)))}


@pytest.mark.parametrize(
    ("gb", "tok_s", "verdict"),
    [
        (55.5, 63.1, "agrees"),
        (30.8, 63.1, "slow path?"),
        (30.8, 120.0, "agrees"),
        (30.8, 140.0, "impossible"),
    ],
)
def test_the_pass_ceiling_asks_which_weights_were_read(gb, tok_s, verdict) -> None:
    """63.1 tok/s on a 4 TB/s card is near the ceiling in 16 bits and half of it in 8."""
    found = rows(weights=stored(gb), windows=(window(decode_tok_s=tok_s),))["pass ceiling"]
    assert found.verdict == verdict
    assert found.expected == pytest.approx(4e12 / (gb * 1e9))


def test_context_is_read_too() -> None:
    short, long = (
        rows(windows=(window(decode_tok_s=60.0),), prompt_tokens=tokens, in_flight=8)["pass ceiling"].expected
        for tokens in (0, 32_768)
    )
    assert long == pytest.approx(4e12 / (30.8e9 + 8 * 32_768 * 65_536))
    assert long < short


def test_small_models_are_bound_by_launches_and_not_called_slow() -> None:
    assert rows(weights=stored(1), windows=(window(decode_tok_s=400.0),))["pass ceiling"].verdict == "agrees"


def test_drafting_raises_the_ceiling_of_tokens_and_not_of_passes() -> None:
    found = rows(k=4, method="mtp", windows=(window(decode_tok_s=175.0, passes_s=60.0),))
    assert found["token ceiling"].verdict == "agrees"
    assert found["token ceiling"].expected == pytest.approx(5 * found["pass ceiling"].expected)
    fast = rows(k=4, method="mtp", windows=(window(decode_tok_s=700.0, passes_s=60.0),))
    assert fast["token ceiling"].verdict == "impossible"


@pytest.mark.parametrize(
    ("method", "k", "drafts", "accepted", "made", "requests", "steps"),
    [
        ("ngram", 4, 64, 218, 520, 9, 310),
        ("ngram", 8, 40, 234, 520, 9, 286),
        ("mtp", 2, 126, 0, 128, 2, 128),
        ("draft_model", 3, 32, 96, 128, 2, 34),
    ],
)
def test_real_draft_counters_add_up_and_doubled_ones_do_not(method, k, drafts, accepted, made, requests, steps) -> None:
    """Counters of vllm 0.32.0 on a CPU, 64 tokens a request."""
    counters = {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_accepted_tokens": accepted,
        "spec_decode_num_accepted_tokens_per_pos": accepted,
        "generation_tokens": made,
        "request_success": requests,
        "iteration_tokens_total_count": steps,
    }
    assert rows(k=k, method=method, counters=counters)["tokens per pass"].verdict == "agrees"
    twice = counters | {"spec_decode_num_accepted_tokens": 2 * accepted}
    assert rows(k=k, method=method, counters=twice)["tokens per pass"].finding == (accepted > 0)


def test_passes_without_drafts_are_not_counted_among_many_streams() -> None:
    counters = {
        "spec_decode_num_drafts": 9.0,
        "generation_tokens": 520.0,
        "iteration_tokens_total_count": 310.0,
    }
    assert rows(k=4, method="ngram", counters=counters, in_flight=8)["tokens per pass"].verdict == "cannot tell"


@pytest.mark.parametrize(
    ("counts", "method", "verdict", "words"),
    [
        ((90, 70, 50), "mtp", "agrees", "Falls"),
        ((20, 4, 1), "mtp", "premise differs", "does not match"),
        ((20, 4, 1), "ngram", "agrees", "Falls"),
        ((90, 95, 50), "mtp", "impossible", "cannot be accepted more often"),
        ((180, 140, 100), "mtp", "impossible", "more than always"),
    ],
)
def test_acceptance_falls_with_the_position(counts, method, verdict, words) -> None:
    seen = Acceptance(drafts=100, draft_tokens=300, accepted_tokens=sum(counts), accepted_per_position=counts)
    found = rows(k=3, method=method, windows=(window(seen),))["acceptance by position"]
    assert found.verdict == verdict
    assert words in found.sentence


def test_drafts_beyond_a_drafters_block_are_named() -> None:
    seen = Acceptance(drafts=100, draft_tokens=1000, accepted_tokens=40, accepted_per_position=(4,) * 10)
    found = rows(k=10, method="dspark", drafter_block=8, windows=(window(seen),))["acceptance by position"]
    assert "k = 10 is beyond the drafter's block of 8" in found.sentence


def test_a_prefill_beyond_the_cards_arithmetic_came_from_a_cache() -> None:
    found = rows(windows=(window(prefill_tok_s=6266.0),), prompt_tokens=16_000)["prefill ceiling"]
    assert found.verdict == "agrees"
    assert 15_000 < found.expected < 20_000
    cached = rows(windows=(window(prefill_tok_s=62_660.0),), prompt_tokens=16_000)["prefill ceiling"]
    assert cached.verdict == "impossible"
    assert "prefix cache" in cached.sentence


def test_two_clocks_on_the_same_tokens_agree_on_a_real_engine() -> None:
    # vllm 0.32.0 on a CPU: four requests of 200 tokens, each timed by both sides.
    name = "request_time_per_output_token_seconds"
    counters = {f"{name}_sum": 0.08314500645728592, f"{name}_count": 4.0}
    ours = (20.123771829145685 + 19.39465461809068 + 22.148245291456494 + 21.42477615577844) / 4
    assert rows(counters=counters, windows=(window(mean_tpot_ms=ours),))["clock"].verdict == "agrees"
    assert rows(counters=counters, windows=(window(mean_tpot_ms=1.05 * ours),))["clock"].verdict == "report differs"


def test_tokens_that_the_server_never_made_are_noticed() -> None:
    assert rows(counters={"generation_tokens": 2000.0}, windows=(window(),))["output tokens"].verdict == "agrees"
    assert rows(counters={"generation_tokens": 900.0}, windows=(window(),))["output tokens"].finding
    busy = {"counters": {"generation_tokens": 2600.0}, "windows": (window(),)}
    assert rows(**busy)["output tokens"].finding
    assert not rows(**busy, in_flight=8)["output tokens"].finding


def test_without_a_known_card_nothing_is_claimed() -> None:
    found = rows(card=find_card("Radeon 7"), windows=(window(decode_tok_s=1e6, prefill_tok_s=1e9),))
    assert {found[name].verdict for name in ("pass ceiling", "token ceiling", "prefill ceiling")} == {"cannot tell"}
