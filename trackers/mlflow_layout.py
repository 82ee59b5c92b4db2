"""What of a study and a trial goes where in MLflow: names, tags, params, metrics and artifacts; pure."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from search_spaces.configuration import Scalar

from .entries import StudyClosed, StudyOpened
from .records import Estimate, Measurement, TrialRecord, TrialState, WorkloadRef

__all__ = [
    "Point",
    "RunContent",
    "experiment_name",
    "safe_name",
    "study_end",
    "study_run",
    "study_uid",
    "trial_run",
    "uid_of",
]

PARAM_LIMIT, TAG_LIMIT, NAME_LIMIT = 6000, 8000, 250
"""Characters that MLflow keeps of a param's value, a tag's value, and any name."""

SERIES = (
    "decode_tok_s",
    "prefill_tok_s",
    "output_throughput",
    "acceptance_length",
    "passes_s",
    "mean_ttft_ms",
)
"""Metrics whose windows stand one by one, as `per_window/<workload>.<metric>`."""

Status = Literal["FINISHED", "FAILED", "KILLED"]
_STATUS: Mapping[TrialState, Status] = {
    "measured": "FINISHED",
    "unsettled": "FINISHED",
    "imported": "FINISHED",
    "interrupted": "KILLED",
    "lost": "KILLED",
}
_NAME = re.compile(r"[/\w.\- :]+")


class Point(NamedTuple):
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """One run, ready to be written: every name valid, every value within limits, every number finite.

    `texts` are artifacts by path with their whole content, `files` artifacts by path that lie on disk.
    """

    name: str
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: tuple[Point, ...] = ()
    workloads: tuple[WorkloadRef, ...] = ()
    texts: dict[str, str]
    files: dict[str, Path]
    started_ms: int
    ended_ms: int
    status: Status = "FINISHED"


def experiment_name(opened: StudyOpened) -> str:
    """One experiment for each plan, model and machine class, unless the plan named its own."""
    own = opened.facts.get("experiment")
    return _text(own or f"{opened.plan} / {opened.model} / {opened.machine}")[:NAME_LIMIT]


def study_uid(opened: StudyOpened) -> str:
    return uid_of(f"{opened.study}:{opened.fingerprint.key}")


def safe_name(text: str) -> str:
    """The text where MLflow takes it as a name; else a likeness of it with a hash, so that no two meet."""
    plain = _NAME.fullmatch(text) and len(text) <= NAME_LIMIT and not text.startswith((".", "/"))
    if plain and posixpath.normpath(text) == text:
        return text
    return re.sub(r"[^\w.\- :]", "_", text)[: NAME_LIMIT - 50].strip(" .") + f"-{_hash(text)}"


def study_run(opened: StudyOpened, redact: Callable[[str], str]) -> RunContent:
    """The parent run: one engine's stack, under which its trials stand."""
    texts: dict[str, str] = {}
    tags = {
        "repeak.kind": "study",
        "repeak.study_uid": study_uid(opened),
        "repeak.study": opened.study,
        "repeak.engine": opened.fingerprint.engine,
        "repeak.plan": opened.plan,
        "repeak.model": opened.model,
        "repeak.machine": opened.machine,
        **{f"repeak.{name}": value for name, value in opened.facts.items()},
        **_stack_tags(opened.fingerprint.items, opened.fingerprint.key),
    }
    at = _ms(opened.started_at)
    return RunContent(
        name=f"{opened.fingerprint.engine} {opened.fingerprint.key}"[:NAME_LIMIT],
        tags=_fitted(tags, TAG_LIMIT, "tags", texts, redact),
        texts=texts,
        files={path: Path(file) for path, file in opened.files.items()},
        started_ms=at,
        ended_ms=at,
    )


def study_end(closed: StudyClosed, redact: Callable[[str], str]) -> RunContent:
    """What closing adds to the parent run: `peak.<fact>` tags and `peak.<metric>` metrics."""
    at = _ms(closed.at)
    texts = {"closing.json": redact(closed.model_dump_json(indent=1))}
    tags = {
        "repeak.verdict": closed.verdict,
        "repeak.closed_at": repr(closed.at),
        **{f"peak.{name.removeprefix('peak.')}": value for name, value in closed.facts.items()},
    }
    points = [(f"peak.{name.removeprefix('peak.')}", value, at, 0) for name, value in closed.metrics.items()]
    return RunContent(
        name="",
        tags=_fitted(tags, TAG_LIMIT, "tags", texts, redact),
        metrics=_points(points),
        texts=texts,
        files={path: Path(file) for path, file in closed.files.items()},
        started_ms=at,
        ended_ms=at,
    )


def trial_run(record: TrialRecord, redact: Callable[[str], str], folder: Path | None = None) -> RunContent:
    """The child run of one trial; `folder` is the trial's own directory, whose files become artifacts."""
    texts = {"record.json": redact(record.model_dump_json(indent=1))}
    values: dict[str, Scalar] = {"k": record.configuration.k, **record.configuration.values}
    values = {"role": record.role, "vllm": record.fingerprint.items.get("vllm", "?"), **values}
    # By the engine's own name for them, and so behind the drafter and its k: MLflow's charts open with the first three.
    values = {re.sub(r"^drafter\.", "speculative_config.", name): value for name, value in values.items()}
    params = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return RunContent(
        name=_text(redact(record.configuration.label()))[:NAME_LIMIT],
        tags=_fitted(_trial_tags(record), TAG_LIMIT, "tags", texts, redact),
        params=_fitted(params, PARAM_LIMIT, "params", texts, redact),
        metrics=_points(_trial_points(record)),
        workloads=record.workloads,
        texts=texts,
        files=_trial_files(record, folder),
        started_ms=_ms(record.started_at),
        ended_ms=_ms(record.started_at + record.duration_s),
        status=_STATUS.get(record.state, "FAILED"),
    )


