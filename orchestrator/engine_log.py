"""What an engine says of itself in its log: the facts that took effect, and why it is not ready yet."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from .failures import clean, redact

__all__ = ["LABELS", "last_reason", "read_ends", "reported"]

LABELS = "cache."
"""Opens the names of what the server's own labels say, where they stand among the log's facts."""
REASON_CHARS = 100

# Name and pattern of its value; the last match wins. Without a mark: the same words in 0.19.1 to 0.33.0.
FACTS: tuple[tuple[str, str], ...] = (
    ("version", r"Initializing a V1 LLM engine \(v([^)]+)\)"),
    ("architecture", r"Resolved architecture: (\S+)"),
    ("max_model_len", r"Using max model len (\d+)"),
    ("max_num_batched_tokens", r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"),
    ("prefix_caching", r"Initializing a V1 LLM engine .*\benable_prefix_caching=(\w+)"),
    (
        "speculative_config",
        r"Initializing a V1 LLM engine .*?\bspeculative_config=(None|SpeculativeConfig\(.*?\)),",
    ),
    ("async_scheduling", r"Asynchronous scheduling is (\w+)\."),  # to 0.26.0
    (
        "attention_backend",
        r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend(?:\.| out of)",
    ),
    ("attention_backend", r"KV cache layout for (\w+) backend"),  # CPU 0.26
    ("weights_gib", r"Model loading took ([\d.]+) GiB(?: memory)? and [\d.]+ seconds"),
    ("weights_s", r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    ("weights_s", r"Loading weights took ([\d.]+) seconds"),
    ("kv_cache_gib", r"Available KV cache memory: (-?[\d.]+) GiB"),
    ("kv_cache_gib", r"reserved ([\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
    ("kv_cache_gib", r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"),  # CPU 0.26+
    ("kv_cache_gib", r"VLLM_CPU_KVCACHE_SPACE not set\. Using ([\d.]+) GiB"),  # CPU 0.19.1
    ("kv_cache_tokens", r"\w+(?: \+ host)? KV cache size: ([\d,]+) tokens"),  # GPU; any device 0.30+
    ("max_concurrency", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ("graphs_gib", r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB"),
    ("graphs_estimated_gib", r"Estimated CUDA graph memory: (-?[\d.]+) GiB"),
    ("compile_s", r"torch\.compile took ([\d.]+) s"),
    ("compile_s", r"took [\d.]+ s \(compilation: ([\d.]+) s"),  # 0.20.2+
    ("init_s", r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
    ("threads", r"VLLM_CPU_OMP_THREADS_BIND='([^']*)'"),  # CPU 0.26+
)

# A setting the engine changed by itself: name after `effective.`, pattern; group 1 is the value in effect.
CHANGES: tuple[tuple[str, str], ...] = (
    ("async_scheduling", r"Async(?:hronous)? scheduling (?:is )?not supported .*(disabled)"),
    ("attention_block_size", r"Setting attention block size to (\d+) tokens"),
    ("cudagraph_mode", r"Overriding cudagraph_mode from \S+ to (\w+)"),
    ("draft_max_model_len", r"Overriding draft model max model len from \d+ to (\d+)"),
    ("dtype", r"(?:Up|Down)?[Cc]asting torch\.\w+ to (torch\.\w+)"),
    ("mamba_cache_mode", r"Mamba cache mode is set to '(\w+)'"),
    ("max_model_len", r"Auto-fit max_model_len: reduced from \d+ to (\d+)"),
    ("max_model_len", r"reducing max_model_len to (\d+)"),  # 0.33+
    ("max_num_active_seqs", r"Overriding max_num_active_seqs from \d+ to (\d+)"),  # 0.33+
    ("max_num_batched_tokens", r"Raising max_num_batched_tokens from \d+ to (\d+)"),
    (
        "max_num_scheduled_tokens",
        r"max_num_scheduled_tokens is set to (-?\d+) based on the speculative",
    ),  # 0.20.2+
    ("model_runner", r"using the (V1) model runner instead"),  # 0.22.1+
    ("num_gpu_blocks", r"Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override=(\d+)"),
    ("num_speculative_tokens", r"Defaulted num_speculative_tokens to (\d+)"),
    ("num_speculative_tokens", r"falling back to static num_speculative_tokens=(\d+)"),  # 0.26+
    ("prefix_caching", r"(Disabling) prefix caching: "),  # 0.24+
    ("request_sampling", r"(min_p and logit_bias) parameters won't work"),
    ("speculative_method", r"is deprecated and replaced with (\w+)"),
    ("torch_threads", r"Reducing Torch threads from \d+ to (\d+)"),
    ("unknown_environment", r"Unknown vLLM environment variable detected: (\w+)"),
)
COMPILED = tuple(
    (name, re.compile(pattern))
    for name, pattern in (*FACTS, *((f"effective.{name}", pattern) for name, pattern in CHANGES))
)

# Lines that say nothing about where starting stands.
NOISE = re.compile(
    r"^$|^\s|^Traceback|Route: |Available routes|^\[Gloo\]|^\d[\d.]*:\d+ - \"|UserWarning|FutureWarning|"
    r"resource_tracker"
)
# A drafter's own model says these again, after the target's.
FIRST_WINS = ("architecture", "max_model_len")


def reported(log_text: str) -> dict[str, str]:
    """Facts by name, as the engine wrote them, thousands separators removed; what it did not say is absent.

    `effective.*` names are settings the engine changed by itself, with the value it went on with. A fact told
    in two ways by two of its processes keeps both (`enabled, disabled`).
    """
    found: dict[str, list[str]] = {}
    for raw in log_text.splitlines():
        text = clean(raw)[1]
        for name, pattern in COMPILED:
            match = pattern.search(text)
            if match is not None:
                found.setdefault(name, []).append(match.group(1))
    facts = {name: values[0 if name in FIRST_WINS else -1] for name, values in found.items()}
    if "async_scheduling" in found:
        facts["async_scheduling"] = ", ".join(dict.fromkeys(found["async_scheduling"]))
    if "version" in facts:
        facts["model_runner"] = "V2" if "Using V2 Model Runner" in log_text else "V1"
    if "kv_cache_tokens" in facts:
        facts["kv_cache_tokens"] = facts["kv_cache_tokens"].replace(",", "")
    return dict(sorted(facts.items()))


def last_reason(log_text: str) -> str:
    """The last line that says what the engine is doing, shortened; empty where there is none."""
    for raw in reversed(re.split(r"[\r\n]+", log_text)):
        text = clean(raw)[1]
        if not NOISE.search(text):
            text = redact(" ".join(text.split()))
            return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"
    return ""


def read_ends(path: Path, head: int, tail: int) -> str:
    """The first and the last bytes of a log as text, whole where it is short, empty where it is absent."""
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(head) + b"\n" if size > head + tail else b""
        file.seek(max(0, size - tail) if first else 0)
        return (first + file.read()).decode(errors="replace")
    return ""
