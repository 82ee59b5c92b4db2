"""What the journal holds beside trials: a study's opening and closing, a trial's start, a trial left open."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from search_spaces.configuration import Configuration

from .records import Frozen, Launch, Measurement, Role, StackFingerprint, TrialRecord, WorkloadRef

__all__ = ["Orphan", "StudyClosed", "StudyOpened", "TrialStarted"]


class StudyOpened(Frozen):
    """One search on one stack: what a store needs to file its trials.

    `facts` become tags of the study's run, `files` (artifact path -> path on disk) its artifacts.
    """

    study: str
    plan: str
    model: str
    machine: str
    fingerprint: StackFingerprint
    started_at: float
    facts: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)


class StudyClosed(Frozen):
    """How a study ended, as often as it ended: a later closing replaces an earlier one where people look.

    `peak` is the peak's own JSON, `facts` and `metrics` what of it belongs in tags and metrics.
    """

    study: str
    at: float
    verdict: str
    peak: dict[str, Any] | None = None
    facts: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)


class TrialStarted(Frozen):
    """A trial handed to a slot: all that a record of it needs if nothing more is ever heard."""

    trial_id: str
    study: str
    number: int
    role: Role
    configuration: Configuration
    fingerprint: StackFingerprint
    workloads: tuple[WorkloadRef, ...]
    started_at: float
    beside: str = ""


class Orphan(Frozen):
    """A trial that began and has no record: its driver died."""

    start: TrialStarted
    launches: tuple[Launch, ...] = ()
    windows: tuple[Measurement, ...] = ()

    def closed(self, state: Literal["interrupted", "lost"], reason: str) -> TrialRecord:
        """Its record, with every finished window and no estimate; it lasts to the end of what was seen."""
        begun = self.start.started_at
        ends = [begun, *(launch.started_at + (launch.ready_s or 0) for launch in self.launches)]
        ends += [window.started_at + window.duration_s for window in self.windows]
        head = {name: getattr(self.start, name) for name in TrialStarted.model_fields}
        return TrialRecord(
            **head,
            state=state,
            reason=reason,
            launches=self.launches,
            windows=self.windows,
            duration_s=max(ends) - begun,
        )
