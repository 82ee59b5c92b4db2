"""Bytes that a model must read and keep: weights per pass, KV per token, states, the blocks of a pool."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackers.records import Frozen

from .model_config import Tensor
from .model_shape import Attention, ModelShape

__all__ = [
    "PoolLayout",
    "Weights",
    "element_bytes",
    "kv_bytes_per_token",
    "pool_layout",
    "prefill_flops_per_token",
    "reported_tokens",
    "state_bytes",
    "weigh",
]

ELEMENT_BYTES = {
    **dict.fromkeys(("float32", "float"), 4),
    **dict.fromkeys(("float16", "half", "bfloat16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), 1),
}
DRAFT_NAME = re.compile(r"(^|\.)mtp[._]")
LAYER_NAME = re.compile(r"\blayers\.(\d+)\.")
VISION_NAME = re.compile(r"(^|\.)(visual|vision_tower|vision_model|multi_modal_projector)\.")


class Weights(Frozen):
    """Bytes of weights by how a pass reads them; `source` is `headers` of the files or `config`."""

    always: int
    routed: int
    table: int
    drafter: int
    beside: int
    experts: int
    experts_per_token: int
    source: str

    @property
    def total(self) -> int:
        """Everything stored, drafter and vision included."""
        return self.always + self.routed + self.table + self.drafter + self.beside

    def per_pass(self, tokens: int = 1) -> float:
        """Bytes one pass reads for that many tokens, with experts drawn evenly and independently."""
        if not self.experts:
            return float(self.always)
        share = 1 - (1 - self.experts_per_token / self.experts) ** tokens
        return self.always + self.routed * share


class PoolLayout(Frozen):
    """How an engine cuts its KV pool (one rank): blocks of `block_bytes` over equal groups of layers.

    A request holds `full_groups` blocks per `block_tokens` tokens, `state_blocks` whatever its length, and
    for windowed layers no more than the window and the tokens in flight need.
    """

    block_tokens: int
    block_bytes: int
    full_groups: int
    state_groups: int = 0
    state_blocks: int = 0
    window_groups: int = 0
    window: int = 0

    @property
    def groups(self) -> int:
        return self.full_groups + self.state_groups + self.window_groups

    def blocks(self, pool_bytes: float) -> int:
        return int(pool_bytes // self.block_bytes)

    def request_blocks(self, tokens: int, in_flight: int = 0) -> int:
        """Blocks a request of that many tokens may come to hold."""
        kept = min(self.window - 1 + in_flight, tokens) if self.window_groups else 0
        windowed = self.window_groups * (-(-kept // self.block_tokens) + 1)
        return self.full_groups * -(-tokens // self.block_tokens) + self.state_blocks + windowed


def element_bytes(dtype: str, model_dtype: str = "auto") -> int | None:
    """Bytes of one element of a cache dtype; `auto` is the model's; None where the format is not known."""
    name = dtype.removeprefix("torch.")
    return ELEMENT_BYTES.get(model_dtype if name == "auto" else name)


def weigh(shape: ModelShape, tensors: Iterable[Tensor] = ()) -> Weights | None:
    """Weights by tensor where headers are given, else by the config; None where neither tells."""
    found = tuple(tensors)
    if found:
        return _weigh_headers(shape, found)
    base = element_bytes(shape.dtype)
    if base is None or shape.always is None or shape.quantization not in ("", "fp8"):
        return None
    linear = 1 if shape.quantization == "fp8" else base
    head = shape.vocabulary * shape.hidden
    return Weights(
        always=(shape.always - head) * linear + head * base,
        routed=shape.routed * linear,
        table=0 if shape.tied else head * base,
        drafter=shape.draft_parameters * linear,
        beside=0,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        source="config",
    )


def _weigh_headers(shape: ModelShape, tensors: tuple[Tensor, ...]) -> Weights | None:
    sums = dict.fromkeys(("always", "routed", "table", "drafter", "beside"), 0)
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        sums[_role(tensor.name, shape)] += tensor.nbytes
    if sums["routed"] and not shape.experts:
        return None
    if not any("lm_head" in name for name in names):  # tied: the table is the head, read whole
        sums["always"], sums["table"] = sums["always"] + sums["table"], 0
    top = {"experts": shape.experts, "experts_per_token": shape.experts_per_token}
    return Weights(**sums, **top, source="headers")


