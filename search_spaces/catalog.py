"""Catalog: the ready-made knobs and spaces, each knob with its sentence, flag, versions and nulls."""

from __future__ import annotations

from typing import Any

from .knob import Knob, normal_flag

__all__ = ["CATALOG", "READY_MADE", "catalog_flags"]

_ALL = ("acceptance_length", "kv_tokens")
_GIB = 2**30


def _knob(name: str, says: str, values: Any, **more: Any) -> tuple[str, Knob]:
    if "env" not in more:
        more.setdefault("flag", normal_flag(name))
    given = values if isinstance(values, dict) else {"choices": values}
    return name, Knob(name=name, says=says, **given, **more)


def _doubling(low: int, high: int) -> dict[str, Any]:
    return {"low": low, "high": high, "log": True}


_BATCHING = dict(
    [
        _knob(
            "max_num_batched_tokens",
            "Tokens a step may hold: more fill the device in prefill and delay decoding requests.",
            _doubling(1024, 16384), default=8192, nulls=("acceptance_length",), needs=("activation",),
        ),
        _knob(
            "max_num_seqs",
            "Requests that run at once; the rest wait.",
            _doubling(8, 1024), default=256, nulls=("acceptance_length",), needs=("activation", "kv"),
        ),
        _knob(
            "long_prefill_token_threshold",
            "Longest piece of one prompt in a step beside other requests; 0 is no limit.",
            (0, 512, 1024, 2048), nulls=_ALL,
        ),
        _knob(
            "prefill_schedule_interval",
            "New prompts are let in every so many steps: more keep decoding steady and delay first tokens.",
            (1, 2, 4, 8), since="0.24.0", nulls=_ALL,
        ),
        _knob(
            "watermark",
            "Share of the KV pool kept free when a request is let in: fewer evictions, fewer requests.",
            (0, 0.01, 0.05), since="0.24.0", nulls=_ALL,
        ),
        _knob(
            "performance_mode",
            "What the engine's own defaults lean to; throughput doubles batch limits left unset.",
            ("balanced", "interactivity", "throughput"), nulls=("acceptance_length",),
        ),
    ]
)  # fmt: skip

_MEMORY = dict(
    [
        _knob(
            "gpu_memory_utilization",
            "Share of the device's memory the engine takes; what weights and activations leave is KV pool.",
            {"low": 0.7, "high": 0.95, "step": 0.05}, default=0.9,
            nulls=("acceptance_length", "prefill_tok_s"), needs=("device",),
        ),
        _knob(
            "kv_cache_dtype",
            "Type that keys and values are kept in: fp8 holds twice the tokens and changes results a little.",
            ("auto", "fp8"),
        ),
        _knob(
            "enable_prefix_caching",
            "Keeps the KV of prompts for those that start alike; its default differs between versions.",
            (False, True), nulls=("acceptance_length",),
        ),
        _knob(
            "kv_offloading_size",
            "Host memory in GiB that takes KV blocks pushed out of the device.",
            ("default", 8, 32), nulls=_ALL, needs=("host",),
        ),
        _knob(
            "cpu_offload_gb",
            "Weights in GiB kept in host memory and read over the bus in each pass: room for KV, slower.",
            (0, 4, 8), nulls=("acceptance_length",), needs=("host",),
        ),
    ]
)  # fmt: skip

