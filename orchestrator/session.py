"""Session: one run of a plan, from its lock to its closing table; what was there before is taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.mlflow_tracker import MlflowTracker
from trackers.problems import JournalBusy
from trackers.records import Estimate, TrialRecord
from trackers.sync import sync

from .advice import Advice, advice_text
from .audit_peaks import audit_peaks
from .budget import Budget
from .clock import Clock, SystemClock
from .engine_actor import RaySlots
from .engine_environment import existing_environment
from .errors import Interrupted, LockHeld, RepeakError
from .fingerprint import machine_class
from .home import home, store_uri
from .interpreters import probe_interpreter
from .interrupts import stop_on_last, stop_on_signals
from .janitor import sweep
from .kept_plan import keep_plan
from .library import Shelf, shelves
from .memory import Memory
from .plan import EngineSpec, TuningPlan
from .prepare import environments_root, prepare_studies, request_of
from .progress import Progress, make_progress
from .report_html import report_at_end
from .shift import PeakShift
from .slots import Slots
from .study import Bench, Study
from .tables import closing
from .tune import Outcome, conclude, run_studies
from .window import Window

__all__ = ["Result", "Scope", "journal_directory", "open_memory", "tune_plan"]

Work = Callable[[Sequence[Study], Bench], Outcome]
_REPORT = "report.html"


def journal_directory(plan: TuningPlan) -> Path:
    """Where a plan's journal lies: one per plan name, in the data directory of this user."""
    return home() / "journals" / plan.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One engine of a plan taken up alone, after a study that was finished on another stack.

    `study` names the engine's study (with the model's variant, where there are several), `facts` are
    remembered of it; `before` is the engine of the finished study, where it is another one.
    """

    engine: EngineSpec
    study: str
    old: Shelf
    facts: Mapping[str, str]
    before: EngineSpec | None = None

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """The engine, after the one before it where that is still here: an old one is not built for this."""
        with suppress(RepeakError):
            if self.before and (self.before.simulated or _as_made(self.before)):
                return (self.before, self.engine)
        return (self.engine,)

    def studies(self, prepared: Sequence[Study]) -> list[Study]:
        """The finished study, which nothing can be launched for unless its very stack is still here, and the new."""
        new = next(one for one in prepared if one.engine == self.study)
        opened = self.old.opened
        if here := next((one for one in prepared if one.key == opened.study), None):
            return [here, new]
        name = opened.facts.get("engine", opened.study)
        name = f"{name} before" if name == new.engine else name
        return [replace(new, engine=name, key=opened.study, stack=opened.fingerprint), new]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run found, and how it ended."""

    plan: TuningPlan
    studies: Sequence[Study]
    outcome: Outcome
    launches: int
    interrupted: bool = False

    @property
    def advice(self) -> Sequence[Advice]:
        return self.outcome.advice

    @property
    def finished(self) -> set[str]:
        """Engines that have a peak for every target they were looked at for."""
        return {engine for engine, peaks in self.outcome.peaks.items() if peaks}

    @property
    def exit_code(self) -> int:
        """0 done (`cannot tell` included), 4 nothing could be measured."""
        return 0 if any(self.outcome.peaks.values()) else 4

    def text(self) -> str:
        stacks = {study.engine: study.stack for study in self.studies}
        table = closing(self.outcome.peaks, self.outcome.shifts, stacks, self.outcome.ended)
        told = "".join(f"{advice_text(one)}\n" for one in self.outcome.advice)
        return f"{told}{table}\n{self.launches} launches in all runs of this plan. `repeak ui` opens every trial."

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
            "advice": [one.model_dump(mode="json") for one in self.outcome.advice],
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
    scope: Scope | None = None,
    window: Window | None = None,
) -> Result:
    """Run a plan, or go on with it.

    Args:
        plan: Validated.
        address: Of a Ray cluster to join; our own local one otherwise.
        slots: Replaces Ray's (rehearsals and tests).
        progress: Where to say what happens.
        clock: Time.
        work: What is done with the studies; a retune gives its own.
        scope: One engine alone; the plan's budget counts its launches then, and those in turn with them.
        window: Of time, for this run: nothing starts that would not end in it, and its end ends what runs.

    Raises:
        LockHeld: Another run holds this plan's journal.
    """
    clock, progress = clock or SystemClock(), progress or make_progress()
    window = window or Window(clock)
    try:
        # From the first moment: building what engines need is long, and this signal would end it.
        with stop_on_last(window.stop), open_memory(plan, progress) as (journal, memory), ExitStack() as stack:
            keep_plan(plan, journal.directory)
            held = slots or RaySlots(plan.slots, address=address, directory=home(), say=progress.line)
            stack.callback(held.close)
            if isinstance(held, RaySlots):
                held.check()
            for stray in sweep(home() / "running"):
                progress.line(f"removed an engine left by a run that died: {stray.run}")
            wanted = plan.model_copy(update={"engines": scope.engines}) if scope else plan
            studies = prepare_studies(wanted, logs=journal.directory / "trials", memory=memory, progress=progress)
            studies = scope.studies(studies) if scope else studies
            if isinstance(held, RaySlots):
                held.engines = {study.engine: (study.pad.environment, study.stack) for study in studies}
            _open_studies(studies, plan, journal, clock, scope.facts if scope else {})
            memory.send()
            every = [one for study in studies for one in memory.of(study.key)]
            budget = Budget(
                launches=plan.budget.launches,
                time_s=plan.budget.time_s,
                before=_paid(studies, memory) if scope else every,
                clock=clock,
                window=window,
                launch_s=sum(one.duration_s for one in every) / max(1, sum(len(one.launches) for one in every)),
            )
            bench = Bench(plan=plan, slots=held, memory=memory, budget=budget, clock=clock, progress=progress)
            return _run(studies, bench, journal, work, closing=studies[bool(scope) :])
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
        with Memory(journal, partial(sync, journal, tracker), progress.line) as memory:
            yield journal, memory


