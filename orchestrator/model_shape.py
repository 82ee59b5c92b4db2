"""What a config.json says of a model: layers that keep KV, layers that keep a state, parameters, drafters."""

from __future__ import annotations

from typing import Literal

from trackers.records import Frozen

from .errors import PlanError
from .model_config import Fields
from .model_parameters import Family, count_parameters, head_dim, linear_widths, mamba_widths

__all__ = ["Attention", "ModelShape", "State", "describe"]

Kind = Literal["full", "sliding", "state", "none"]
FULL: Kind = "full"
SLIDING: Kind = "sliding"
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("full_attention", "attention", "*"), "full"),
    "sliding_attention": "sliding",
    **dict.fromkeys(("linear_attention", "mamba", "M"), "state"),
    **dict.fromkeys(("mlp", "-"), "none"),
}
FAMILIES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM"), Family("llama")),
    **dict.fromkeys(("Qwen2ForCausalLM", "MiMoForCausalLM"), Family("qwen2", qkv_bias=True)),
    "Qwen3ForCausalLM": Family("qwen3", qk_norm=True),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", qkv_bias=True, moe="qwen"),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", qk_norm=True, moe="qwen"),
    "Qwen3NextForCausalLM": Family("qwen3_next", qk_norm=True, gated_query=True, moe="qwen"),
    **dict.fromkeys(
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        Family("qwen3_5", qk_norm=True, gated_query=True),
    ),
    **dict.fromkeys(
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        Family("qwen3_5", qk_norm=True, gated_query=True, moe="qwen"),
    ),
    "MixtralForCausalLM": Family("mixtral", moe="mixtral"),
    **dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), Family("deepseek", moe="deepseek")),
    "Gemma2ForCausalLM": Family("gemma2", norms=4),
    **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), Family("gemma3", qk_norm=True, norms=4)),
    "GptOssForCausalLM": Family("gpt_oss", qkv_bias=True, moe="gpt_oss"),
    "BambaForCausalLM": Family("bamba"),
    "GraniteMoeHybridForCausalLM": Family("granite_hybrid", moe="granite"),
    "NemotronHForCausalLM": Family("nemotron_h", norms=1),
}


class Attention(Frozen):
    """Layers whose memory grows with the sequence, up to a `window` in tokens where there is one.

    `width` counts elements per token and head, keys and values together. A latent cache (MLA) is one head
    that every rank of a tensor-parallel group holds whole: `replicated`.
    """

    layers: int
    heads: int
    width: int
    window: int | None = None
    replicated: bool = False


class State(Frozen):
    """Layers that keep a state of fixed size: `conv_dim` x (`kernel` - 1) and `recurrent` elements each."""

    layers: int
    conv_dim: int
    kernel: int
    recurrent: int
    dtype: str = "auto"


class ModelShape(Frozen):
    """A model as arithmetic sees it; `notes` name what is not known or not counted.

    `always` are the parameters that every pass reads whole (the head, but of an untied table only a row),
    `routed` those of all routed experts together, of which a token reads `experts_per_token` / `experts`.
    """

    architecture: str
    family: str
    dtype: str = "auto"
    quantization: str = ""
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0
    query_width: int = 0
    max_model_len: int | None = None
    attention: tuple[Attention, ...] = ()
    state: State | None = None
    drafter: Attention | None = None
    draft_parameters: int = 0
    tied: bool = False
    parameters: int | None = None
    always: int | None = None
    routed: int = 0
    experts: int = 0
    experts_per_token: int = 0
    notes: tuple[str, ...] = ()

    @property
    def active(self) -> int | None:
        """Parameters that one token's pass reads; None where the architecture is not known."""
        share = self.routed * self.experts_per_token // self.experts if self.experts else 0
        return None if self.always is None else self.always + share


def describe(config: Fields) -> ModelShape:
    """The shape of a model; an architecture that is not known yields a shape that says so and counts nothing.

    Raises:
        PlanError: a field has an impossible type or value, or is missing.
    """
    architecture = (config.items("architectures", str) or (config.text("model_type", "?"),))[0][:80]
    text = config.section("text_config") if "text_config" in config else config
    family = FAMILIES.get(architecture)
    if family is None:
        note = f"{architecture} is not a known architecture: nothing of it is counted"
        return ModelShape(architecture=architecture, family="unknown", notes=(note,))
    kinds = _kinds(text, family, text.integer("num_hidden_layers", high=10_000))
    full, sliding = _attention(text, family, kinds)
    drafts = text.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0, low=0, high=100)
    counts = count_parameters(text, family, kinds)
    hidden, vocabulary = text.integer("hidden_size"), text.integer("vocab_size")
    tied = text.flag("tie_word_embeddings", config.flag("tie_word_embeddings", family.name.startswith("gemma")))
    always = counts.always + vocabulary * hidden + hidden
    return ModelShape(
        architecture=architecture,
        family=family.name,
        dtype=_dtype(text, config),
        quantization=config.section("quantization_config").text("quant_method"),
        layers=len(kinds),
        hidden=hidden,
        vocabulary=vocabulary,
        query_width=text.integer("num_attention_heads") * head_dim(text),
        max_model_len=_max_len(text, family),
        attention=tuple(group for group in (full, sliding) if group.layers),
        state=_state(text, family, kinds.count("state")),
        drafter=full.model_copy(update={"layers": drafts}) if drafts else None,
        draft_parameters=drafts * counts.draft,
        tied=tied,
        parameters=always + counts.routed + (0 if tied else vocabulary * hidden),
        always=always,
        routed=counts.routed,
        experts=counts.experts if counts.routed else 0,
        experts_per_token=counts.per_token,
        notes=("the vision part is not counted",) if "vision_config" in config else (),
    )


