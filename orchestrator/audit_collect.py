"""Gathers what an audit compares: from a running server, or from a trial's record and its engine's log."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from trackers.records import Measurement, TrialRecord

from .audit import AuditFacts, AuditRow, NullCheck, audit, counters_between
from .audit_probe import CapacityProbe, probe_capacity
from .card import Card, find_card
from .clock import Clock, SystemClock
from .engine_log import LABELS, reported
from .errors import MeasurementFailed
from .load_client import measure_window
from .metrics_page import MetricsPage
from .model_arithmetic import Weights, weigh
from .model_config import locate_model, read_config, read_tensors
from .model_shape import ModelShape, describe
from .serve_line import ServeLine, parse_serve_line
from .server_view import Served, read_page, view_server
from .workload import Workload

__all__ = ["asked_of", "audit_trial", "facts_from_trial", "facts_from_url"]

_SECONDS = 60.0
_AT_ONCE = 4
_WITHOUT_LAYERS = ("none", "ngram", "ngram_gpu", "suffix")
_ECHOED = ("max_model_len", "max_num_batched_tokens", "dtype", "num_gpu_blocks")
_SECTIONS = ("model_config", "parallel_config", "scheduler_config", "cache_config", "load_config")
_DTYPES = {"half": "float16", "float": "float32"}
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class _Drafting(NamedTuple):
    method: str
    k: int


def asked_of(argv: Sequence[str], env: Mapping[str, str] | None = None) -> ServeLine:
    """What a command line asks the engine for; nothing where it is none."""
    words = ["vllm", *argv[argv.index("serve") :]] if "serve" in argv else list(argv)
    try:
        line = parse_serve_line(shlex.join(words))
    except ValueError:
        line = ServeLine()
    return line.model_copy(update={"env": {**line.env, **(env or {})}})


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
    """Look at a running server, send it single requests, hold some of them, and leave it as it was.

    Args:
        url: Any OpenAI-compatible server; what it does not tell stays empty.
        model: The name it serves; its first where absent.
        model_files: Directory or hub id of the model's own files; by default what the server names.
        line: What was asked for, as far as it is known (`asked_of`).
        log_text: The engine's log, where it is at hand.
        card: What it runs on.
        load: Hold several requests of the longest length at once too.
        api_key: Bearer token.
        say: Told what is done now.
        clock: Time.

    Returns:
        The facts, and in words what could not be had.

    Raises:
        MeasurementFailed: It cannot be reached or measured at all.
        PlanError: The model's files are broken.
    """
    clock, line = clock or SystemClock(), line or ServeLine()
    served = view_server(url, model, api_key=api_key)
    shape, weights = _model(model_files or served.root or line.model or "")
    notes = [] if shape else ["The model's files are not here: name them with --model-files."]
    say("one stream at a time")
    windows, counters, page = _single_stream(served, api_key, clock)
    said = reported(log_text)
    labels = page.labels("vllm:cache_config_info") if page else {}
    length = served.max_model_len
    if page is None:
        notes.append("The server shows no counters (/metrics).")
    if not said:
        notes.append("The engine's log is not at hand: what only it says stays empty.")
        said = {"max_model_len": str(length)} if length else {}
    probe = None
    if length and labels:
        say("holding requests of known length")
        probe, problem = _capacity(served, shape, windows, load, api_key, clock)
        notes += [problem] if problem else []
        if probe and probe.tokens and shape is None:
            held = sum(probe.tokens) / 2 / length
            notes.append(f"Measured: {held:.1f} requests of {length} tokens fit into the pool at once.")
    drafting = _drafting(line, served.info, page)
    sections = [one for name in _SECTIONS if isinstance(one := served.info.get(name), dict)]
    resolved = {name: str(value) for one in sections for name, value in one.items() if _scalar(value)}
    resolved |= {"max_model_len": str(length)} if length else {}
    tokens = sum(window.total_input_tokens for window in windows)
    facts = _assemble(
        served.version, line, said, labels, resolved, drafting, shape,
        weights=weights, card=card, probe=probe, windows=windows, counters=counters,
        cold=True, prompt_tokens=tokens / max(1, sum(window.completed for window in windows)),
    )  # fmt: skip
    return facts, notes


def facts_from_trial(
    record: TrialRecord, log_text: str = "", *, card: Card | None = None, nulls: Sequence[NullCheck] = ()
) -> AuditFacts:
    """What a trial's last good launch left behind; without windows of one stream some rows cannot tell.

    Raises:
        PlanError: The model's files are broken.
    """
    items = record.fingerprint.items
    good = [launch for launch in record.launches if launch.failure is None] or list(record.launches)
    argv, kept = (good[-1].argv, good[-1].reported) if good else ((), {})
    env = {name.removeprefix("env."): value for name, value in items.items() if name.startswith("env.")}
    line = asked_of(argv, env | {n: str(v) for n, v in record.configuration.values.items() if n.isupper()})
    labels = {n.removeprefix(LABELS): v for n, v in kept.items() if n.startswith(LABELS)}
    said = {n: v for n, v in kept.items() if not n.startswith(LABELS)} | reported(log_text)
    drafting = _drafting(line, {}, None)
    engine = items.get("vllm", "")
    # A simulated engine has the pool of its surface, whatever model it is given.
    shape, weights = _model("" if "simulated" in engine else line.model or items.get("model", ""))
    windows, in_flight = _comparable(record.windows)
    tokens = sum(window.total_input_tokens for window in windows)
    gpu = items.get("gpu", "").split(", ")[0]
    return _assemble(
        engine, line, said, labels, {}, drafting, shape,
        weights=weights, card=card or (find_card(gpu) if gpu else None), windows=windows,
        counters=_summed(windows), in_flight=in_flight, nulls=tuple(nulls),
        cold=any(check.name == "cold_prefix" for window in windows for check in window.checks) or None,
        prompt_tokens=tokens / max(1, sum(window.completed for window in windows)),
    )  # fmt: skip


def audit_trial(
    record: TrialRecord, log_text: str = "", *, card: Card | None = None, nulls: Sequence[NullCheck] = ()
) -> tuple[AuditRow, ...]:
    """Audit what a trial left behind: no launch, no request."""
    return audit(facts_from_trial(record, log_text, card=card, nulls=nulls))


def _assemble(
    engine: str,
    line: ServeLine,
    said: Mapping[str, str],
    labels: Mapping[str, str],
    resolved: Mapping[str, str],
    drafting: _Drafting,
    shape: ModelShape | None,
    **more: Any,
) -> AuditFacts:
    layers = shape.drafter if shape and drafting.method == "mtp" else None
    if shape and drafting.method not in _WITHOUT_LAYERS and layers is None:
        # A drafter of its own adds layers that nobody knows: nothing is said of the pool then.
        shape = shape.model_copy(update={"attention": ()})
    echoed = {name: said.get(f"effective.{name}", said.get(name, "")) for name in _ECHOED}
    took = {**resolved, **{name: value for name, value in echoed.items() if value}}
    took |= {"kv_cache_dtype": labels["cache_dtype"]} if labels.get("cache_dtype") else {}
    asked = _requested(line)
    ranks = took.get("tensor_parallel_size") or asked.get("tensor_parallel_size") or "1"
    return AuditFacts(
        engine=engine,
        model_dtype=(took.get("dtype") or asked.get("dtype") or "auto").removeprefix("torch."),
        shape=shape,
        cards=int(ranks) if ranks.isdigit() else 1,
        method=drafting.method,
        k=drafting.k,
        drafter=layers,
        reported=dict(said),
        cache_config={name: value for name, value in labels.items() if value != "None"},
        requested=asked,
        resolved=took,
        **more,
    )


def _requested(line: ServeLine) -> dict[str, str]:
    """Settings that name a value; `auto` and -1 leave it to the engine."""
    asked = {name: value for name, value in line.args.items() if _scalar(value) and value not in ("auto", -1)}
    space = {name: value for name, value in line.env.items() if name == "VLLM_CPU_KVCACHE_SPACE"}
    return {name: _spelled(str(value)) for name, value in {**asked, **space}.items()}


def _spelled(value: str) -> str:
    """`8k`, `300M`, `half` as what they mean."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", value)
    return str(int(float(size[1]) * _SIZES[size[2]])) if size else _DTYPES.get(value, value)


