"""How a simulated engine starts: its flags, the lines it logs, and the texts with which it fails."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .simulated_spec import Simulation
from .simulated_surface import GIB, Surface, release

__all__ = [
    "StartFailed", "cache_labels", "fail", "failure_of", "log", "parse", "refuse_bad_values", "report_pool",
    "say_start",
]  # fmt: skip

# fmt: off
_SWITCHES = (
    "enable-prefix-caching", "enable-chunked-prefill", "async-scheduling", "enforce-eager",
    "disable-log-stats", "trust-remote-code", "enable-auto-tool-choice", "enable-log-requests",
)
_FLAGS = (
    "api-key", "attention-backend", "attention-config", "block-size", "chat-template", "compilation-config",
    "cpu-offload-gb", "dtype", "generation-config", "gpu-memory-utilization", "hf-overrides", "host",
    "kernel-config", "kv-cache-dtype", "kv-cache-memory-bytes", "kv-offloading-size", "load-format",
    "long-prefill-token-threshold", "mamba-cache-mode", "max-long-partial-prefills", "max-model-len",
    "max-num-batched-tokens", "max-num-partial-prefills", "max-num-scheduled-tokens", "max-num-seqs", "model",
    "num-gpu-blocks-override", "optimization-level", "performance-mode", "port", "quantization", "revision",
    "reasoning-parser", "seed", "served-model-name", "speculative-config", "stream-interval",
    "tensor-parallel-size", "tokenizer", "tool-call-parser", "watermark",
)
# fmt: on
_SINCE = {"watermark": (0, 24), "max-num-scheduled-tokens": (0, 26)}
_UNTIL = {"max-num-partial-prefills": (0, 27, 1), "max-long-partial-prefills": (0, 27, 1)}
_SCALES = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
_METHODS = ("ngram", "suffix", "draft_model", "eagle", "eagle3", "extract_hidden_states", "mtp")
_STAGES = {
    "out_of_memory_weights": "load_model",
    "out_of_memory_activation": "profile_run",
    "out_of_memory_graphs": "capture_model",
}


class StartFailed(Exception):
    """The text that the log ends with; whether the engine core said it, and in which function."""

    def __init__(self, text: str, *, core: bool = False, frame: str = "main") -> None:
        super().__init__(text)
        self.text, self.core, self.frame = text, core, frame


def parse(argv: Sequence[str], version: str) -> dict[str, Any]:
    """What the command line sets, as destination -> value, no defaults; ends as argparse does."""
    known = [name for name in _FLAGS if _SINCE.get(name, (0,)) <= release(version) < _UNTIL.get(name, (1,))]
    args: dict[str, Any] = {"command": next(iter(argv), "")}
    unknown, words = [], deque(argv[1:])
    while words:
        word = words.popleft()
        name, _, value = word.removeprefix("--").replace("_", "-").partition("=")
        switch, on = name.removeprefix("no-"), not name.startswith("no-")
        if name == "help":
            _end(0, "\n".join(f"  --{name}" for name in (*known, *_SWITCHES)))
        if not word.startswith("-") and "model_tag" not in args:
            args["model_tag"] = word
        elif word.startswith("--") and switch in _SWITCHES:
            args[switch.replace("-", "_")] = on
        elif word.startswith("--") and name in known and (value or words):
            value = word.partition("=")[2] or words.popleft()
            args[name.replace("-", "_")] = _value(value)
        else:
            unknown.append(word)
    if unknown or args["command"] not in ("serve", "check"):
        _end(
            2,
            f"usage: vllm [-h] [-v] {{serve}} ...\nvllm: error: unrecognized arguments: {' '.join(unknown)}",
        )
    return args


def _end(code: int, text: str) -> NoReturn:
    (sys.stderr if code else sys.stdout).write(f"{text}\n")
    raise SystemExit(code)


def _value(text: str) -> Any:
    """JSON where it is (so numbers and objects too), `4k` and `4K` as vLLM reads them, else the text."""
    if found := re.fullmatch(r"([\d.]+)([kKmMgG])", text):
        return int(float(found[1]) * _SCALES[found[2]])
    try:
        return json.loads(text)
    except ValueError:
        return text


def log(role: str, where: str, text: str, level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stdout.write(f"({role} pid={os.getpid()}) {level} {stamp} [{where}] {text}\n")
    sys.stdout.flush()


def _invalid(kind: str, text: str) -> StartFailed:
    head = f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {kind}\n"
    return StartFailed(f"{head}{text}\n    For further information visit https://errors.pydantic.dev/")


def refuse_bad_values(args: Mapping[str, Any], surface: Surface) -> None:
    """Raises StartFailed for what vLLM's own classes refuse before anything is loaded."""
    speculation, version = args.get("speculative_config") or {}, release(surface.version)
    methods = [*_METHODS, *["dflash"] * (version >= (0, 20)), *["dspark"] * (version >= (0, 25))]
    if speculation and speculation.get("method") not in methods:
        raise _invalid("SpeculativeConfig", f"method\n  Input should be {str(methods)[1:-1]}")
    if speculation and speculation.get("num_speculative_tokens", 1) < 1:
        raise _invalid("SpeculativeConfig", "num_speculative_tokens\n  Input should be greater than 0")
    if args.get("gpu_memory_utilization", 0) > 1:
        raise _invalid("CacheConfig", "gpu_memory_utilization\n  Input should be less than or equal to 1")
    if (length := args.get("max_model_len", 0)) > surface.max_model_len:
        text = f"User-specified max_model_len ({length}) is greater than the derived max_model_len"
        raise _invalid("ModelConfig", f"  Value error, {text} (max_position_embeddings={surface.max_model_len})")


