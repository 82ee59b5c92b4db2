"""The table of failures: each cause with whose property it is, and the words by which engines tell it."""

from __future__ import annotations

import re
from typing import NamedTuple

from trackers.records import FailureKind

__all__ = ["CAUSES", "PATTERNS", "STAGES", "WHY", "Cause"]


class Cause(NamedTuple):
    kind: FailureKind
    message: str


WHY: dict[FailureKind, str] = {
    "infeasible": "The same configuration would fail the same way on this stack.",
    "environment": "No configuration can mend what is missing or wrong underneath it.",
    "transient": "The same configuration may well run when it is tried again.",
}

CAUSES: dict[str, Cause] = {
    "out_of_memory_weights": Cause("infeasible", "The weights do not fit into device memory"),
    "out_of_memory_kv": Cause("infeasible", "No memory is left for a KV cache of the size asked for"),
    "out_of_memory_activation": Cause(
        "infeasible", "A forward pass of the batch budget does not fit into device memory"
    ),
    "out_of_memory_graphs": Cause("infeasible", "Capturing the device graphs ran out of device memory"),
    "out_of_memory_load": Cause("infeasible", "The engine ran out of device memory while serving"),
    # Could pass another time, but trying it again puts the whole machine at risk.
    "out_of_memory_host": Cause(
        "infeasible", "The engine ended without a word, as when the kernel is out of host memory"
    ),
    "killed": Cause("transient", "Somebody ended a process of the engine, and it was not for lack of memory"),
    "kv_below_max_model_len": Cause("infeasible", "The KV cache cannot hold one request of max_model_len"),
    "draft_slots_over_budget": Cause("infeasible", "The draft slots leave no room in max_num_batched_tokens"),
    "batch_below_seqs": Cause("infeasible", "max_num_batched_tokens is below max_num_seqs"),
    "unsupported_drafter": Cause("infeasible", "This engine, device or model cannot use this drafter"),
    "unknown_drafter": Cause("infeasible", "This engine version does not know this drafter"),
    "missing_package": Cause("environment", "The engine environment lacks a package, library or program"),
    "unknown_flag": Cause("infeasible", "This engine version does not know this setting"),
    "bad_value": Cause("infeasible", "The engine refuses the value of a setting"),
    "port_taken": Cause("transient", "The port was taken"),
    "model_not_found": Cause("environment", "The model or one of its files cannot be found"),
    "architecture_unsupported": Cause("environment", "This engine version cannot run the model's architecture"),
    "device_busy": Cause("transient", "Something else holds the memory that was asked for"),
    "crashed_under_load": Cause("transient", "The engine died after it had answered"),
    "start_timed_out": Cause("transient", "The engine was not ready in the time given"),
    "illegal_instruction": Cause("environment", "The engine was built for instructions this processor does not have"),
    "disk_full_log": Cause("environment", "The disk is full, or the engine's log grew past its limit"),
    "unknown": Cause("transient", "The engine failed for a reason that is not known here"),
}

SIZE = r"\(?(?P<{0}>-?[\d.]+)(?:/[\d.]+)? (?P<{0}_unit>[GM])iB\)?"
NEEDED, AVAILABLE = SIZE.format("needed"), SIZE.format("available")