def _scalar(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and value != ""


def _drafting(line: ServeLine, info: Mapping[str, Any], page: MetricsPage | None) -> _Drafting:
    """By what took effect, else by what was asked for, else how many positions the server counts."""
    config = info.get("speculative_config") or line.args.get("speculative_config") or {}
    if isinstance(config, dict) and config:
        method = str(config.get("method") or "draft_model")
        plain = "mtp" if method.endswith("mtp") else method
        return _Drafting(plain, int(config.get("num_speculative_tokens") or 1))
    counted = page.by_label("vllm:spec_decode_num_accepted_tokens_per_pos", "position") if page else {}
    return _Drafting("unknown", len(counted)) if counted else _Drafting("none", 0)


def _model(reference: str) -> tuple[ModelShape | None, Weights | None]:
    directory = locate_model(reference) if reference else None
    if directory is None or not (directory / "config.json").exists():
        return None, None
    shape = describe(read_config(directory))
    return shape, weigh(shape, read_tensors(directory))


def _single_stream(
    served: Served, api_key: str | None, clock: Clock
) -> tuple[tuple[Measurement, ...], dict[str, float], MetricsPage | None]:
    """A window to warm up, two that count, how far the counters moved over those, and the last page."""
    room = served.max_model_len or 2048
    workload = Workload(
        name="audit", kind="generate", prompt_tokens=max(8, min(512, room // 4)),
        output_tokens=max(2, min(64, room // 4)), requests_per_window=2, seed=int(clock.time()),
    )  # fmt: skip

    def window(number: int) -> Measurement:
        return measure_window(
            served.url, workload, model=served.model, window=number, api_key=api_key, timeout_s=_SECONDS,
            stall_s=_SECONDS, clock=clock,
        )  # fmt: skip

    window(0)
    before = read_page(served.url, api_key=api_key)
    windows = (window(1), window(2))
    after = read_page(served.url, api_key=api_key)
    return windows, counters_between(before, after) if before and after else {}, after


def _capacity(
    served: Served,
    shape: ModelShape | None,
    windows: Sequence[Measurement],
    load: bool,
    api_key: str | None,
    clock: Clock,
) -> tuple[CapacityProbe | None, str]:
    """The probe, reaching as far as prompts can be computed in the time there is; or why there is none."""
    speeds = [window.metrics["prefill_tok_s"] for window in windows if "prefill_tok_s" in window.metrics]
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = served.url.rstrip("/").removesuffix("/v1")
    client = httpx.Client(base_url=base, headers=headers, verify=base.startswith("https"), trust_env=False)
    try:
        return probe_capacity(
            served.url, served.model, served.max_model_len or 1,
            vocabulary=shape.vocabulary if shape and shape.vocabulary else 32_000,
            longest=min(32_768, int(min(speeds, default=1e3) * _SECONDS / 5)),
            at_once=_AT_ONCE if load else 1, budget_s=_SECONDS * (3 if load else 1),
            clock=clock, client=client,
        ), ""  # fmt: skip
    except MeasurementFailed as error:
        return None, f"The pool was not measured. {error.message}"


def _comparable(windows: Sequence[Measurement]) -> tuple[tuple[Measurement, ...], int]:
    """The windows of one workload, of a single stream where there is one, and how many requests at once."""
    flights = [(int(window.extra.get("max_concurrency") or 10**6), window) for window in windows]
    least = min(flights, key=lambda pair: pair[0], default=None)
    if least is None:
        return (), 1
    return tuple(one for one in windows if one.workload == least[1].workload), least[0]


def _summed(windows: Sequence[Measurement]) -> dict[str, float]:
    """The counters of all windows together; empty where one of them kept none."""
    kept = [json.loads(window.extra.get("counters", "{}")) for window in windows]
    names = set.intersection(*(set(one) for one in kept)) if kept else set()
    return {name: sum(one[name] for one in kept) for name in sorted(names)}