def _trial_tags(record: TrialRecord) -> dict[str, str]:
    tags = {
        "repeak.kind": "trial",
        "repeak.trial_uid": uid_of(record.trial_id),
        "repeak.trial": record.trial_id,
        "repeak.study": record.study,
        "repeak.number": str(record.number),
        "repeak.role": record.role,
        "repeak.state": record.state,
        "repeak.reason": record.reason,
        "repeak.configuration": record.configuration.key,
        "repeak.engine": record.fingerprint.engine,
        **{f"workload.{one.name}": one.sha256 for one in record.workloads},
        **_stack_tags(record.fingerprint.items, record.fingerprint.key),
    }
    if record.failure:
        tags |= {"repeak.failure": record.failure.cause, "repeak.failure_kind": record.failure.kind}
    disproved = sorted({check.name for window in record.windows for check in window.disproved})
    return tags | ({"repeak.disproved": ", ".join(disproved)} if disproved else {})


def _stack_tags(items: Mapping[str, str], key: str) -> dict[str, str]:
    return {"repeak.stack": key, **{f"stack.{name}": value for name, value in items.items()}}


def _trial_points(record: TrialRecord) -> list[tuple[str, float, int, int]]:
    """Those of SERIES first: MLflow's charts open with the metric that was written first."""
    order = {name: at for at, name in enumerate(SERIES)}
    return sorted(_every_point(record), key=lambda point: order.get(point[0].rpartition(".")[2], len(order)))


def _every_point(record: TrialRecord) -> Iterator[tuple[str, float, int, int]]:
    at = _ms(record.started_at + record.duration_s)
    ready = [launch.ready_s for launch in record.launches if launch.ready_s is not None]
    whole = {
        "launches": len(record.launches),
        "windows": len(record.windows),
        "duration_s": record.duration_s,
    }
    for name, value in {**whole, **({"ready_s": fmean(ready)} if ready else {})}.items():
        yield name, value, at, 0
    for workload in record.workloads:
        title = safe_name(workload.name)
        windows = [window for window in record.windows if window.workload.name == workload.name]
        estimates = _estimates_of(record, workload.name)
        for name in sorted({name for window in windows for name in _metrics(window)} | estimates.keys()):
            key, estimate = f"{title}.{name}", estimates.get(name)
            yield key, estimate.value if estimate else _mean(windows, name), at, 0
            if estimate:
                yield f"{key}_half_width", estimate.half_width, at, 0
        if windows:
            yield f"{title}.launches", len({window.launch for window in windows}), at, 0
            yield f"{title}.windows", len(windows), at, 0
            yield f"{title}.failed_requests", sum(window.failed for window in windows), at, 0
        for step, window in enumerate(sorted(windows, key=lambda one: (one.launch, one.window)), 1):
            for name in SERIES:
                if name in (metrics := _metrics(window)):
                    yield f"per_window/{title}.{name}", metrics[name], _ms(window.started_at), step


def _estimates_of(record: TrialRecord, workload: str) -> dict[str, Estimate]:
    prefix = f"{workload}/"
    return {key.removeprefix(prefix): estimate for key, estimate in record.estimates.items() if key.startswith(prefix)}


def _metrics(window: Measurement) -> dict[str, float]:
    """A window's metrics, with what its draft counters say where they do not say it."""
    counted = window.acceptance
    if counted is None or counted.length is None or not counted.draft_tokens:
        return window.metrics
    rate = counted.accepted_tokens / counted.draft_tokens
    return {"acceptance_length": counted.length, "acceptance_rate": rate, **window.metrics}


def _mean(windows: Iterable[Measurement], name: str) -> float:
    """The mean of the launches' means: the two levels of noise are not mixed."""
    launches: dict[int, list[float]] = {}
    for window in windows:
        if name in (metrics := _metrics(window)):
            launches.setdefault(window.launch, []).append(metrics[name])
    return fmean(fmean(values) for values in launches.values())


def _points(found: Iterable[tuple[str, float, int, int]]) -> tuple[Point, ...]:
    return tuple(
        Point(safe_name(name), float(value), at, step) for name, value, at, step in found if math.isfinite(value)
    )


def _trial_files(record: TrialRecord, folder: Path | None) -> dict[str, Path]:
    logs = {f"launch-{one.launch}.log": Path(one.log_path) for one in record.launches if one.log_path}
    held = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    beside = {path.relative_to(folder).as_posix(): path for path in held} if folder else {}
    return {name: path for name, path in logs.items() if path not in held} | beside


def _fitted(
    values: Mapping[str, str], limit: int, kind: str, texts: dict[str, str], redact: Callable[[str], str]
) -> dict[str, str]:
    """The values under valid names; one over the limit goes whole into `texts`, and its place says so."""
    fitted: dict[str, str] = {}
    for name, value in values.items():
        # Redacted as `name=value`: the name may be what makes a secret of it.
        text = _text(redact(f"{name}={value}").removeprefix(f"{name}="))
        if len(text) > limit:
            path = f"long_values/{kind}/{_hash(name)}.txt"
            texts[path] = text
            text = f"[{len(text)} characters, sha256 {_hash(text)}, whole in artifact {path}] {text[:200]}..."
        fitted[safe_name(name)] = text
    return fitted


def _text(value: str) -> str:
    """What every store takes: PostgreSQL refuses NUL."""
    return value.replace("\0", "\\x00")


def uid_of(text: str) -> str:
    """The text where a filter can hold it, else its hash."""
    return text if re.fullmatch(r"[A-Za-z0-9_.:-]{1,200}", text) else _hash(text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
