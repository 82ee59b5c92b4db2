"""Study: one search on one engine; ask, refuse or run, remember, tell, until the space or the budget ends."""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from search_spaces.configuration import Configuration
from search_spaces.feasibility import KnownFacts
from search_spaces.space import SearchSpace
from trackers.records import AGAIN, Failure, Launch, Role, StackFingerprint, TrialRecord

from .budget import Budget
from .clock import Clock
from .errors import EnvironmentBroken, Interrupted
from .k_probe import METRIC, KProbe
from .memory import Memory
from .objective import goal_names, goals, limits, targets
from .orders import Launchpad
from .plan import TuningPlan
from .progress import Progress
from .refusal import gamble, refuse
from .searcher import Searcher
from .slots import Slots
from .trial import TrialPlan, run_trial

__all__ = ["Bench", "Study", "attempt", "search", "search_trials"]

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One space, one fingerprint: what makes its numbers comparable with each other.

    `key` stands for model, workloads, fixed flags and stack; budget and search settings are not part of it.
    """

    engine: str
    key: str
    stack: StackFingerprint
    space: SearchSpace
    pad: Launchpad
    facts: KnownFacts
    incumbent: Configuration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all studies of one run share."""

    plan: TuningPlan
    slots: Slots
    memory: Memory
    budget: Budget
    clock: Clock
    progress: Progress

    @property
    def workload_names(self) -> tuple[str, ...]:
        return tuple(workload.name for workload in self.plan.workloads)


def search(
    study: Study, bench: Bench, *, allowance: int, workers: int = 1, spare: Callable[[], int] = lambda: 0
) -> str:
    """Search one engine's space.

    Args:
        study: Where.
        bench: With what.
        allowance: Launches that this study's search may use, those of earlier runs included.
        workers: Trials at the same time.
        spare: Asked once that is used: launches kept for something else that turned out not to need them.

    Returns:
        Why the search ended, in words.

    Raises:
        EnvironmentBroken: The environment, not a configuration, keeps engines from running.
        Interrupted: The user asked to stop.
    """
    searcher, probe = _searcher(study, bench, allowance), _probe(study, bench)

    def promising() -> Configuration | None:
        found = probe.next(bench.memory.of(study.key)) if probe else None
        if found is None:
            return None
        said = f"next {found[0].label()}: the curve so far promises {found[1]:.4g} {METRIC}"
        bench.progress.line(f"{study.engine}  {said}")
        return found[0]

    def risky(one: Configuration) -> bool:
        return gamble(one, study.space, bench.memory.of(study.key))

    lock, ended = threading.Lock(), list[str]()

    def work() -> None:
        while True:
            with lock:
                reason = bench.budget.spent() or _share(study, bench, allowance, spare)
                choice = None if reason else searcher.ask(first=promising, avoid=risky)
                if choice is None:
                    ended.append(reason or "every configuration of the space was measured")
                    return
                role: Role = "incumbent" if choice == study.incumbent else "search"
                # Taken inside the lock: two workers must not both see the last launch as free.
                reserved = int(bench.budget.take())
            record = attempt(study, bench, choice, role, reserved=reserved)
            with lock:
                found = goals(record, bench.plan.objective, bench.workload_names)
                searcher.tell(choice, found, limits(record, bench.plan.objective, bench.workload_names))

    _run_together(work, workers)
    return ended[0]


def attempt(
    study: Study, bench: Bench, configuration: Configuration, role: Role, *, reserved: int = 0, beside: str = ""
) -> TrialRecord:
    """One configuration: refused before a launch, or run; a lost worker is tried once more elsewhere.

    `beside` is the study that it takes turns with.
    """
    record = _attempt_once(study, bench, configuration, role, beside)
    bench.budget.settle(reserved, len(record.launches))
    if record.state == "lost":
        record = _attempt_once(study, bench, configuration, role, beside)
        bench.budget.settle(0, len(record.launches))
    if record.state == "interrupted":
        raise Interrupted(record.reason, "Run the same command again to go on.")
    failure = record.failure
    # A package that only this drafter needs says nothing of the environment.
    own = failure is not None and failure.cause == "missing_package" and configuration.drafter != "none"
    if failure is not None and failure.kind == "environment" and not own:
        raise EnvironmentBroken(
            f"{study.engine}: {failure.message}",
            f"This is not a matter of the configuration ({failure.cause}): {failure.evidence}",
        )
    return record