def _role(name: str, shape: ModelShape) -> str:
    layer = LAYER_NAME.search(name)
    if VISION_NAME.search(name):
        return "beside"
    if DRAFT_NAME.search(name) or (layer and shape.layers and int(layer[1]) >= shape.layers):
        return "drafter"
    if ".experts." in name:
        return "routed"
    return "table" if "embed_tokens" in name or "backbone.embeddings" in name else "always"


def _token_bytes(attention: Attention, element: float, tensor_parallel: int) -> int:
    heads = attention.heads if attention.replicated else max(1, attention.heads // tensor_parallel)
    return int(heads * attention.width * element)


def kv_bytes_per_token(shape: ModelShape, element: float, tensor_parallel: int = 1) -> int:
    """Bytes that one more token adds on one rank, over the layers that keep all of a sequence."""
    kept = (group for group in shape.attention if group.window is None)
    return sum(group.layers * _token_bytes(group, element, tensor_parallel) for group in kept)


def state_bytes(shape: ModelShape, model_dtype: str, tensor_parallel: int = 1, k: int = 0) -> int | None:
    """Bytes of one state layer on one rank, 0 without any; k draft tokens lengthen the convolution."""
    if shape.state is None:
        return 0
    conv, recurrent = element_bytes("auto", model_dtype), element_bytes(shape.state.dtype, model_dtype)
    if conv is None or recurrent is None:
        return None
    width = shape.state.conv_dim // tensor_parallel
    return width * (shape.state.kernel - 1 + k) * conv + shape.state.recurrent // tensor_parallel * recurrent


def pool_layout(
    shape: ModelShape,
    *,
    model_dtype: str,
    cache_dtype: str = "auto",
    block_tokens: int = 16,
    tensor_parallel: int = 1,
    k: int = 0,
    drafter: Attention | None = None,
    aligned: bool = False,
) -> PoolLayout | None:
    """The layout an engine gives a model; None where a format or a mixture of layers is not known.

    `block_tokens` is raised in steps of itself until a block can hold one layer's state. `drafter` are the
    layers that a drafter adds. `aligned`: prefix caching keeps states too, one more block per state group.
    """
    element = element_bytes(cache_dtype, model_dtype)
    state = state_bytes(shape, model_dtype, tensor_parallel, k)
    if element is None or state is None or not shape.attention:
        return None
    layers = (*shape.attention, drafter) if drafter else shape.attention
    pages = [(group.layers, _token_bytes(group, element, tensor_parallel)) for group in layers]
    counts = {"full": 0, "window": 0, "state": shape.state.layers if shape.state else 0}
    for group in layers:
        counts["full" if group.window is None else "window"] += group.layers
    present = [count for count in counts.values() if count]
    if len(present) > 1 and len({page for _, page in pages}) > 1:
        return None
    if state:
        block_tokens *= max(1, -(-state // (pages[0][1] * block_tokens)))
    # Engines give every group as many layers as the rarest kind has, or as the commonest if that is near.
    size = max(present) if max(present) < 1.5 * min(present) else min(present)
    groups = {kind: -(-count // size) for kind, count in counts.items()}
    token = size * pages[0][1] if len(present) > 1 else sum(count * page for count, page in pages)
    return PoolLayout(
        block_tokens=block_tokens,
        block_bytes=token * block_tokens,
        full_groups=groups["full"],
        state_groups=groups["state"],
        state_blocks=groups["state"] * ((2 if aligned else 1) + k),
        window_groups=groups["window"],
        window=next((group.window for group in shape.attention if group.window), 0),
    )


def reported_tokens(
    version: tuple[int, ...], layout: PoolLayout, blocks: int, max_model_len: int, in_flight: int = 0
) -> int:
    """The KV tokens that a version of vLLM prints for a pool of that many blocks.

    Before 0.20.2 the blocks were shared out over the groups; since then it is the number of full-length
    requests that fit, times their length, and so depends on `max_model_len`.
    """
    if version < (0, 20, 2):
        return blocks // layout.groups * layout.block_tokens
    return int(blocks / layout.request_blocks(max_model_len, in_flight) * max_model_len)


def prefill_flops_per_token(shape: ModelShape, prompt_tokens: float) -> float | None:
    """Floating-point operations per prompt token, attention averaged over the prompt; None if not known."""
    if shape.active is None:
        return None
    kept = sum(group.layers for group in shape.attention if group.window is None)
    body = shape.active - shape.vocabulary * shape.hidden  # the head runs for the last token alone
    return 2.0 * body + 2.0 * kept * shape.query_width * prompt_tokens
