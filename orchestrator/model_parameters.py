"""Counts a model's parameters from its config: what every pass reads, what is routed, what a drafter adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .model_config import Fields

__all__ = ["Counts", "Family", "count_parameters", "head_dim", "linear_widths", "mamba_widths"]


class Family(NamedTuple):
    """What a family of architectures has and its config does not say; `moe` names its sparse layer."""

    name: str
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_query: bool = False
    norms: int = 2
    moe: str = ""


class Counts(NamedTuple):
    """Parameters of the layers, without embeddings: read always, routed over all layers, of one MTP layer."""

    always: int
    routed: int
    experts: int
    per_token: int
    draft: int


def count_parameters(text: Fields, family: Family, kinds: Sequence[str]) -> Counts:
    """Over layers of the kinds `full`, `sliding`, `state` and `none` (feed-forward alone)."""
    hidden = text.integer("hidden_size")
    mixer = {"state": _state_mixer(text) if "state" in kinds else 0, "none": 0}
    mixer["full"] = mixer["sliding"] = _attention_mixer(text, family)
    gates = 2 if family.name == "nemotron_h" else 3
    dense = gates * hidden * text.integer("intermediate_size", "shared_intermediate_size")
    beside, expert, experts, per_token = _experts(text, family)
    sparse = sum(_is_sparse(text, family, layer) for layer in range(len(kinds))) if experts else 0
    plain = kinds.count("none") if family.name == "nemotron_h" else len(kinds) - sparse
    norms = family.norms * hidden
    always = sum(mixer[kind] + norms for kind in kinds) + plain * dense + sparse * beside
    # A multi-token-prediction layer: one more layer, a projection of two hidden states, three norms.
    last = beside + expert * experts if experts else dense
    draft = mixer["full"] + last + norms + 2 * hidden * hidden + 3 * hidden
    return Counts(always, sparse * expert * experts, experts, per_token, draft)


def head_dim(text: Fields) -> int:
    named = text.maybe_integer("head_dim")
    return named or max(1, text.integer("hidden_size") // text.integer("num_attention_heads"))


def linear_widths(text: Fields) -> tuple[int, int, int]:
    """Of a gated delta net: key width, value width, kernel."""
    key = text.integer("linear_num_key_heads") * text.integer("linear_key_head_dim")
    value = text.integer("linear_num_value_heads") * text.integer("linear_value_head_dim")
    return key, value, text.integer("linear_conv_kernel_dim", default=4)


def mamba_widths(text: Fields) -> tuple[int, int, int, int]:
    """Of a Mamba-2 layer: inner width, heads, width of both group projections, kernel."""
    heads = text.integer("mamba_n_heads", "mamba_num_heads")
    if "mamba_head_dim" in text:
        inner = heads * text.integer("mamba_head_dim")
    else:
        inner = text.integer("mamba_expand", "expand", default=2) * text.integer("hidden_size")
    groups = text.integer("mamba_n_groups", "n_groups", default=1)
    side = 2 * groups * text.integer("mamba_d_state", "ssm_state_size")
    return inner, heads, side, text.integer("mamba_d_conv", "conv_kernel", default=4)


def _is_sparse(text: Fields, family: Family, layer: int) -> bool:
    if family.moe == "deepseek":
        every = text.integer("moe_layer_freq", default=1)
        return layer >= text.integer("first_k_dense_replace", default=0, low=0) and layer % every == 0
    dense = layer in (text.items("mlp_only_layers", int) or ())
    return not dense and (layer + 1) % text.integer("decoder_sparse_step", default=1) == 0


def _experts(text: Fields, family: Family) -> tuple[int, int, int, int]:
    """Of a sparse layer: parameters beside the experts, of one expert, experts, experts a token uses."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = text.integer(*names, default=0, low=0, high=100_000)
    if not family.moe or not experts:
        return 0, 0, 0, 0
    hidden = text.integer("hidden_size")
    size = text.integer("moe_intermediate_size", "intermediate_size")
    expert, beside = 3 * hidden * size, hidden * experts
    if family.moe == "qwen":
        shared = text.integer("shared_expert_intermediate_size", default=0, low=0)
        beside += 3 * hidden * shared + (hidden if shared else 0)
    elif family.moe == "deepseek":
        beside += expert * text.integer("n_shared_experts", default=0, low=0)
        beside += experts if text.text("topk_method") == "noaux_tc" else 0
    elif family.moe == "granite":
        beside += 3 * hidden * text.integer("shared_intermediate_size")
    elif family.moe == "gpt_oss":
        expert, beside = expert + 2 * size + hidden, beside + experts
    return beside, expert, experts, text.integer("num_experts_per_tok", high=experts)


def _attention_mixer(text: Fields, family: Family) -> int:
    hidden, queries = text.integer("hidden_size"), text.integer("num_attention_heads")
    if family.name == "deepseek":
        return _latent_mixer(text, hidden, queries)
    dim = head_dim(text)
    kv = 2 * text.integer("num_key_value_heads", "num_attention_heads") * dim
    query = queries * dim * (2 if family.gated_query else 1)
    biased = text.flag("attention_bias")
    total = hidden * (query + kv) + queries * dim * hidden
    total += query + kv if family.qkv_bias or biased else 0
    total += hidden if biased and family.name != "qwen2" else 0
    total += 2 * dim if family.qk_norm else 0
    return total + (queries if family.name == "gpt_oss" else 0)


def _latent_mixer(text: Fields, hidden: int, queries: int) -> int:
    rank, rope = text.integer("kv_lora_rank"), text.integer("qk_rope_head_dim")
    nope, value = text.integer("qk_nope_head_dim"), text.integer("v_head_dim")
    low = text.maybe_integer("q_lora_rank")
    query = hidden * low + low + low * queries * (nope + rope) if low else hidden * queries * (nope + rope)
    return query + hidden * (rank + rope) + rank + rank * queries * (nope + value) + queries * value * hidden


def _state_mixer(text: Fields) -> int:
    hidden = text.integer("hidden_size")
    if "linear_num_value_heads" in text:
        key, value, kernel = linear_widths(text)
        heads = text.integer("linear_num_value_heads")
        inside = (2 * key + value) * kernel + 2 * heads + text.integer("linear_value_head_dim")
        return hidden * (2 * key + 2 * value + 2 * heads) + inside + value * hidden
    inner, heads, side, kernel = mamba_widths(text)
    bias = inner + side if text.flag("mamba_conv_bias", text.flag("use_conv_bias", default=True)) else 0
    inside = (inner + side) * kernel + bias + 3 * heads + inner
    return hidden * (2 * inner + side + heads) + inside + inner * hidden