_KERNELS = dict(
    [
        _knob(
            "attention_backend",
            "Which attention kernels run.",
            ("default", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"),
        ),
        _knob(
            "optimization_level",
            "How much is compiled: 0 starts fast, 2 runs faster, 3 may take longer still to start.",
            (2, 0, 1, 3), nulls=("acceptance_length",),
        ),
        _knob(
            "cudagraph_mode",
            "Which steps replay a recorded graph: whole decode steps, pieces between attention, or none.",
            ("default", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"),
            flag="--compilation-config.cudagraph_mode", nulls=("acceptance_length",),
        ),
        _knob(
            "async_scheduling",
            "Plans the next step while this one runs; the default is on where the rest allows it.",
            ("default", False), nulls=_ALL,
        ),
        _knob(
            "model_runner_v2",
            "The newer runner (1) or the older (0); unset, version, model and drafter decide.",
            ("default", 0, 1), env="VLLM_USE_V2_MODEL_RUNNER",
        ),
        _knob(
            "flashinfer_sampler",
            "Whether sampling uses FlashInfer's kernels; the default changed in 0.21.0.",
            ("default", 0, 1), env="VLLM_USE_FLASHINFER_SAMPLER", nulls=("prefill_tok_s", "kv_tokens"),
        ),
        _knob(
            "marlin_atomic_add",
            "Whether quantised kernels sum with atomics: faster on small batches, order of sums not fixed.",
            ("default", 0, 1), env="VLLM_MARLIN_USE_ATOMIC_ADD", nulls=("kv_tokens",),
        ),
    ]
)  # fmt: skip

_SPECULATIVE = dict(
    [
        _knob(
            "adaptive_verification",
            "Checks fewer draft tokens where the drafter is not confident.",
            (False, True), flag="--speculative-config.enable_adaptive_verification", since="0.28.0",
            only_if={"drafter": ("dspark",)}, nulls=("prefill_tok_s",),
        )
    ]
)  # fmt: skip

# Known by name, in no ready-made space: they repeat another knob, need a model of a kind, or rule others out.
_MORE = dict(
    [
        _knob("kv_cache_memory_bytes", "Size of the KV pool; set, the share of memory is ignored.",
              _doubling(_GIB, 64 * _GIB), nulls=("acceptance_length", "prefill_tok_s"), needs=("device",)),
        _knob("enable_chunked_prefill", "Splits long prompts over steps.", (True, False), nulls=_ALL),
        _knob("max_num_partial_prefills", "Prompts in pieces.", (1, 2, 4), until="0.27.1", nulls=_ALL),
        _knob("max_long_partial_prefills", "Long ones of them.", (1, 2), until="0.27.1", nulls=_ALL),
        _knob("max_num_scheduled_tokens", "Tokens scheduled a step, draft slots left out.",
              _doubling(1024, 16384), since="0.26.0", nulls=_ALL),
        _knob("max_num_active_seqs", "Requests admitted, at unchanged graph sizes.",
              _doubling(8, 1024), since="0.31.0", nulls=_ALL),
        _knob("stream_interval", "Tokens a streamed chunk carries.", (1, 4, 10), nulls=_ALL),
        _knob("block_size", "Tokens in a KV block.", ("default", 16, 32, 64), nulls=("acceptance_length",)),
        _knob("enforce_eager", "No compilation, no graphs.", (False, True), nulls=("acceptance_length",)),
        _knob("moe_backend", "Kernels of expert layers.", ("auto", "triton", "cutlass", "deep_gemm")),
        _knob("linear_backend", "Kernels of quantised linear layers.",
              ("auto", "cutlass", "marlin", "machete"), since="0.22.1", nulls=("kv_tokens",)),
        _knob("mamba_backend", "Kernels of state-space layers.",
              ("default", "triton", "flashinfer"), since="0.20.0", nulls=("kv_tokens",)),
    ]
)  # fmt: skip

CATALOG: dict[str, Knob] = {**_BATCHING, **_MEMORY, **_KERNELS, **_SPECULATIVE, **_MORE}
READY_MADE: dict[str, dict[str, Knob]] = {
    "vllm-speculative": _SPECULATIVE,
    "vllm-batching": _BATCHING,
    "vllm-memory": _MEMORY,
    "vllm-kernels": _KERNELS,
}


def catalog_flags() -> dict[str, tuple[str | None, str | None]]:
    """Flag or variable of each knob -> (first version that has it, first that has it no more)."""
    return {str(knob.flag or knob.env): (knob.since, knob.until) for knob in CATALOG.values()}