def failure_of(cause: str, values: Mapping[str, Any], surface: Surface) -> StartFailed:
    """What the log says when a start ends for one of the surface's causes."""
    budget, seqs = (surface.value(values, name) for name in ("max_num_batched_tokens", "max_num_seqs"))
    if cause == "unsupported_drafter":
        if values.get("drafter") == "suffix":
            return StartFailed("ImportError: Arctic Inference is required for suffix decoding.")
        return StartFailed(f"NotImplementedError: Unsupported speculative method: '{values.get('drafter')}'")
    if cause == "batch_below_seqs":
        text = f"({budget}) must be greater than or equal to max_num_seqs ({seqs})."
        return _invalid("SchedulerConfig", f"  Value error, max_num_batched_tokens {text}")
    if cause == "draft_slots_over_budget":
        left = budget - surface.slots(values) * seqs
        text = f"max_num_scheduled_tokens is set to {left} based on the speculative decoding settings, "
        text += "which does not allow any tokens to be scheduled."
        if release(surface.version) >= (0, 28):
            text = "VllmConfig does not have enough slots to schedule a token and support the speculative "
            text += f"decoding settings. Got max_num_batched_tokens={budget}."
        return _invalid("VllmConfig", f"  Value error, {text}")
    if cause == "out_of_memory_kv":
        return StartFailed("ValueError: No available memory for the cache blocks.", core=True)
    if cause == "kv_below_max_model_len":
        return StartFailed(_too_long(values, surface), core=True)
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    text += f"of {surface.memory_gib:.2f} GiB of which 0.02 GiB is free."
    return StartFailed(text, core=True, frame=_STAGES[cause])


def _too_long(values: Mapping[str, Any], surface: Surface) -> str:
    length, have = int(surface.value(values, "max_model_len")), surface.blocks(values)
    block_gib = surface.block_size * surface.bytes_per_token(values) / GIB
    needed = surface.request_blocks(values, length) * block_gib
    fits = max(int((have - surface.request_blocks(values, 0)) * surface.block_size), 0)
    word = "models's" if release(surface.version) < (0, 22) else "model's"
    return (
        f"ValueError: To serve at least one request with the {word} max seq len ({length}), ({needed:.2f} GiB"
        " KV cache is needed, which is larger than the available KV cache memory "
        f"({have * block_gib:.2f} GiB). "
        f"Based on the available memory, the estimated maximum model length is {fits}."
    )


def fail(failure: StartFailed) -> NoReturn:
    """Print it as vLLM does (the parent's own last line says nothing) and end with 1."""
    trace = [
        "Traceback (most recent call last):",
        f'  File "vllm/v1/engine/core.py", line 1, in {failure.frame}',
    ]
    text = failure.text
    if failure.core:
        for line in ("EngineCore failed to start.", *trace, text):
            log("EngineCore", "core.py:1510", line, "ERROR")
        text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        text += "{'EngineCore': 1}"
    sys.stderr.write("\n".join((trace[0], text)) + "\n")
    sys.stderr.flush()
    os._exit(1)


