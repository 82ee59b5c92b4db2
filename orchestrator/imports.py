"""Others' results as records: `vllm bench serve` files and `vllm bench sweep` folders, never a peak."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from search_spaces.configuration import Configuration, Scalar
from trackers.entries import StudyOpened, TrialStarted
from trackers.journal import Journal
from trackers.records import Acceptance, Launch, Measurement, StackFingerprint, TrialRecord, WorkloadRef

from .errors import PlanError

__all__ = ["import_results", "read_results"]

_METRIC = re.compile(r"(mean|median|std|p[\d.]+)_(ttft|tpot|itl|e2el)_ms|request_goodput|.*_throughput")
_COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens", "duration")
# What shapes the traffic; beside it and the result's own keys a sweep merges in the server's flags.
_TRAFFIC = re.compile(
    r"(random|sonnet|sharegpt|custom|hf|prefix_repetition|spec_bench|dataset|input|output|ramp|num_prompts$"
    r"|request_rate|burstiness|max_concurrency|seed|ignore_eos|temperature|top_|goodput|endpoint|backend).*"
)
_OWN = re.compile(
    r"date|endpoint_type|label|model_id|tokenizer_id|rtfx|max_output_tokens_per_s|max_concurrent_requests"
    r"|spec_decode_.*|probe_.*|ttfts|itls|tpots|latencies|queue_times|server_.*|generated_texts|errors|start_times"
    r"|input_lens|output_lens|run_number|total_input_sequences|total_token_.*|client_queue.*|.*_ms"
)


def read_results(path: Path) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """(where, runs) of each combination; a sweep's runs of one folder are one combination, warm-ups are not.

    Raises:
        PlanError: Nothing there is a result of `vllm bench serve`.
    """
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        runs = [run for run in _runs(file) if {"completed", "duration"} <= run.keys()]
        sweep = file.name == "summary.json" or file.name.startswith("run=")
        again = file.name == "summary.json" and any(file.parent.glob("run=*.json"))
        if runs and not again and file.name != "warmup.json":
            found.setdefault(str(file.parent if sweep else file), []).extend(runs)
    if not found:
        raise PlanError(
            f"There is no result of `vllm bench serve` in {path}.",
            "Name a file written with --save-result, or the folder of a sweep.",
        )
    return list(found.items())


def _runs(file: Path) -> list[Mapping[str, Any]]:
    """One object, a list of them, or one a line (`--append-result`); nothing where it is something else."""
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text)
    except (OSError, UnicodeDecodeError):
        return []
    except ValueError:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            return []
    return [run for run in (data if isinstance(data, list) else [data]) if isinstance(run, dict)]


def import_results(path: Path, directory: Path, *, plan: str, version: str, machine: str) -> list[TrialRecord]:
    """Put results into a plan's journal; the same file twice is one record.

    Args:
        path: A file, or a folder of them.
        directory: The journal's.
        plan: Its name.
        version: Of the engine that was measured: a result does not say it.
        machine: Where it was measured, in words.
    """
    records = [_record(where, runs, version) for where, runs in read_results(path)]
    with Journal(directory) as journal:
        for record in records:
            opened = StudyOpened(
                study=record.study,
                plan=plan,
                model=record.fingerprint.items["model"],
                machine=machine,
                fingerprint=record.fingerprint,
                started_at=record.started_at,
                facts={"engine": f"imported {version}"},
            )
            if opened.study not in journal.studies():
                journal.study(opened)
            journal.begin(TrialStarted(**{name: getattr(record, name) for name in TrialStarted.model_fields}))
            journal.trial(record)
    return records


def _record(where: str, runs: Sequence[Mapping[str, Any]], version: str) -> TrialRecord:
    """All of it comes from the content, so that importing again makes the same record."""
    first = runs[0]
    rest = {name: one for name, one in first.items() if not _is_result(name)}
    traffic = {name: one for name, one in rest.items() if _TRAFFIC.fullmatch(name)}
    values = {n.lstrip("-").replace("-", "_"): _scalar(v) for n, v in rest.items() if n not in traffic}
    stack = StackFingerprint(items={"vllm": version, "model": str(first.get("model_id", "unknown"))})
    text = json.dumps(runs, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    width = traffic.get("max_concurrency")
    kind = str(traffic.get("dataset_name") or "bench")
    ref = WorkloadRef(
        name=f"{kind} c{width}" if width else kind,
        sha256=hashlib.sha256(json.dumps(traffic, sort_keys=True, default=str).encode()).hexdigest(),
    )
    windows = tuple(_window(run, ref, n) for n, run in enumerate(runs))
    last = windows[-1]
    return TrialRecord(
        trial_id=f"imported-{digest}",
        study=f"imported-{stack.key}",
        number=int(digest[:6], 16),
        role="imported",
        state="imported",
        reason=f"from {Path(where).name}: not measured by this instrument, so never a peak",
        configuration=Configuration(values=values),
        fingerprint=stack,
        workloads=(ref,),
        launches=(Launch(launch=0, started_at=windows[0].started_at, ready_s=None),),
        windows=windows,
        started_at=windows[0].started_at,
        duration_s=max(0.0, last.started_at + last.duration_s - windows[0].started_at),
    )


def _is_result(name: str) -> bool:
    return bool(_METRIC.fullmatch(name) or _OWN.fullmatch(name) or name in _COUNTS)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def _window(run: Mapping[str, Any], ref: WorkloadRef, number: int) -> Measurement:
    drafts = run.get("spec_decode_num_drafts")
    return Measurement(
        workload=ref,
        launch=0,
        window=number,
        started_at=_started(run),
        duration_s=float(run["duration"]),
        completed=int(run["completed"]),
        failed=int(run.get("failed") or 0),
        total_input_tokens=int(run.get("total_input_tokens") or 0),
        total_output_tokens=int(run.get("total_output_tokens") or 0),
        metrics=dict(_metrics(run)),
        acceptance=Acceptance(
            drafts=int(drafts),
            draft_tokens=int(run.get("spec_decode_draft_tokens") or 0),
            accepted_tokens=int(run.get("spec_decode_accepted_tokens") or 0),
        )
        if drafts
        else None,
    )


def _metrics(run: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in run.items():
        if _METRIC.fullmatch(name) and isinstance(value, int | float) and value > 0:
            yield name, float(value)


def _started(run: Mapping[str, Any]) -> float:
    try:
        return datetime.strptime(str(run.get("date")), "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
