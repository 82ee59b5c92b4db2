"""Bytes that real models must read and keep, against what is published and what real engines printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model_arithmetic import (
    element_bytes,
    kv_bytes_per_token,
    pool_layout,
    prefill_flops_per_token,
    reported_tokens,
    state_bytes,
    weigh,
)
from orchestrator.model_config import Fields, Tensor, read_config
from orchestrator.model_shape import ModelShape, describe

FIXTURES = Path(__file__).parent.parent / "fixtures"
GIB = 2**30


def shape_of(name: str) -> ModelShape:
    return describe(Fields(json.loads((FIXTURES / "configs" / f"{name}.json").read_text()), name))


TINY = describe(read_config(FIXTURES / "models" / "tiny-hybrid"))


@pytest.mark.parametrize(
    ("name", "bytes_per_token", "source"),
    [
        ("deepseek-v3", 70_272, "DeepSeek-V3 hardware paper, 70.272 KB"),
        ("qwen2.5-72b", 327_680, "DeepSeek-V3 hardware paper, 327.680 KB"),
        ("llama-3.1-405b", 516_096, "DeepSeek-V3 hardware paper, 516.096 KB"),
        ("llama-3.1-8b", 131_072, "engine guides, 128 KiB"),
        ("llama-3.1-70b", 327_680, "engine guides, 320 KiB"),
        ("qwen2.5-7b", 57_344, "from the config, 56 KiB"),
        ("qwen3-8b", 147_456, "from the config, 144 KiB"),
        ("qwen3-30b-a3b", 98_304, "from the config, 96 KiB"),
        ("mixtral-8x7b", 131_072, "engine guides, 128 KiB"),
        ("deepseek-v2-lite", 31_104, "paper, 576 elements a layer"),
        ("qwen3-next-80b-a3b", 24_576, "12 of 48 layers"),
        ("hybrid-27b", 65_536, "16 of 64 layers"),
        ("bamba-9b", 12_288, "3 of 32 layers"),
        ("nemotron-h-8b", 16_384, "report, 4 attention layers"),
    ],
)
def test_kv_bytes_per_token_in_16_bits(name, bytes_per_token, source) -> None:
    assert kv_bytes_per_token(shape_of(name), 2) == bytes_per_token, source


def test_tensor_parallel_ranks_share_heads_until_one_is_left_and_never_a_latent_cache() -> None:
    assert kv_bytes_per_token(shape_of("llama-3.1-70b"), 2, 8) == 327_680 // 8
    assert kv_bytes_per_token(shape_of("llama-3.1-70b"), 2, 16) == 327_680 // 8
    assert kv_bytes_per_token(shape_of("deepseek-v3"), 2, 8) == 70_272
    assert kv_bytes_per_token(shape_of("hybrid-27b"), 1) == 32_768


def test_a_state_has_its_own_dtype_and_grows_with_the_draft() -> None:
    hybrid = shape_of("hybrid-27b")
    assert state_bytes(hybrid, "bfloat16") == 10_240 * 3 * 2 + 786_432 * 4
    assert 48 * state_bytes(hybrid, "bfloat16") / 2**20 == pytest.approx(147, rel=0.005)
    assert state_bytes(TINY, "bfloat16") == 70_144
    assert state_bytes(TINY, "bfloat16", k=2) == 73_216  # the engine said: padded by 11.89 % to 81 920
    assert state_bytes(hybrid, "bfloat16", tensor_parallel=4) * 4 == state_bytes(hybrid, "bfloat16")
    assert state_bytes(shape_of("qwen3-8b"), "bfloat16") == 0
    assert state_bytes(TINY, "int3") is None


@pytest.mark.parametrize(
    ("version", "caching", "length", "tokens"),
    [
        ((0, 26, 0), False, 4096, 5_368_627),
        ((0, 32, 0), True, 4096, 4_129_713),
        ((0, 32, 0), False, 4096, 5_368_627),
        ((0, 27, 1), True, 4096, 4_129_713),
        ((0, 32, 0), False, 2048, 3_834_733),
        ((0, 19, 1), False, 4096, 13_107 // 4 * 640),
    ],
)
def test_one_gibibyte_of_a_tiny_hybrid_as_real_engines_reported_it(version, caching, length, tokens) -> None:
    layout = pool_layout(TINY, model_dtype="bfloat16", block_tokens=128, aligned=caching)
    assert (layout.block_tokens, layout.groups) == (640, 4)
    assert layout.blocks(GIB) == 13_107
    assert reported_tokens(version, layout, 13_107, length) == tokens


def test_a_drafter_adds_layers_and_a_state_for_each_draft_token() -> None:
    layout = pool_layout(TINY, model_dtype="bfloat16", block_tokens=128, k=2, drafter=TINY.drafter)
    assert reported_tokens((0, 32, 0), layout, layout.blocks(GIB), 2048) == 1_342_054  # real log


@pytest.mark.parametrize(
    ("pool_bytes", "drafter", "tokens"),
    [(GIB, False, 23_296), (300 * 2**20, False, 6_784), (GIB, True, 11_648)],
    ids=["1 GiB", "300 MiB", "itself as drafter"],
)
@pytest.mark.parametrize("version", [(0, 19, 1), (0, 26, 0), (0, 32, 0)])
def test_a_dense_model_on_cpu_as_real_engines_reported_it(version, pool_bytes, drafter, tokens) -> None:
    shape = shape_of("smollm2-135m")
    extra = shape.attention[0] if drafter else None
    layout = pool_layout(shape, model_dtype="float32", block_tokens=128, drafter=extra)
    assert reported_tokens(version, layout, layout.blocks(pool_bytes), 2048) == tokens


def test_a_hopper_card_reported_what_arithmetic_gives() -> None:
    # An H200 printed these for 53.97 GiB (dense 8B) and for 41.4 GiB (27B hybrid, state in 16 bits, 32k).
    dense = pool_layout(shape_of("qwen3-8b"), model_dtype="bfloat16")
    assert reported_tokens((0, 26, 0), dense, dense.blocks(53.97 * GIB), 40_960) == 392_992
    hybrid = shape_of("hybrid-27b")
    hybrid = hybrid.model_copy(update={"state": hybrid.state.model_copy(update={"dtype": "auto"})})
    layout = pool_layout(hybrid, model_dtype="bfloat16")
    assert reported_tokens((0, 26, 0), layout, layout.blocks(41.4 * GIB), 32_768) == 653_432


def test_windowed_layers_hold_no_more_than_their_window() -> None:
    layout = pool_layout(shape_of("gemma-3-27b"), model_dtype="bfloat16")
    assert (layout.full_groups, layout.window_groups) == (1, 6)
    assert layout.request_blocks(131_072, 2048) == 8192 + 6 * (-(-(1023 + 2048) // 16) + 1)
    assert layout.request_blocks(160) == 10 + 6 * 11


def test_kinds_of_nearly_equal_number_share_one_size_of_group() -> None:
    assert pool_layout(shape_of("gpt-oss-20b"), model_dtype="bfloat16").groups == 2
    shape = shape_of("gpt-oss-20b")
    layout = pool_layout(shape, model_dtype="bfloat16", drafter=shape.attention[0].model_copy(update={"layers": 1}))
    assert (layout.groups, layout.block_bytes) == (2, 13 * 16 * 8 * 128 * 2)


def test_what_is_not_known_has_no_layout() -> None:
    assert pool_layout(TINY, model_dtype="bfloat16", cache_dtype="octave_3") is None
    assert pool_layout(ModelShape(architecture="X", family="unknown"), model_dtype="bfloat16") is None
    strange = TINY.drafter.model_copy(update={"width": 999})
    assert pool_layout(TINY, model_dtype="bfloat16", drafter=strange) is None


def test_weights_from_the_config_know_their_formats() -> None:
    plain = weigh(shape_of("llama-3.1-8b"))
    assert plain.total == 2 * 8_030_261_248
    assert plain.total - plain.per_pass() == 2 * 128_256 * 4096
    fp8 = weigh(shape_of("deepseek-v3"))
    assert fp8.per_pass() == pytest.approx(37e9, rel=0.05)
    assert weigh(shape_of("gpt-oss-20b")) is None
    assert weigh(ModelShape(architecture="X", family="unknown", dtype="bfloat16")) is None


def test_more_tokens_a_pass_touch_more_experts_and_never_more_than_all() -> None:
    moe = weigh(shape_of("mixtral-8x7b"))
    reads = [moe.per_pass(tokens) for tokens in (1, 2, 4, 64)]
    assert reads == sorted(reads)
    assert reads[0] == pytest.approx(2 * 12.75e9, rel=0.01)
    assert reads[-1] == pytest.approx(moe.always + moe.routed, rel=1e-6)


def test_weights_from_headers_count_each_tensor_in_its_own_format() -> None:
    shape = shape_of("mixtral-8x7b")
    tensors = [
        Tensor("model.embed_tokens.weight", "BF16", 10, 20),
        Tensor("lm_head.weight", "BF16", 10, 20),
        Tensor("model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 8, 8),
        Tensor("model.layers.0.self_attn.q_proj.weight_scale_inv", "F32", 1, 4),
        Tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight", "U8", 16, 16),
        Tensor("model.layers.32.eh_proj.weight", "BF16", 5, 10),
        Tensor("mtp.fc.weight", "BF16", 5, 10),
        Tensor("model.visual.blocks.0.weight", "BF16", 50, 100),
    ]
    found = weigh(shape, tensors)
    assert (found.always, found.routed, found.table) == (32, 16, 20)
    assert (found.drafter, found.beside, found.source) == (20, 100, "headers")
    assert found.per_pass() == 32 + 16 * 2 / 8
    tied = weigh(shape, [tensors[0], tensors[2]])
    assert (tied.always, tied.table) == (28, 0)


def test_experts_without_a_known_number_of_them_are_not_guessed() -> None:
    tensors = [Tensor("model.layers.0.mlp.experts.0.weight", "BF16", 1, 2)]
    assert weigh(shape_of("llama-3.1-8b"), tensors) is None


def test_dtypes_have_sizes_or_are_unknown() -> None:
    assert element_bytes("auto", "torch.float32".removeprefix("torch.")) == 4
    assert [element_bytes(name) for name in ("fp8_e5m2", "half", "float", "auto", "int3")] == [
        1,
        2,
        4,
        None,
        None,
    ]


def test_prefill_costs_two_operations_a_weight_and_grows_with_the_prompt() -> None:
    shape = shape_of("llama-3.1-8b")
    short, long = (prefill_flops_per_token(shape, tokens) for tokens in (0, 16_000))
    assert short == pytest.approx(2 * 6.98e9, rel=0.01)
    assert long - short == 2 * 32 * 4096 * 16_000
    assert prefill_flops_per_token(ModelShape(architecture="X", family="unknown"), 1) is None
