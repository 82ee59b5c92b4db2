"""Counting by hand on models small enough to count."""

from __future__ import annotations

from orchestrator.model_config import Fields
from orchestrator.model_parameters import Family, count_parameters, head_dim, linear_widths, mamba_widths

TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}


def counted(family: Family, kinds=("full",), **more):
    return count_parameters(Fields(TINY | more, "tiny"), family, kinds)


def test_a_dense_layer_is_projections_feed_forward_and_norms() -> None:
    # q 8x8, k and v 8x4 each, o 8x8; three of 8x16; two norms of 8.
    assert counted(Family("llama")).always == 64 + 64 + 64 + 3 * 128 + 16


def test_biases_and_query_norms_are_counted_where_the_family_has_them() -> None:
    plain = counted(Family("llama")).always
    assert counted(Family("qwen2", qkv_bias=True)).always == plain + 16
    assert counted(Family("qwen3", qk_norm=True)).always == plain + 8
    assert counted(Family("llama"), attention_bias=True).always == plain + 16 + 8
    assert counted(Family("x", gated_query=True)).always == plain + 64


def test_routed_experts_are_apart_from_router_and_shared_expert() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
    counts = counted(Family("m", moe="qwen"), **experts, shared_expert_intermediate_size=4)
    assert counts.routed == 4 * 3 * 8 * 4
    assert counts.always == 192 + 16 + 4 * 8 + 3 * 8 * 4 + 8
    assert (counts.experts, counts.per_token) == (4, 2)


def test_named_dense_layers_and_every_other_layer_stay_dense() -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
    family = Family("m", moe="qwen")
    one = counted(family, ("full",) * 4, **experts).routed // 4
    assert counted(family, ("full",) * 4, **experts, mlp_only_layers=[0, 3]).routed == 2 * one
    assert counted(family, ("full",) * 4, **experts, decoder_sparse_step=2).routed == 2 * one
    deep = Family("m", moe="deepseek")
    assert counted(deep, ("full",) * 4, **experts, first_k_dense_replace=3).routed == one


def test_widths_follow_from_heads() -> None:
    assert head_dim(Fields(TINY, "tiny")) == 4
    assert head_dim(Fields(TINY | {"head_dim": 7}, "tiny")) == 7
    linear = {f"linear_{name}": 2 for name in ("num_key_heads", "key_head_dim", "value_head_dim")}
    assert linear_widths(Fields(linear | {"linear_num_value_heads": 3}, "tiny")) == (4, 6, 4)
    mamba = {"mamba_n_heads": 4, "mamba_d_state": 3, "hidden_size": 8, "mamba_n_groups": 2}
    assert mamba_widths(Fields(mamba, "tiny")) == (16, 4, 12, 4)
