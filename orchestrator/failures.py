"""Why an engine did not start, or died: its log's root cause, by name, with whose property it is."""

from __future__ import annotations

import re
import signal
from typing import Literal

from trackers.records import Failure

from .failure_causes import CAUSES, PATTERNS, STAGES

__all__ = ["classify", "clean", "redact"]

EVIDENCE_CHARS = 300
# What may be named of a death under load; the rest of the table is about starting.
WHILE_SERVING = {"killed", "out_of_memory_load", "out_of_memory_host", "disk_full_log", "illegal_instruction"}

COLOUR = re.compile(r"\x1b\[[\d;]*m")
PREFIX = re.compile(r"^\([^()]* pid=\d+\)(?: |$)")
HEADER = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+(?:[\d-]+ [\d:.]+ \[[^\]]*\] ?)?")
ERROR_LINE = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|IsEnabled|Interrupt)\b|\s+Value error,|\s+Input should|"
    r"\s+Unexpected keyword|\S.*: error: |\S+: No module named|repeak: |[Ii]llegal instruction|!!!|docker: |Error: )"
)
# Lines that only say that something above them failed, or what we saw from outside.
ECHO = re.compile(
    r"[Ss]ee (?:root cause|(?:the )?stack trace)|check the stack trace|Worker failed with error|"
    r"EngineDeadError|CalledProcessError|Error raised in subprocess|failed to be inspected|CancelledError|"
    r"KeyboardInterrupt|^pydantic_core.*validation errors? for|^repeak: (?:not ready|/health)"
)
SECRETS = (
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|AKIA)[A-Za-z0-9_-]{8,}"), "***"),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"), "***"),
    (re.compile(r"(?i)\bbearer\s+[\w.~+/=-]+"), "Bearer ***"),
    (
        re.compile(
            r"(?i)((?:api[_-]?keys?|password|passwd|secret|(?:auth|access|hf|hub)[_-]token)"
            r"['\"]?(?:\s*[:=]\s*|\s+)(?:\[\s*)?)(?!None\b|Bearer\b)['\"]?[^\s,'\"\]})]+['\"]?"
        ),
        r"\1***",
    ),
)


def redact(text: str) -> str:
    """The text without what looks like a token, a key or a password in an address."""
    for pattern, instead in SECRETS:
        text = pattern.sub(instead, text)
    return text


def clean(line: str) -> tuple[str, str]:
    """Level (empty where the line has none) and text of one log line, without the process prefix."""
    text = PREFIX.sub("", COLOUR.sub("", line))
    header = HEADER.match(text)
    return (header.group(1), text[header.end() :]) if header else ("", text)


def classify(
    log_text: str,
    exit_code: int | None,
    *,
    phase: Literal["start", "load"],
    timed_out: bool = False,
    kernel_killed: bool | None = None,
) -> Failure:
    """Name the root cause of a start that failed, or of a death under load, from the log and the exit code.

    Args:
        log_text: The engine's output; lines beginning `repeak: ` are notes of the one who ran it.
        exit_code: As the process gave it, negative for a signal; None where it still ran or nobody knows.
        phase: `load` once the server had answered /health.
        timed_out: The time to start ran out and the engine had to be ended.
        kernel_killed: Whether the kernel ended a process for lack of memory meanwhile; None where nobody looked.
    """
    lines = error_lines(log_text)
    for number, text in reversed(lines):
        echo = ECHO.search(text) is not None
        for cause, pattern in PATTERNS:
            match = pattern.search(text)
            # How its core ended is the one thing to take from the line that repeats the failure.
            if match is None or (echo and not match.group().startswith("Failed core")):
                continue
            if cause == "out_of_memory":
                cause = memory_stage(log_text, number, phase)  # noqa: PLW2901
            if kernel_killed is False and match.group().startswith("Failed core") and match.group().endswith("-9"):
                cause = "killed"  # noqa: PLW2901
            if phase == "start" or cause in WHILE_SERVING:
                return failure(cause, text, exit_code, match)
    roots = [text for _, text in lines if not ECHO.search(text)]
    notes = [text for _, text in lines if text.startswith("repeak: ")]
    cause, seen = without_pattern(log_text, exit_code, phase, timed_out=timed_out, silent=not roots)
    # A core that is killed as it starts may leave no word of how: then the kernel's own count says what it was not.
    if kernel_killed is False and not timed_out and (exit_code in {-9, 137} or cause == "out_of_memory_host"):
        cause = "killed"
    return failure(cause, (roots or notes or [seen])[-1], exit_code, None)


def error_lines(log_text: str) -> list[tuple[int, str]]:
    """Lines that state an error, with their numbers; a pydantic one with the setting it is about."""
    found = []
    model = before = ""
    for number, raw in enumerate(log_text.splitlines()):
        level, text = clean(raw)
        if level in {"", "ERROR", "CRITICAL"} and ERROR_LINE.match(text):
            named = re.match(r"pydantic_core.*validation errors? for (\w+)", text)
            model = named.group(1) if named else model
            field = f".{before}" if re.fullmatch(r"\w+(\.\w+)*", before) else ""
            found.append((number, f"{model}{field}: {text.strip()}" if text[0] == " " else text.strip()))
        before = text.strip()
    return found


def memory_stage(log_text: str, number: int, phase: str) -> str:
    """Which part of starting ran out of device memory: by its traceback, else by what the log had reached."""
    if phase == "load":
        return "out_of_memory_load"
    above = log_text.splitlines()[:number]
    for line in reversed(above[-200:]):
        text = clean(line)[1]
        frame = re.search(r'File ".*", line \d+, in (\w+)', text)
        if frame and frame.group(1) in STAGES:
            return STAGES[frame.group(1)]
        if text.startswith("Traceback"):
            break
    reached = "\n".join(above)
    if "KV cache size" in reached:
        return "out_of_memory_graphs"
    return "out_of_memory_activation" if "Model loading took" in reached else "out_of_memory_weights"


def without_pattern(
    log_text: str, exit_code: int | None, phase: str, *, timed_out: bool, silent: bool
) -> tuple[str, str]:
    """The cause where no known error is written, and what stands for evidence then."""
    seen = f"exit code {exit_code}" if exit_code else ""
    if exit_code is not None and -exit_code in {number.value for number in signal.Signals}:
        seen = f"ended by {signal.Signals(-exit_code).name}"
    if exit_code in {-4, 132}:
        return "illegal_instruction", seen
    if timed_out:
        return "start_timed_out", seen
    if phase == "load":
        return "crashed_under_load", seen
    if exit_code in {-9, 137} or (silent and "Engine core initialization failed" in log_text):
        return "out_of_memory_host", f"{seen}, and no process of it left an error"
    return "unknown", seen


def failure(cause: str, evidence: str, exit_code: int | None, match: re.Match[str] | None) -> Failure:
    entry = CAUSES[cause]
    sizes = match.groupdict() if match else {}
    needed, available = gib(sizes, "needed"), gib(sizes, "available")
    amounts = f" (needed {needed:g} GiB, available {available:g} GiB)" if needed and available else ""
    return Failure(
        cause=cause,
        kind=entry.kind,
        message=f"{entry.message}{amounts}.",
        evidence=redact(evidence)[:EVIDENCE_CHARS],
        needed_gib=needed,
        available_gib=available,
        exit_code=exit_code,
    )


def gib(sizes: dict[str, str | None], name: str) -> float | None:
    value = sizes.get(name)
    if value is None:
        return None
    return float(value) / (1024 if sizes.get(f"{name}_unit") == "M" else 1)
