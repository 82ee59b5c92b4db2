"""Shapes of real models against what their makers publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.model_config import Fields
from orchestrator.model_shape import ModelShape, describe

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"

# name: parameters as published, by whom; KV layers, state layers, longest sequence
PUBLISHED = [
    ("llama-3.1-8b", 8_030_261_248, "hub safetensors", 32, 0, 131_072),
    ("llama-3.1-70b", 70_553_706_496, "hub safetensors", 80, 0, 131_072),
    ("llama-3.1-405b", 405_853_388_800, "hub safetensors", 126, 0, 131_072),
    ("smollm2-135m", 134_515_008, "hub safetensors", 30, 0, 8_192),
    ("mistral-7b-v0.1", 7_241_732_096, "hub safetensors", 32, 0, 32_768),
    ("qwen2.5-0.5b", 494_032_768, "hub safetensors", 24, 0, 32_768),
    ("qwen2.5-7b", 7_615_616_512, "hub safetensors", 28, 0, 32_768),
    ("qwen2.5-72b", 72_706_203_648, "hub safetensors", 80, 0, 32_768),
    ("qwen3-0.6b", 596_049_920, "model library", 28, 0, 40_960),
    ("qwen3-8b", 8_190_735_360, "hub safetensors", 36, 0, 40_960),
    ("qwen3-30b-a3b", 30_532_122_624, "hub safetensors", 48, 0, 40_960),
    ("qwen3-next-80b-a3b", 79_674_391_296, "model library", 12, 36, 262_144),
    ("hybrid-27b", 26_895_998_464, "model library", 16, 48, 262_144),
    ("mixtral-8x7b", 46_702_792_704, "hub safetensors", 32, 0, 32_768),
    ("deepseek-v2-lite", 15_706_484_224, "hub safetensors", 27, 0, 163_840),
    ("deepseek-v3", 671_026_419_200, "report, 671B", 61, 0, 163_840),
    ("gemma-2-9b", 9_241_705_984, "hub safetensors", 42, 0, 8_192),
    ("gemma-3-1b", 999_885_952, "hub safetensors", 26, 0, 32_768),
    ("gemma-3-27b", 27_009_346_304, "report, text part", 62, 0, 131_072),
    ("gpt-oss-20b", 20_914_757_184, "model card, 20.9B", 24, 0, 131_072),
    ("bamba-9b", 9_780_235_392, "hub, 9.78B", 3, 29, 262_144),
    ("nemotron-h-8b", 8_100_852_736, "report, 8.1B", 4, 24, 8_192),
    ("granite-4.0-h-tiny", 6_939_037_248, "hub, 6.94B", 4, 36, 131_072),
]


def shape_of(name: str, **changes: Any) -> ModelShape:
    values = json.loads((CONFIGS / f"{name}.json").read_text())
    return describe(Fields(values | changes, name))


@pytest.mark.parametrize(("name", "parameters", "source", "kv", "state", "longest"), PUBLISHED)
def test_a_real_config_gives_the_published_model(name, parameters, source, kv, state, longest) -> None:
    shape = shape_of(name)
    assert shape.parameters == parameters, source
    assert sum(group.layers for group in shape.attention) == kv
    assert (shape.state.layers if shape.state else 0) == state
    assert shape.max_model_len == longest


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # announcement, embeddings included
        ("qwen3-30b-a3b", 3.3),  # model card
        ("qwen3-next-80b-a3b", 3.9),  # model card says 3B activated beside embeddings and head
        ("deepseek-v2-lite", 2.66),  # paper's 2.4B leaves the embedding table out
        ("deepseek-v3", 37.6),  # report, 37B
        ("gpt-oss-20b", 4.19),  # model card's 3.61B leaves the embedding table out
    ],
)
def test_a_token_of_a_mixture_reads_the_published_active_parameters(name, billions) -> None:
    shape = shape_of(name)
    table = 0 if shape.tied else shape.vocabulary * shape.hidden
    assert (shape.active + table) / 1e9 == pytest.approx(billions, rel=0.025)


def test_gpt_oss_reads_what_its_card_says() -> None:
    assert shape_of("gpt-oss-20b").active == 3_608_307_264  # 3.61B


def test_a_multi_token_prediction_layer_is_counted_apart() -> None:
    shape = shape_of("deepseek-v3")
    shared = 2 * shape.vocabulary * shape.hidden
    assert (shape.draft_parameters + shared) / 1e9 == pytest.approx(14, rel=0.05)  # published: 14B with copies
    assert shape.drafter.layers == 1


def test_windowed_layers_are_told_from_full_ones() -> None:
    full, sliding = shape_of("gemma-3-27b").attention
    assert (full.layers, sliding.layers, sliding.window) == (10, 52, 1024)
    assert shape_of("mistral-7b-v0.1").attention[0].window == 4096
    assert shape_of("qwen2.5-7b").attention[0].window is None
    some = shape_of("qwen2.5-7b", use_sliding_window=True, max_window_layers=20)
    assert [(group.layers, group.window) for group in some.attention] == [(20, None), (8, 131_072)]


def test_a_vision_part_is_named_as_not_counted() -> None:
    assert shape_of("gemma-3-27b").notes == ("the vision part is not counted",)


def test_an_unknown_architecture_says_so_and_counts_nothing() -> None:
    shape = shape_of("llama-3.1-8b", architectures=["BrandNewForCausalLM"])
    assert (shape.family, shape.parameters, shape.active, shape.attention) == ("unknown", None, None, ())
    assert "BrandNewForCausalLM" in shape.notes[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_attention_heads": -3}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["telepathy"] * 32}, "layer_types"),
        ({"layer_types": [[]] * 32}, "layer_types"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": float("inf")}}, "factor"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"text_config": 7}, "text_config"),
        ({"architectures": [{"$ref": "#"}]}, "architectures"),
        ({"torch_dtype": ["bfloat16"]}, "torch_dtype"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_an_impossible_field_is_named(changes, field) -> None:
    with pytest.raises(PlanError, match=field):
        shape_of("llama-3.1-8b", **changes)


def test_a_hybrid_without_its_state_fields_is_refused() -> None:
    values = json.loads((CONFIGS / "qwen3-next-80b-a3b.json").read_text())
    del values["linear_num_value_heads"]
    with pytest.raises(PlanError, match="missing"):
        describe(Fields(values, "config.json"))
