"""Gathers what an audit compares, from a trial's record and its engine's log; `audit_live` asks a server."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trackers.records import Measurement, TrialRecord

from .audit import AuditFacts, AuditRow, NullCheck, audit
from .card import Card, find_card
from .engine_log import LABELS, reported
from .metrics_page import MetricsPage
from .model_arithmetic import Weights, weigh
from .model_config import locate_model, read_config, read_tensors
from .model_shape import ModelShape, describe
from .serve_line import ServeLine, parse_serve_line

__all__ = ["Drafting", "asked_of", "assemble", "audit_trial", "drafting_of", "facts_from_trial", "model_of"]

_WITHOUT_LAYERS = ("none", "ngram", "ngram_gpu", "suffix")
_ECHOED = ("max_model_len", "max_num_batched_tokens", "dtype", "num_gpu_blocks")
_DTYPES = {"half": "float16", "float": "float32"}
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class Drafting(NamedTuple):
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
    drafting = drafting_of(line, {}, None)
    engine = items.get("vllm", "")
    # A simulated engine has the pool of its surface, whatever model it is given.
    shape, weights = model_of("" if "simulated" in engine else line.model or items.get("model", ""))
    windows, in_flight = _comparable(record.windows)
    gpu = items.get("gpu", "").split(", ")[0]
    return assemble(
        engine, line, said, labels, {}, drafting, shape,
        weights=weights, card=card or (find_card(gpu) if gpu else None), windows=windows,
        counters=_summed(windows), in_flight=in_flight, nulls=tuple(nulls),
        cold=any(check.name == "cold_prefix" for window in windows for check in window.checks) or None,
        prompt_tokens=mean_prompt(windows),
    )  # fmt: skip


def audit_trial(
    record: TrialRecord, log_text: str = "", *, card: Card | None = None, nulls: Sequence[NullCheck] = ()
) -> tuple[AuditRow, ...]:
    """Audit what a trial left behind: no launch, no request."""
    return audit(facts_from_trial(record, log_text, card=card, nulls=nulls))


def assemble(
    engine: str,
    line: ServeLine,
    said: Mapping[str, str],
    labels: Mapping[str, str],
    resolved: Mapping[str, str],
    drafting: Drafting,
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
    asked = {name: value for name, value in line.args.items() if is_scalar(value)}
    asked = {name: value for name, value in asked.items() if value not in ("auto", -1)}
    space = {name: value for name, value in line.env.items() if name == "VLLM_CPU_KVCACHE_SPACE"}
    return {name: _spelled(str(value)) for name, value in {**asked, **space}.items()}


def _spelled(value: str) -> str:
    """`8k`, `300M`, `half` as what they mean."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", value)
    return str(int(float(size[1]) * _SIZES[size[2]])) if size else _DTYPES.get(value, value)


def is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and value != ""


def drafting_of(line: ServeLine, info: Mapping[str, Any], page: MetricsPage | None) -> Drafting:
    """By what took effect, else by what was asked for, else how many positions the server counts."""
    config = info.get("speculative_config") or line.args.get("speculative_config") or {}
    if isinstance(config, dict) and config:
        method = str(config.get("method") or "draft_model")
        plain = "mtp" if method.endswith("mtp") else method
        return Drafting(plain, int(config.get("num_speculative_tokens") or 1))
    counted = page.by_label("vllm:spec_decode_num_accepted_tokens_per_pos", "position") if page else {}
    return Drafting("unknown", len(counted)) if counted else Drafting("none", 0)


def model_of(reference: str) -> tuple[ModelShape | None, Weights | None]:
    directory = locate_model(reference) if reference else None
    if directory is None or not (directory / "config.json").exists():
        return None, None
    shape = describe(read_config(directory))
    return shape, weigh(shape, read_tensors(directory))


def mean_prompt(windows: Sequence[Measurement]) -> float:
    """Prompt tokens of a request."""
    tokens = sum(window.total_input_tokens for window in windows)
    return tokens / max(1, sum(window.completed for window in windows))


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