def _as_made(engine: EngineSpec) -> bool:
    """Whether an engine's environment is here and answers as it was made: it would be built anew otherwise."""
    found = existing_environment(request_of(engine), environments_root())
    return found is not None and probe_interpreter(found.python)["packages"] == found.packages


def _paid(studies: Sequence[Study], memory: Memory) -> list[TrialRecord]:
    """What a study taken up alone has cost: its own trials, and the finished one's that took turns with them."""
    old, new = (memory.of(study.key) for study in studies)
    begun = min((one.started_at for one in new), default=math.inf)
    ours = ("", studies[1].key)
    return [*new, *(one for one in old if one.role == "in_turn" and one.started_at >= begun and one.beside in ours)]


def _run(studies: Sequence[Study], bench: Bench, journal: Journal, work: Work, *, closing: Sequence[Study]) -> Result:
    plan, memory, budget, slots = bench.plan, bench.memory, bench.budget, bench.slots
    try:
        with stop_on_signals(slots.abort, slots.kill), budget.window.closing(slots.abort):
            outcome = work(studies, bench)
    except Interrupted:
        ended = {study.engine: budget.spent() or "interrupted" for study in studies}
        outcome = replace(conclude(studies, plan, memory, ended), interrupted=True)
    finally:
        slots.close()
    memory.wait()  # a closing goes with its report, which is made after it
    if _close_studies(closing, outcome, journal, bench.clock):
        report_at_end(shelves(plan.name), plan, journal.directory / _REPORT, bench.progress.line)
    memory.outage = False
    memory.send()
    # What the end of its window ended was not stopped by anybody.
    stopped = outcome.interrupted and budget.window.left_s() > 0
    return Result(plan=plan, studies=studies, outcome=outcome, launches=budget.used, interrupted=stopped)


def _open_studies(
    studies: Sequence[Study], plan: TuningPlan, journal: Journal, clock: Clock, facts: Mapping[str, str]
) -> None:
    known = journal.studies()
    named = {"experiment": plan.tracking.experiment} if plan.tracking.experiment else {}
    for study in studies:
        if study.key in known:
            continue
        environment = study.pad.environment.directory
        lock = environment / "lock.txt" if environment else None
        journal.study(
            StudyOpened(
                study=study.key,
                plan=plan.name,
                model=study.stack.items["model"],
                machine=machine_class(study.stack),
                fingerprint=study.stack,
                started_at=clock.time(),
                facts={"engine": study.engine, **named, **facts},
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
        for one in outcome.advice:
            if one.engine == study.engine:
                told = "; ".join([one.do, *one.change, one.sure, f"verdict: {one.peak}"])
                facts |= {f"shift.{one.target}": one.verdict, f"advice.{one.target}": told}
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
