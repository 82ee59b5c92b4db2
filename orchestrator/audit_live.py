"""The facts of an audit from a running server: single requests, some of them held; it is left as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from trackers.records import Measurement

from .audit_collect import assemble, drafting_of, is_scalar, mean_prompt, model_of
from .audit_facts import AuditFacts
from .audit_probe import CapacityProbe, probe_capacity
from .card import Card
from .clock import Clock, SystemClock
from .engine_log import reported
from .errors import MeasurementFailed
from .load_client import measure_window
from .metrics_page import MetricsPage, counters_between
from .serve_line import ServeLine, is_secret
from .server_view import Served, answer_json, ask, read_page, view_server
from .workload import Workload

__all__ = ["facts_from_url"]

_SECONDS = 45.0
_AT_ONCE = 4
_SECTIONS = ("model_config", "parallel_config", "scheduler_config", "cache_config", "load_config")


def facts_from_url(
    url: str,
    *,
    model: str | None = None,
    model_files: str | None = None,
    line: ServeLine | None = None,
    log_text: str = "",
    card: Card | None = None,
    load: bool = False,
    api_key: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    clock: Clock | None = None,
) -> tuple[AuditFacts, list[str]]:
    """Look at a running server; `line` (see `asked_of`), `log_text` and `card` where they are known.

    `model` is the name it serves (its first where absent), `model_files` a directory or hub id (what the
    server names). With `load` several requests of the longest length are held at once too.

    Returns:
        The facts, and in words what could not be had.

    Raises:
        MeasurementFailed: It cannot be reached or measured at all.
        PlanError: The model's files are broken.
    """
    clock, line = clock or SystemClock(), line or ServeLine()
    served = view_server(url, model, api_key=api_key)
    shape, weights = model_of(model_files or served.root or line.model or "")
    say("one stream at a time")
    windows, counters, page = _single_stream(served, api_key, clock)
    labels = page.labels("vllm:cache_config_info") if page else {}
    say("holding requests of known length")
    words = shape.vocabulary if shape and shape.vocabulary else 32_000
    probe, missing = _capacity(served, labels, words, windows, load, api_key, clock)
    length = {"max_model_len": str(served.max_model_len)} if served.max_model_len else {}
    # Only servers in development mode tell it; the first time they look at their whole installation.
    told = answer_json(ask(url, "/server_info?config_format=json", api_key=api_key, timeout_s=30.0))
    config = told.get("vllm_config")
    info = config if isinstance(config, dict) else {}
    facts = assemble(
        served.version, line, reported(log_text) or length, labels, _resolved(info) | length,
        drafting_of(line, info, page), shape, weights=weights, card=card, probe=probe,
        windows=windows, counters=counters, cold=True, prompt_tokens=mean_prompt(windows),
    )  # fmt: skip
    failed = {check.name: check.detail for window in windows for check in window.disproved}
    notes = {
        "The model's files are not here: name them with --model-files.": shape is None,
        "The server shows no counters (/metrics).": page is None,
        "The engine's log is not at hand: what only it says stays empty.": not log_text,
        missing: bool(missing),
        **{f"A proof of the windows failed: {name}: {detail}.": True for name, detail in failed.items()},
    }
    return facts, [text for text, holds in notes.items() if holds]


def _resolved(info: Mapping[str, Any]) -> dict[str, str]:
    """What took effect, by the server's own dump of its configuration."""
    sections = [one for name in _SECTIONS if isinstance(one := info.get(name), dict)]
    pairs = [pair for one in sections for pair in one.items()]
    return {name: str(value) for name, value in pairs if is_scalar(value) and not is_secret(name, value)}


def _single_stream(
    served: Served, api_key: str | None, clock: Clock
) -> tuple[tuple[Measurement, ...], dict[str, float], MetricsPage | None]:
    """Two windows, as long as a server of this speed can do in seconds, their counters, and the last page."""
    room, seed, swell = served.max_model_len or 2048, int(clock.time()), 1.0

    def window(number: int, prompt: float, output: float, requests: int) -> Measurement:
        workload = Workload(
            name="audit", kind="generate", seed=seed, requests_per_window=requests,
            prompt_tokens=int(max(8, min(512, room / 4, prompt) / swell)),
            output_tokens=int(max(2, min(64, room / 4, output))),
        )  # fmt: skip
        return measure_window(
            served.url, workload, model=served.model, window=number, api_key=api_key, timeout_s=_SECONDS,
            stall_s=_SECONDS, clock=clock,
        )  # fmt: skip

    asked = max(8, min(64, room // 16))
    # Prompts are sized by words, of which this model's tokenizer may make several tokens.
    swell = max(1.0, window(0, asked, 8, 1).total_input_tokens / asked)
    speed = window(1, asked, 8, 1).metrics
    lengths = (2 * speed.get("prefill_tok_s", 256.0), 3 * speed.get("decode_tok_s", 20.0))
    before = read_page(served.url, api_key=api_key)
    windows = (window(2, *lengths, 2), window(3, *lengths, 2))
    after = read_page(served.url, api_key=api_key)
    # A request that was given up left tokens on the server's side alone.
    whole = not any(one.failed for one in windows)
    return windows, counters_between(before, after) if before and after and whole else {}, after


def _capacity(
    served: Served,
    labels: dict[str, str],
    vocabulary: int,
    windows: Sequence[Measurement],
    load: bool,
    api_key: str | None,
    clock: Clock,
) -> tuple[CapacityProbe | None, str]:
    """The probe, reaching as far as prompts can be computed in the time there is; what to say of it."""
    length = served.max_model_len
    if not length or not labels:
        return None, "The pool was not measured: the server says neither its length nor its blocks."
    speeds = [window.metrics["prefill_tok_s"] for window in windows if "prefill_tok_s" in window.metrics]
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = served.url.rstrip("/").removesuffix("/v1")
    client = httpx.Client(base_url=base, headers=headers, verify=base.startswith("https"), trust_env=False)
    try:
        probe = probe_capacity(
            served.url, served.model, length, vocabulary=vocabulary,
            longest=min(32_768, int(min(speeds, default=1e3) * _SECONDS / 5)),
            at_once=_AT_ONCE if load else 1, budget_s=_SECONDS * (3 if load else 1),
            clock=clock, client=client,
        )  # fmt: skip
    except MeasurementFailed as error:
        return None, f"The pool was not measured. {error.message}"
    if probe.tokens is None:
        return probe, "The pool was read, but not far enough to tell what a request of full length holds."
    low, high = (tokens / length for tokens in probe.tokens)
    return probe, f"Measured: {low:.1f} to {high:.1f} requests of {length} tokens fit at once."