def _attempt_once(study: Study, bench: Bench, configuration: Configuration, role: Role, beside: str) -> TrialRecord:
    number = bench.memory.next_number(study.key)
    plan = TrialPlan(
        trial_id=f"{study.key}-{number:04d}-{uuid.uuid4().hex[:6]}",
        study=study.key,
        number=number,
        role=role,
        configuration=configuration,
        fingerprint=study.stack,
        workloads=bench.plan.workloads,
        metric=bench.plan.objective.metric,
        rule=bench.plan.precision.rule(finalist=role != "search"),
        noise=lambda workload, metric: bench.memory.noise(
            workload, metric, bench.plan.precision, but=configuration.key
        ),
        gates=bench.plan.gates.names,
        beside=beside,
        ran_before=bench.memory.was_measured(study.key, configuration.key),
        order=lambda launch: study.pad.order(configuration, plan.trial_id, launch),
        say=lambda text: bench.progress.now(study.engine, f"{configuration.label()}: {text}"),
    )
    bench.memory.begin(plan.start(bench.clock.time()))
    refusal = refuse(study, configuration, bench.memory.of(study.key))
    if refusal is not None:
        record = _refused(plan, refusal, bench.clock)
    else:
        with bench.slots.lease(study.engine) as slot:
            record = run_trial(plan, slot, bench.memory, clock=bench.clock)
    bench.memory.remember(record)
    bench.progress.now(study.engine, "")
    bench.progress.line(f"{study.engine}  {_told(record, bench)}")
    return record


def _refused(plan: TrialPlan, failure: Failure, clock: Clock) -> TrialRecord:
    return TrialRecord(
        trial_id=plan.trial_id,
        study=plan.study,
        number=plan.number,
        role=plan.role,
        state="refused",
        reason=f"{failure.cause}: {failure.message}",
        configuration=plan.configuration,
        fingerprint=plan.fingerprint,
        workloads=tuple(workload.ref for workload in plan.workloads),
        started_at=clock.time(),
        duration_s=0.0,
        beside=plan.beside,
    )


def search_trials(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials of a search that count, one each: finalists and interrupted ones are not among them."""
    return [one for one in records if one.role in ("search", "incumbent") and one.state not in AGAIN]


def launches_of(records: Sequence[TrialRecord]) -> list[Launch]:
    return [launch for record in records for launch in record.launches]


def _share(study: Study, bench: Bench, allowance: int, spare: Callable[[], int]) -> str | None:
    used = len(launches_of(search_trials(bench.memory.of(study.key))))
    if used < allowance or used < (allowance := allowance + spare()):
        return None
    return f"its share of {allowance} launches is used"


def _probe(study: Study, bench: Bench) -> KProbe | None:
    """For where a drafter's curve peaks; samplers that are a comparison's other side go without."""
    plan = bench.plan
    if plan.objective.metric != METRIC or plan.search.sampler not in ("tpe", "gp", "cmaes"):
        return None
    return KProbe(study.space, [target.workloads for target in targets(plan.objective, bench.workload_names)])


def _searcher(study: Study, bench: Bench, allowance: int) -> Searcher:
    plan, names = bench.plan, bench.workload_names
    known = [
        (record.configuration, goals(record, plan.objective, names), limits(record, plan.objective, names))
        for record in search_trials(bench.memory.of(study.key))
    ]
    queue = [study.incumbent] if study.incumbent else []
    size = study.space.size()
    if size is not None and size <= allowance and plan.budget.launches:
        queue += list(study.space.enumerate(limit=size))
    else:
        queue += list(study.space.opening())
    return Searcher(
        study.space,
        goals=len(goal_names(plan.objective, names)),
        sampler=plan.search.sampler,
        seed=plan.search.seed,
        queue=queue,
        known=known,
    )


def _told(record: TrialRecord, bench: Bench) -> str:
    metric = bench.plan.objective.metric
    shown = [
        f"{name} {estimate.value:.4g} +-{estimate.relative:.0%}"
        for name in bench.workload_names
        if (estimate := record.estimates.get(f"{name}/{metric}")) is not None
    ]
    what = ", ".join(shown) if shown else record.reason
    return f"#{record.number} {record.configuration.label()}: {record.state}, {what}"


def _run_together(work: Callable[[], None], workers: int) -> None:
    """Run `work` in threads; the first exception is raised once all have ended."""
    if workers == 1:
        work()
        return
    # Threads of one interpreter take turns: where glibc gives each an arena, what is kept scatters over all of them.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    with ThreadPoolExecutor(workers, thread_name_prefix="trial") as pool:
        futures = [pool.submit(work) for _ in range(workers)]
        wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        future.result()
