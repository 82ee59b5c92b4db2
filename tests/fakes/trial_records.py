"""Trial records as a study makes them, for tests of what remembers them."""

from __future__ import annotations

from typing import Any

from search_spaces.configuration import Configuration
from trackers.entries import StudyOpened, TrialStarted
from trackers.records import (
    Acceptance,
    Estimate,
    Launch,
    Measurement,
    StackFingerprint,
    TrialRecord,
    WorkloadRef,
)

EDIT = WorkloadRef(name="edit", sha256="e" * 64)
STACK = StackFingerprint(items={"vllm": "0.32.0", "torch": "2.14.0", "gpu": "none"})
PERCENTILES = {f"p{p}_{name}_ms": 1.5 * p for p in (50, 90, 99) for name in ("ttft", "tpot", "itl", "e2el")}


def window(launch: int = 0, number: int = 0, **changes: Any) -> Measurement:
    held: dict[str, Any] = {
        "workload": EDIT,
        "launch": launch,
        "window": number,
        "started_at": 100.0 + 10 * launch + number,
        "duration_s": 1.0,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 100,
        "total_output_tokens": 200,
        "metrics": {"decode_tok_s": 50.0 + launch + number / 10, "passes_s": 12.5, **PERCENTILES},
        "acceptance": Acceptance(drafts=10, draft_tokens=40, accepted_tokens=30),
    }
    return Measurement.model_validate(held | changes)


def windows(launches: int = 2, each: int = 2) -> tuple[Measurement, ...]:
    return tuple(window(launch, number) for launch in range(launches) for number in range(each))


def started(trial_id: str = "t1", number: int = 1) -> TrialStarted:
    return TrialStarted(
        trial_id=trial_id,
        study="s",
        number=number,
        role="search",
        configuration=Configuration(values={"drafter": "ngram", "k": number, "max_num_seqs": 16}),
        fingerprint=STACK,
        workloads=(EDIT,),
        started_at=90.0,
    )


def trial(trial_id: str = "t1", number: int = 1, **changes: Any) -> TrialRecord:
    start = started(trial_id, number)
    measured = changes.get("windows", windows())
    estimate = Estimate(value=50.5, half_width=1.25, launches=2, windows=len(measured), ending="stable")
    held: dict[str, Any] = {name: getattr(start, name) for name in TrialStarted.model_fields}
    held |= {
        "state": "measured",
        "reason": "stable",
        "launches": tuple(Launch(launch=n, started_at=92.0 + 10 * n, ready_s=4.0) for n in range(2)),
        "windows": measured,
        "estimates": {"edit/decode_tok_s": estimate},
        "duration_s": 30.0,
    }
    return TrialRecord.model_validate(held | changes)


def study(name: str = "s", **changes: Any) -> StudyOpened:
    held: dict[str, Any] = {
        "study": name,
        "plan": "plan",
        "model": "model",
        "machine": "cpu",
        "fingerprint": STACK,
        "started_at": 80.0,
    }
    return StudyOpened.model_validate(held | changes)
