"""Rows about memory, one engine's words at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.audit_facts import AuditFacts
from orchestrator.audit_pool import pool_rows
from orchestrator.card import find_card
from orchestrator.model_arithmetic import Weights
from orchestrator.model_config import Fields, read_config
from orchestrator.model_shape import describe

FIXTURES = Path(__file__).parent.parent / "fixtures"
TINY = describe(read_config(FIXTURES / "models" / "tiny-hybrid"))
DENSE = describe(
    Fields(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
        },
        "dense",
    )
)
GIB = 2**30


def rows(**facts):
    return {found.name: found for found in pool_rows(AuditFacts(**({"engine": "0.32.0", "shape": DENSE} | facts)))}


def test_a_cache_in_another_format_than_said_is_not_this_models_kv() -> None:
    said = {"kv_cache_gib": "10.00", "max_model_len": "8192"}
    half = {"num_gpu_blocks": str(2 * 5120), "block_size": "16", "cache_dtype": "auto"}
    found = rows(reported=said, cache_config=half)
    assert found["blocks"].verdict == "report differs"
    assert found["KV bytes per token"].reported == pytest.approx(65_536, rel=1e-3)
    assert found["KV bytes per token"].expected == 131_072
    right = rows(reported=said, cache_config=half | {"cache_dtype": "fp8"})
    assert right["KV bytes per token"].verdict == right["blocks"].verdict == "agrees"


def test_a_pool_larger_than_its_share_of_the_card_is_impossible() -> None:
    labels = {"num_gpu_blocks": "51200", "block_size": "16", "gpu_memory_utilization": "0.92"}
    said = {"kv_cache_gib": "100.00", "weights_gib": "15.0", "max_model_len": "8192"}
    assert rows(reported=said, cache_config=labels, card=find_card("x", 80 * GIB))["pool bytes"].verdict == "impossible"
    found = rows(reported=said, cache_config=labels, card=find_card("x", 141 * GIB))["pool bytes"]
    assert found.verdict == "agrees"
    assert found.expected == pytest.approx((141 * 0.92 - 15) * GIB)


def test_a_pool_smaller_than_one_full_length_request_is_a_latent_failure() -> None:
    labels = {"num_gpu_blocks": "15100", "block_size": "16"}
    found = rows(reported={"kv_cache_tokens": "241600", "max_model_len": "262144"}, cache_config=labels)
    assert found["full-length requests"].verdict == "impossible"
    assert "does not fit" in found["full-length requests"].sentence
    fits = rows(reported={"kv_cache_tokens": "241600", "max_model_len": "200000"}, cache_config=labels)
    assert fits["full-length requests"].verdict == "agrees"


def test_a_model_that_could_be_served_longer_than_the_pool_holds_is_noted() -> None:
    labels = {"num_gpu_blocks": "5000", "block_size": "16"}
    found = rows(reported={"kv_cache_tokens": "80000", "max_model_len": "8192"}, cache_config=labels)
    assert "The model's own 131072 tokens would not." in found["full-length requests"].sentence


def test_states_are_counted_only_where_a_model_has_them() -> None:
    said = {"kv_cache_gib": "1.00", "max_model_len": "4096", "max_concurrency": "1310.70"}
    labels = {"num_gpu_blocks": "13107", "block_size": "640"}
    found = rows(shape=TINY, model_dtype="bfloat16", reported=said, cache_config=labels)
    assert (found["state blocks"].reported, found["state blocks"].expected) == (3, 3)
    assert "state blocks" not in rows(reported=said, cache_config=labels)


def test_the_engines_own_cache_mode_decides_about_kept_states() -> None:
    labels = {"num_gpu_blocks": "13107", "block_size": "640", "enable_prefix_caching": "True"}
    facts = {"shape": TINY, "model_dtype": "bfloat16", "reported": {"max_model_len": "4096"}}
    assert rows(**facts, cache_config=labels)["state blocks"].expected == 6
    assert rows(**facts, cache_config=labels | {"mamba_cache_mode": "none"})["state blocks"].expected == 3


@pytest.mark.parametrize(("gib", "verdict"), [("7.6", "agrees"), ("15.1", "report differs")])
def test_loaded_weights_are_compared_with_a_ranks_share_of_the_files(gib, verdict) -> None:
    weights = Weights(
        always=15 * GIB,
        routed=0,
        table=GIB // 4,
        drafter=0,
        beside=0,
        experts=0,
        experts_per_token=0,
        source="headers",
    )
    assert rows(weights=weights, cards=2, reported={"weights_gib": gib})["weights loaded"].verdict == verdict


def test_weights_that_a_dtype_flag_widens_are_expected_wider() -> None:
    weights = Weights(
        always=15 * GIB,
        routed=0,
        table=0,
        drafter=0,
        beside=0,
        experts=0,
        experts_per_token=0,
        source="headers",
    )
    assert rows(weights=weights, model_dtype="float32")["weights loaded"].expected == 30


def test_an_unknown_model_gets_one_row_that_says_so() -> None:
    unknown = describe(Fields({"architectures": ["NewForCausalLM"]}, "x"))
    found = rows(shape=unknown)
    assert list(found) == ["KV pool"]
    assert "the architecture is not known" in found["KV pool"].sentence
    assert "cache format" in rows(cache_config={"cache_dtype": "octave_3"})["KV pool"].sentence
