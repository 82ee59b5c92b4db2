"""Catalog: the ready-made knobs and spaces, each knob with its sentence, flag, versions and nulls."""

from __future__ import annotations

from typing import Any

from .knob import Knob, normal_flag

__all__ = ["CATALOG", "READY_MADE", "catalog_flags"]

_GIB = 2**30
_ACCEPTANCE = {"nulls": ("acceptance_length",)}
_SCHEDULING = {"nulls": ("acceptance_length", "kv_tokens")}
_POOL = {"nulls": ("acceptance_length", "prefill_tok_s"), "needs": ("device",)}


def _doubling(low: int, high: int) -> dict[str, Any]:
    return {"low": low, "high": high, "log": True}


def _knobs(*rows: tuple[str, str, Any, dict[str, Any]]) -> dict[str, Knob]:
    """Knobs from (name, says, values, the rest); a knob without a variable is the flag of its name."""
    found = {}
    for name, says, values, more in rows:
        target = {} if "env" in more or "flag" in more else {"flag": normal_flag(name)}
        given = values if isinstance(values, dict) else {"choices": values}
        found[name] = Knob(name=name, says=says, **given, **target, **more)
    return found


# fmt: off
READY_MADE: dict[str, dict[str, Knob]] = {
    "vllm-speculative": _knobs(
        ("adaptive_verification", "Checks fewer draft tokens where the drafter is not sure.", (False, True),
         {"flag": "--speculative-config.enable_adaptive_verification", "since": "0.28.0",
          "only_if": {"drafter": ("dspark",)}, "nulls": ("prefill_tok_s",)}),
    ),
    "vllm-batching": _knobs(
        ("max_num_batched_tokens", "Tokens a step may hold: more speed prefill and delay decoding requests.",
         _doubling(1024, 16384), {"default": 8192, "needs": ("activation",), **_ACCEPTANCE}),
        ("max_num_seqs", "Requests that run at once; the rest wait.",
         _doubling(8, 1024), {"default": 256, "needs": ("activation", "kv"), **_ACCEPTANCE}),
        ("long_prefill_token_threshold", "Longest piece of a prompt beside other requests; 0: no limit.",
         (0, 512, 1024, 2048), _SCHEDULING),
        ("prefill_schedule_interval", "Steps from one with prompts to the next: more keep decoding steady.",
         (1, 2, 4, 8), {"since": "0.24.0", **_SCHEDULING}),
        ("watermark", "Share of the KV pool kept free when a request is let in: fewer evictions.",
         (0, 0.01, 0.05), {"since": "0.24.0", **_SCHEDULING}),
        ("performance_mode", "What defaults lean to; throughput doubles batch limits left unset.",
         ("balanced", "interactivity", "throughput"), _ACCEPTANCE),
    ),
    "vllm-memory": _knobs(
        ("gpu_memory_utilization", "Share of device memory taken; what the model leaves is KV pool.",
         {"low": 0.7, "high": 0.95, "step": 0.05}, {"default": 0.9, **_POOL}),
        ("kv_cache_dtype", "Type of keys and values: fp8 holds twice the tokens, results change a little.",
         ("auto", "fp8"), {}),
        ("enable_prefix_caching", "Keeps the KV of prompts for those that start alike; defaults differ.",
         (False, True), _ACCEPTANCE),
        ("kv_offloading_size", "Host memory in GiB for KV blocks pushed out of the device.",
         ("default", 8, 32), {"needs": ("host",), **_SCHEDULING}),
        ("cpu_offload_gb", "Weights in GiB kept in host memory and read in each pass: room for KV, slower.",
         (0, 4, 8), {"needs": ("host",), **_ACCEPTANCE}),
    ),
    "vllm-kernels": _knobs(
        ("attention_backend", "Which attention kernels run.",
         ("default", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"), {}),
        ("optimization_level", "How much is compiled: 0 starts fastest, 2 runs fast.",
         (2, 0, 1, 3), _ACCEPTANCE),
        ("cudagraph_mode", "Which steps replay a recorded graph: whole decode steps, pieces, or none.",
         ("default", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"),
         {"flag": "--compilation-config.cudagraph_mode", **_ACCEPTANCE}),
        ("async_scheduling", "Plans the next step while this one runs; default: wherever the rest allows it.",
         ("default", False), _SCHEDULING),
        ("model_runner_v2", "The newer runner (1) or the older (0); unset, the engine decides.",
         ("default", 0, 1), {"env": "VLLM_USE_V2_MODEL_RUNNER"}),
        ("flashinfer_sampler", "Whether sampling uses FlashInfer's kernels; the default changed in 0.21.0.",
         ("default", 0, 1), {"env": "VLLM_USE_FLASHINFER_SAMPLER", "nulls": ("prefill_tok_s", "kv_tokens")}),
        ("marlin_atomic_add", "Whether quantised kernels sum with atomics, in an order that is not fixed.",
         ("default", 0, 1), {"env": "VLLM_MARLIN_USE_ATOMIC_ADD", "nulls": ("kv_tokens",)}),
    ),
}

# Known by name, in no ready-made space: they repeat another knob, need a kind of model, or rule others out.
_MORE = _knobs(
    ("kv_cache_memory_bytes", "Size of the KV pool; the share of memory is ignored then.",
     _doubling(_GIB, 64 * _GIB), _POOL),
    ("enable_chunked_prefill", "Splits long prompts over steps.", (True, False), _SCHEDULING),
    ("max_num_partial_prefills", "Prompts in pieces at once.", (1, 2, 4), {"until": "0.27.1", **_SCHEDULING}),
    ("max_long_partial_prefills", "Long ones among them.", (1, 2), {"until": "0.27.1", **_SCHEDULING}),
    ("max_num_scheduled_tokens", "Tokens scheduled a step, draft slots left out.",
     _doubling(1024, 16384), {"since": "0.26.0", **_SCHEDULING}),
    ("max_num_active_seqs", "Requests admitted, at unchanged graph sizes.",
     _doubling(8, 1024), {"since": "0.31.0", **_SCHEDULING}),
    ("stream_interval", "Tokens that a streamed chunk carries.", (1, 4, 10), _SCHEDULING),
    ("block_size", "Tokens in a KV block.", ("default", 16, 32, 64), _ACCEPTANCE),
    ("enforce_eager", "No compilation and no graphs.", (False, True), _ACCEPTANCE),
    ("moe_backend", "Kernels of expert layers.", ("auto", "triton", "cutlass", "deep_gemm"), {}),
    ("linear_backend", "Kernels of quantised linear layers.",
     ("auto", "cutlass", "marlin", "machete"), {"since": "0.22.1", "nulls": ("kv_tokens",)}),
    ("mamba_backend", "Kernels of state-space layers.",
     ("default", "triton", "flashinfer"), {"since": "0.20.0", "nulls": ("kv_tokens",)}),
)
# fmt: on

CATALOG: dict[str, Knob] = {name: knob for space in (*READY_MADE.values(), _MORE) for name, knob in space.items()}


def catalog_flags() -> dict[str, tuple[str | None, str | None]]:
    """Flag or variable of each knob -> (first version that has it, first that has it no more)."""
    return {str(knob.flag or knob.env): (knob.since, knob.until) for knob in CATALOG.values()}