def say_start(args: Mapping[str, Any], values: Mapping[str, Any], surface: Surface) -> None:
    """The lines up to where weights are loaded."""
    version, model, length = surface.version, values["model"], surface.value(values, "max_model_len")
    shown = {name: value for name, value in args.items() if name not in ("command", "api_key")}
    drafter = f"method='{values.get('drafter')}', model=None, num_spec_tokens={values.get('k')}"
    engine = {
        "model": repr(model),
        "speculative_config": f"SpeculativeConfig({drafter})" if values.get("drafter") else None,
        "max_seq_len": length,
        "kv_cache_dtype": values.get("kv_cache_dtype", "auto"),
        "enable_prefix_caching": bool(surface.value(values, "enable_prefix_caching")),
        "enable_chunked_prefill": True,
    }
    budget = surface.value(values, "max_num_batched_tokens")
    lines = [
        ("api_utils.py:286", f"version {version}+simulated"),
        ("api_utils.py:286", f"non-default args: {shown}"),
        ("model.py:733", "Resolved architecture: SimulatedForCausalLM"),
        ("model.py:2152", f"Using max model len {length}"),
        ("scheduler.py:1", f"Chunked prefill is enabled with max_num_batched_tokens={budget}."),
    ]
    if release(version) < (0, 27):
        word = "enabled" if values.get("async_scheduling", True) else "disabled"
        lines.append(("vllm.py:790", f"Asynchronous scheduling is {word}."))
    if release(version) >= (0, 29):
        lines.append(("vllm.py:725", "Using V2 Model Runner"))
    for where, text in lines:
        log("APIServer", where, text)
    config = ", ".join(f"{name}={value}" for name, value in engine.items())
    log(
        "EngineCore",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{version}+simulated) with config: {config}",
    )
    loaded = f"Model loading took {surface.weights_gib:.2f} GiB memory and 0.100000 seconds"
    log("EngineCore", "gpu_model_runner.py:1", loaded)


def report_pool(values: Mapping[str, Any], simulation: Simulation, took_s: float) -> None:
    """The lines about the KV pool, in the form and by the formula of the version."""
    surface, version = simulation.surface, release(simulation.surface.version)
    tokens, concurrency = _reported(values, simulation)
    length = int(surface.value(values, "max_model_len"))
    size = f"GPU KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x"
    lines = [f"Available KV cache memory: {surface.pool_gib(values):.2f} GiB"]
    lines += [f"{size}, {most}"] if version >= (0, 28) else [size, most]
    took = f"{took_s:.2f} {'seconds' if version < (0, 20) else 's'}"
    for line in (*lines, f"init engine (profile, create kv cache, warmup model) took {took}"):
        log("EngineCore", "kv_cache_utils.py:2327", line)


def _reported(values: Mapping[str, Any], simulation: Simulation) -> tuple[int, float]:
    """Tokens and concurrency as the engine tells them, true or not."""
    surface = simulation.surface
    length, blocks = surface.value(values, "max_model_len"), surface.blocks(values)
    concurrency = blocks / surface.request_blocks(values, length)
    groups = 1 + surface.state_groups
    tokens = concurrency * length
    if release(surface.version) < (0, 20):
        tokens = blocks // groups * surface.block_size
    if "state_counted_as_attention" in simulation.lies:
        tokens, concurrency = tokens / groups, concurrency / groups
    return int(tokens), concurrency


def cache_labels(values: Mapping[str, Any], simulation: Simulation) -> dict[str, str]:
    """The labels of cache_config_info that this version has."""
    surface = simulation.surface
    tokens, concurrency = _reported(values, simulation)
    labels = {
        "block_size": surface.block_size * (2 if "wrong_block_size" in simulation.lies else 1),
        "cache_dtype": values.get("kv_cache_dtype", "auto"),
        "enable_prefix_caching": bool(surface.value(values, "enable_prefix_caching")),
        "gpu_memory_utilization": surface.value(values, "gpu_memory_utilization"),
        "kv_cache_memory_bytes": values.get("kv_cache_memory_bytes"),
        "num_gpu_blocks": int(surface.blocks(values)),
    }
    if release(surface.version) >= (0, 24):
        labels |= {"kv_cache_size_tokens": tokens, "kv_cache_max_concurrency": concurrency}
    return {name: str(value) for name, value in labels.items()}