# The first pattern that matches the lowest line wins. Without a mark: the same words in 0.19.1 to 0.33.0.
TABLE: tuple[tuple[str, str], ...] = (
    ("disk_full_log", r"repeak: the log grew past|No space left on device"),
    (
        "missing_package",
        r"could not select device driver|unresolvable CDI|Cannot connect to the Docker|: (?:crun|runc): ",
    ),
    ("missing_package", r"repeak: cannot start |Arctic Inference is required"),
    (
        "kv_below_max_model_len",
        NEEDED + r" KV cache is needed, which is larger than the available KV cache memory " + AVAILABLE,
    ),
    ("kv_below_max_model_len", r"Cannot auto-fit max_model_len"),
    ("out_of_memory_kv", r"No available memory for the cache blocks"),
    ("out_of_memory_kv", r"exceeds available Mamba cache blocks"),  # 0.20.2+
    (  # CPU 0.26+
        "out_of_memory_kv",
        AVAILABLE + r" on kv cache allocation is less than requested memory for kv " + NEEDED,
    ),
    (
        "device_busy",
        AVAILABLE + r" on startup is less than desired \w+ memory utilization \([\d.]+, " + NEEDED.removeprefix(r"\(?"),
    ),
    ("device_busy", r"on startup is less than desired \w+ memory|devices? (?:is|are) busy or unavailable"),
    ("out_of_memory_activation", r"out of memory occurred when warming up sampler"),
    ("out_of_memory", r"OutOfMemoryError.*allocate " + NEEDED + r".*?of which " + AVAILABLE + " is free"),
    ("out_of_memory", r"OutOfMemoryError|(?:CUDA|HIP) out of memory|CUDA error: out of memory"),
    ("out_of_memory_host", r"^MemoryError|DefaultCPUAllocator: |Cannot allocate memory"),
    ("draft_slots_over_budget", r"does not allow any tokens to be scheduled"),  # 0.20.2 to 0.27.1
    ("draft_slots_over_budget", r"VllmConfig .*does not have enough slots"),  # another wording from 0.28
    ("batch_below_seqs", r"max_num_batched_tokens \(\d+\) must be greater than or equal to max_num_seqs"),
    ("unknown_drafter", r"SpeculativeConfig\.method: Input should be|Unknown speculative decoding method"),
    ("unknown_flag", r"unrecognized arguments:|ambiguous option:|Unexpected keyword argument"),
    ("unsupported_drafter", r"Unsupported speculative method:|draft model config must have `pard_token`"),
    ("unsupported_drafter", r"spec decode is not supported"),  # CPU 0.19.1
    (
        "unsupported_drafter",
        r"Runner V\d does not (?:yet )?support: .*(?:specul|dspark|dflash|eagle|ngram|draft)",
    ),
    ("unsupported_drafter", r"should have the same vocabulary size|(?:medusa|mlp_speculator).*not supported"),
    ("architecture_unsupported", r"Model architectures \[.*\] are not supported|has no vLLM implementation"),
    ("architecture_unsupported", r"does not recognize this architecture"),
    ("model_not_found", r"Repo id must be in the form|is not a valid model identifier|Invalid repository ID"),
    (
        "model_not_found",
        r"RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|OfflineModeIsEnabled",
    ),
    ("model_not_found", r"does not appear to have a file named|Cannot find any model weights"),
    ("missing_package", r"ModuleNotFoundError|PackageNotFoundError|No module named|^ImportError"),
    ("missing_package", r"cannot open shared object file|undefined symbol"),
    ("port_taken", r"Address already in use"),
    ("start_timed_out", r"Timed out waiting for engine core processes"),
    ("illegal_instruction", r"[Ii]llegal instruction|Failed core proc\(s\): \{[^}]*: -4\b"),
    ("out_of_memory_host", r"Failed core proc\(s\): \{[^}]*: -9\b"),
    (
        "bad_value",
        r"Value error,|Input should|invalid choice:|: error: |invalid tool call parser|Reasoning parser",
    ),
    (
        "bad_value",
        r"FP8 KV cache|max_model_len|max_num_|divisible by|number of available GPUs|NUMA nodes to bind",
    ),
    (
        "bad_value",
        r"[Aa]sync scheduling|cudagraph|CUDA graphs|Adaptive verification|Model Runner V\d does not",
    ),
    ("out_of_memory_host", r"repeak: the kernel ended a process"),
)
PATTERNS = tuple((cause, re.compile(pattern)) for cause, pattern in TABLE)

# Where device memory ran out, by the functions on the traceback; the innermost one listed here decides.
STAGES = {
    "capture_model": "out_of_memory_graphs",
    "profile_run": "out_of_memory_activation",
    "determine_available_memory": "out_of_memory_activation",
    "initialize_kv_cache": "out_of_memory_kv",
    "initialize_from_config": "out_of_memory_kv",
    "load_model": "out_of_memory_weights",
    "execute_model": "out_of_memory_load",
}