def _dtype(text: Fields, config: Fields) -> str:
    found = [fields.text(name) for fields in (text, config) for name in ("dtype", "torch_dtype")]
    return next((name.removeprefix("torch.") for name in found if name), "auto")


def _kinds(text: Fields, family: Family, layers: int) -> tuple[Kind, ...]:
    named = text.items("layer_types", str) or text.items("layers_block_type", str)
    if "hybrid_override_pattern" in text:
        named = tuple(text.text("hybrid_override_pattern"))
    if named is not None:
        if len(named) != layers or not set(named) <= KINDS.keys():
            raise text.broken("layer_types", f"{layers} known kinds of layer")
        return tuple(KINDS[name] for name in named)
    if family.name in ("qwen3_next", "qwen3_5"):
        return _every(layers, text.integer("full_attention_interval", default=4), "state")
    if family.name == "bamba":
        full = set(text.items("attn_layer_indices", int) or ())
        return tuple("full" if layer in full else "state" for layer in range(layers))
    if family.name in ("gemma2", "gemma3"):
        default = 2 if family.name == "gemma2" else 6
        return _every(layers, text.integer("sliding_window_pattern", default=default), "sliding")
    qwen = "qwen" in family.name
    if not text.maybe_integer("sliding_window") or not text.flag("use_sliding_window", not qwen):
        return (FULL,) * layers
    first = text.integer("max_window_layers", default=0, low=0) if qwen else 0
    return (FULL,) * min(first, layers) + (SLIDING,) * max(0, layers - first)


def _every(layers: int, interval: int, others: Kind) -> tuple[Kind, ...]:
    return tuple(others if (layer + 1) % interval else "full" for layer in range(layers))


def _attention(text: Fields, family: Family, kinds: tuple[Kind, ...]) -> tuple[Attention, Attention]:
    if family.name == "deepseek":
        width = text.integer("kv_lora_rank") + text.integer("qk_rope_head_dim")
        full = Attention(layers=len(kinds), heads=1, width=width, replicated=True)
        return full, full.model_copy(update={"layers": 0})
    heads = text.integer("num_key_value_heads", "num_attention_heads")
    full = Attention(layers=kinds.count("full"), heads=heads, width=2 * head_dim(text))
    window = text.integer("sliding_window") if "sliding" in kinds else None
    return full, full.model_copy(update={"layers": kinds.count("sliding"), "window": window})


def _state(text: Fields, family: Family, layers: int) -> State | None:
    if not layers:
        return None
    if "linear_num_value_heads" in text:
        key, value, kernel = linear_widths(text)
        conv, recurrent = 2 * key + value, value * text.integer("linear_key_head_dim")
    else:
        inner, _, side, kernel = mamba_widths(text)
        conv, recurrent = inner + side, inner * text.integer("mamba_d_state", "ssm_state_size")
    # Where the config names no dtype, engines keep Nemotron's state in float32 and others' as the model's.
    default = "float32" if family.name == "nemotron_h" else "auto"
    dtype = text.text("mamba_ssm_dtype") or text.text("mamba_ssm_cache_dtype", default)
    return State(layers=layers, conv_dim=conv, kernel=kernel, recurrent=recurrent, dtype=dtype)


def _max_len(text: Fields, family: Family) -> int | None:
    longest = text.maybe_integer("max_position_embeddings")
    rope = text.section("rope_scaling" if "rope_scaling" in text else "rope_parameters")
    kind = rope.text("rope_type") or rope.text("type")
    if longest is None or kind not in ("yarn", "linear", "dynamic") or family.name == "gemma3":
        return longest
    if "factor" not in rope:
        raise PlanError(f"{rope.where}: {kind} has no factor.", "Use a complete config.json of the model.")
    trained = rope.maybe_integer("original_max_position_embeddings") if kind == "yarn" else None
    return int((trained or longest) * rope.number("factor", 1.0))
