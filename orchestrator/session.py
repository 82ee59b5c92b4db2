"""Session: one run of a plan, from its lock to its closing table; what was there before is taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.mlflow_tracker import MlflowTracker
from trackers.problems import JournalBusy
from trackers.records import Estimate
from trackers.sync import sync

from .audit_peaks import audit_peaks
from .budget import Budget
from .clock import Clock, SystemClock
from .engine_actor import RaySlots
from .errors import Interrupted, LockHeld
from .fingerprint import machine_class
from .home import home, store_uri
from .interrupts import stop_on_signals
from .janitor import sweep
from .kept_plan import keep_plan
from .library import shelves
from .memory import Memory
from .plan import TuningPlan
from .prepare import prepare_studies
from .progress import Progress, make_progress
from .report_html import report_at_end
from .shift import PeakShift
from .slots import Slots
from .study import Bench, Study
from .tables import closing
from .tune import Outcome, conclude, run_studies

__all__ = ["Result", "journal_directory", "open_memory", "tune_plan"]

Work = Callable[[Sequence[Study], Bench], Outcome]
_REPORT = "report.html"


def journal_directory(plan: TuningPlan) -> Path:
    """Where a plan's journal lies: one per plan name, in the data directory of this user."""
    return home() / "journals" / plan.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run found, and how it ended."""

    plan: TuningPlan
    studies: Sequence[Study]
    outcome: Outcome
    launches: int
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 done (`cannot tell` included), 4 nothing could be measured."""
        return 0 if any(self.outcome.peaks.values()) else 4

    def text(self) -> str:
        stacks = {study.engine: study.stack for study in self.studies}
        table = closing(self.outcome.peaks, self.outcome.shifts, stacks, self.outcome.ended)
        return f"{table}\n{self.launches} launches in all runs of this plan. `repeak ui` opens every trial."

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.name,
            "studies": [
                {
                    "engine": study.engine,
                    "study": study.key,
                    "stack": study.stack.items,
                    "ended": self.outcome.ended.get(study.engine),
                    "peaks": {
                        name: peak.model_dump(mode="json") for name, peak in self.outcome.peaks[study.engine].items()
                    },
                }
                for study in self.studies
            ],
            "shifts": [shift.model_dump(mode="json") for shift in self.outcome.shifts],
            "launches": self.launches,
            "interrupted": self.interrupted,
        }


def tune_plan(
    plan: TuningPlan,
    *,
    address: str | None = None,
    slots: Slots | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    work: Work = run_studies,
) -> Result:
    """Run a plan, or go on with it.

    Args:
        plan: Validated.
        address: Of a Ray cluster to join; our own local one otherwise.
        slots: Replaces Ray's (rehearsals and tests).
        progress: Where to say what happens.
        clock: Time.
        work: What is done with the studies; a retune gives its own.

    Raises:
        LockHeld: Another run holds this plan's journal.
    """
    clock, progress = clock or SystemClock(), progress or make_progress()
    try:
        with open_memory(plan, progress) as (journal, memory):
            keep_plan(plan, journal.directory)
            for stray in sweep(home() / "running"):
                progress.line(f"removed an engine left by a run that died: {stray.run}")
            studies = prepare_studies(plan, logs=journal.directory / "trials", memory=memory, progress=progress)
            _open_studies(studies, plan, journal, clock)
            memory.send()
            return _run(
                plan,
                studies,
                journal,
                memory,
                slots or _ray_slots(plan, address, progress),
                progress,
                clock,
                work,
            )
    finally:
        progress.close()


@contextmanager
def open_memory(plan: TuningPlan, progress: Progress) -> Iterator[tuple[Journal, Memory]]:
    """The plan's journal, held by this run alone, and MLflow behind it.

    Trials that a dead run left open are closed as `lost`, their finished windows kept.
    """
    try:
        journal = Journal(journal_directory(plan))
    except JournalBusy as busy:
        raise LockHeld(busy.message, busy.hint) from busy
    with journal, MlflowTracker(store_uri(plan.tracking.uri), home() / "mlartifacts") as tracker:
        for message in journal.messages:
            progress.line(message)
        for orphan in journal.orphans():
            journal.trial(orphan.closed("lost", "the run that measured it died"))
        yield journal, Memory(journal, partial(sync, journal, tracker), progress.line)


def _run(
    plan: TuningPlan,
    studies: Sequence[Study],
    journal: Journal,
    memory: Memory,
    slots: Slots,
    progress: Progress,
    clock: Clock,
    work: Work,
) -> Result:
    keys = {study.key for study in studies}
    before = [record for record in memory.all() if record.study in keys]
    budget = Budget(launches=plan.budget.launches, time_s=plan.budget.time_s, before=before, clock=clock)
    bench = Bench(plan=plan, slots=slots, memory=memory, budget=budget, clock=clock, progress=progress)
    interrupted = False
    try:
        with stop_on_signals(slots.abort, slots.kill):
            outcome = work(studies, bench)
    except Interrupted:
        interrupted = True
        outcome = conclude(studies, plan, memory)
    finally:
        slots.close()
    if _close_studies(studies, outcome, journal, clock):
        report_at_end(shelves(plan.name), plan, journal.directory / _REPORT, progress.line)
    memory.outage = False
    memory.send()
    return Result(plan=plan, studies=studies, outcome=outcome, launches=budget.used, interrupted=interrupted)


def _ray_slots(plan: TuningPlan, address: str | None, progress: Progress) -> RaySlots:
    return RaySlots(plan.slots.count, address=address, gpus=plan.slots.gpus, directory=home(), say=progress.line)


def _open_studies(studies: Sequence[Study], plan: TuningPlan, journal: Journal, clock: Clock) -> None:
    known = journal.studies()
    for study in studies:
        if study.key in known:
            continue
        environment = study.pad.environment.directory
        lock = environment / "requirements.lock" if environment else None
        journal.study(
            StudyOpened(
                study=study.key,
                plan=plan.name,
                model=study.stack.items["model"],
                machine=machine_class(study.stack),
                fingerprint=study.stack,
                started_at=clock.time(),
                facts={"engine": study.engine},
                files={"environment/requirements.lock": str(lock)} if lock and lock.exists() else {},
            )
        )


def _close_studies(studies: Sequence[Study], outcome: Outcome, journal: Journal, clock: Clock) -> bool:
    """Peaks and verdicts beside the trials; written again, and True, only when they changed."""
    changed = False
    for study in studies:
        peaks = outcome.peaks[study.engine]
        if not peaks:
            continue
        facts = {f"peak.{name}": peak.configuration.label() for name, peak in peaks.items()}
        facts |= {f"verdict.{name}": peak.verdict for name, peak in peaks.items()}
        facts |= _shift_facts(study, studies, outcome.shifts)
        audited = audit_peaks(study, peaks, journal.records(study.key), journal.directory / "audits")
        closed = StudyClosed(
            study=study.key,
            at=clock.time(),
            verdict="; ".join(f"{name}: {peak.verdict}" for name, peak in peaks.items()),
            peak={name: peak.model_dump(mode="json") for name, peak in peaks.items()},
            facts=facts | audited.facts,
            files=audited.files | {_REPORT: str(journal.directory / _REPORT)},
            metrics={
                f"peak.{name}.{key}": value
                for name, peak in peaks.items()
                for key, value in _numbers(peak.estimate).items()
            },
        )
        last = journal.closings(study.key)[-1:]
        if not last or last[0].model_copy(update={"at": closed.at}) != closed:
            changed |= journal.peak(closed)
    return changed


def _shift_facts(study: Study, studies: Sequence[Study], shifts: Sequence[PeakShift]) -> dict[str, str]:
    """Verdicts between the engine before and this one."""
    position = studies.index(study)
    targets = max(1, len(shifts) // max(1, len(studies) - 1))
    mine = shifts[(position - 1) * targets : position * targets] if position else []
    return {f"shift.{shift.target.name}": shift.verdict for shift in mine}


def _numbers(estimate: Estimate) -> dict[str, float]:
    return {
        "value": estimate.value,
        "half_width": estimate.half_width,
        "launches": float(estimate.launches),
        "windows": float(estimate.windows),
    }
