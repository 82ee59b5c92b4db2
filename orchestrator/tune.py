"""Tune: a search per engine, finalists in alternation over the engines, then peaks and the shift between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, zip_longest

from search_spaces.configuration import Configuration
from trackers.records import AGAIN, TrialRecord, TrialState

from .advice import Advice
from .candidates import Candidate, Target, candidates, noise_of
from .errors import EnvironmentBroken
from .gates import broken_gates
from .memory import Memory
from .objective import targets
from .peak import Peak, contenders, declare_peak, finalist_order
from .plan import TuningPlan
from .refusal import could_not_run
from .shift import PeakShift, judge_shift
from .study import Bench, Study, attempt, search, search_trials

__all__ = ["Outcome", "conclude", "launch_bounds", "peaks_of", "run_studies"]

_ROUNDS = 3

_Aside = dict[tuple[str, str], set[str]]
"""(engine, target) whose finals go on -> the labels of what they set aside so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a tune found: per engine why its search ended and its peaks by target; shifts in plan order.

    A retune has advice too; one that was `interrupted` has what it got to.
    """

    ended: Mapping[str, str]
    peaks: Mapping[str, Mapping[str, Peak]]
    shifts: Sequence[PeakShift]
    advice: Sequence[Advice] = ()
    interrupted: bool = False


def run_studies(studies: Sequence[Study], bench: Bench) -> Outcome:
    """Search each engine, launch finalists afresh, declare.

    With everything measured already it only reads: no slot is leased, so no Ray starts.
    """
    ended = _search_all(studies, bench)
    wanted = targets(bench.plan.objective, bench.plan.workload_names)
    aside: _Aside = {(study.engine, target.name): set() for study in studies for target in wanted}
    finalists: dict[str, set[Configuration]] = {study.engine: set() for study in studies}
    for _ in range(_ROUNDS):
        orders = [_finalists(study, bench, aside) for study in studies]
        for study, order in zip(studies, orders, strict=True):
            finalists[study.engine].update(order)
        _finals(studies, orders, bench)
        aside = _still_open(studies, bench, finalists)
        if not aside or bench.budget.spent():
            break
    return conclude(studies, bench.plan, bench.memory, ended)


def _still_open(studies: Sequence[Study], bench: Bench, finalists: Mapping[str, set[Configuration]]) -> _Aside:
    """Where finalists that were set aside are to make room for the next ones, and which those are.

    It is so where nothing holds that was launched afresh; and where the incumbent stays only as what was read ahead
    of it could not be judged. Only the `finalists` of the rounds so far count: a run that was stopped goes through
    the same rounds again.
    """
    found: _Aside = {}
    for study in studies:
        records = bench.memory.of(study.key)
        records = [one for one in records if one.role != "finalist" or one.configuration in finalists[study.engine]]
        for target, field in _boards(records, bench.plan):
            peak = _peak(study, bench.plan, target, field)
            if peak is None:
                continue
            read = {c.configuration.label(): target.score(c.searched) for c in field if c.searched}
            ahead = read.get(peak.configuration.label(), math.inf)
            missed = any(read.get(label, -math.inf) > ahead for label in peak.set_aside)
            if not peak.confirmed or (peak.verdict == "incumbent stays" and missed):
                found[study.engine, target.name] = set(peak.set_aside)
    return found


def conclude(
    studies: Sequence[Study], plan: TuningPlan, memory: Memory, ended: Mapping[str, str] | None = None
) -> Outcome:
    """Peaks and shifts from what is remembered, whether the study is finished or not."""
    peaks = {study.engine: peaks_of(study, plan, memory.of(study.key)) for study in studies}
    shifts = [
        _shift(old, new, target.name, peaks, plan, memory)
        for old, new in pairwise(studies)
        for target in targets(plan.objective, plan.workload_names)
    ]
    return Outcome(ended=dict(ended or {}), peaks=peaks, shifts=[one for one in shifts if one is not None])


def launch_bounds(plan: TuningPlan, studies: Sequence[Study]) -> tuple[int, int]:
    """Engine starts at least (nothing fails, nothing is repeated) and at most."""
    finals = _finalists_at_most(plan) * (plan.finalists.launches + 1)
    wanted = 0
    for study in studies:
        size = study.space.size()
        share = _share(plan, len(studies))
        wanted += min(share, size) if size is not None else share
    rule = plan.precision.rule()
    most = (wanted + _ROUNDS * finals * len(studies)) * max(1, rule.max_launches)
    least = (wanted + len(studies) * plan.finalists.launches) * rule.min_launches
    limit = plan.budget.launches
    return (min(least, limit), min(most, limit)) if limit else (least, most)


def _search_all(studies: Sequence[Study], bench: Bench) -> dict[str, str]:
    share = _share(bench.plan, len(studies))
    together = min(bench.slots.count, len(studies))
    workers = max(1, bench.slots.count // len(studies))

    def one(study: Study) -> str:
        try:
            spare = partial(_spare, study, bench, len(studies), workers)
            return search(study, bench, allowance=share, workers=workers, spare=spare)
        except EnvironmentBroken as broken:
            # The other engines' studies go on: theirs is another environment.
            bench.progress.line(f"{study.engine}: {broken}")
            return f"stopped: {broken.message}"

    if together == 1:
        return {study.engine: one(study) for study in studies}
    with ThreadPoolExecutor(together, thread_name_prefix="study") as pool:
        futures = {study.engine: pool.submit(one, study) for study in studies}
    return {engine: future.result() for engine, future in futures.items()}


def _share(plan: TuningPlan, engines: int) -> int:
    """Launches that one engine's search may use, as far as is known before it: its finalists may be all they can."""
    if plan.budget.launches is None:
        return plan.search.launches
    return _but_finals(plan, plan.budget.launches // engines, _finalists_at_most(plan))


def _but_finals(plan: TuningPlan, own: int, finalists: int) -> int:
    """What of an engine's own launches so many finalists leave to its search: half at least."""
    return max(1, own // 2, own - finalists * plan.finalists.launches)


def _spare(study: Study, bench: Bench, engines: int, workers: int) -> int:
    """Launches kept for finalists that there are not, though each trial to come may make one more."""
    plan = bench.plan
    if plan.budget.launches is None:
        return 0
    boards = _boards(search_trials(bench.memory.of(study.key)), plan)
    chosen = contenders(boards, plan.precision.zone, plan.finalists.count, study.incumbent)
    finalists = min(_finalists_at_most(plan), len(chosen) + workers)
    return _but_finals(plan, plan.budget.launches // engines, finalists) - _share(plan, engines)


def _finalists_at_most(plan: TuningPlan) -> int:
    return plan.finalists.count + (1 if plan.incumbent else 0)


def _finalists(study: Study, bench: Bench, aside: _Aside) -> tuple[Configuration, ...]:
    """What of an engine is worth launching afresh, in the order of its launches; for targets not in `aside` nothing."""
    boards = [
        (target, [c for c in field if c.configuration.label() not in aside[study.engine, target.name]])
        for target, field in _boards(search_trials(bench.memory.of(study.key)), bench.plan)
        if (study.engine, target.name) in aside
    ]
    chosen = contenders(boards, bench.plan.precision.zone, bench.plan.finalists.count, study.incumbent)
    # One more turn than launches: for what did not settle.
    return finalist_order(chosen, bench.plan.finalists.launches + 1)


def _finals(studies: Sequence[Study], orders: Sequence[Sequence[Configuration]], bench: Bench) -> None:
    """Launch every engine's finalists afresh, there and back, the engines taking turns: drift falls on all."""
    turns: dict[tuple[str, Configuration], int] = {}
    by_engine = [[(study, one) for one in order] for study, order in zip(studies, orders, strict=True)]
    for study, configuration in filter(None, chain.from_iterable(zip_longest(*by_engine))):
        at = (study.key, configuration)
        turns[at] = turns.get(at, 0) + 1
        if not _due(turns[at], _afresh(study, configuration, bench), bench.plan.finalists.launches):
            continue
        if not bench.budget.take():
            bench.progress.line(f"finalists are not complete: {bench.budget.spent()}")
            return
        try:
            attempt(study, bench, configuration, "finalist", reserved=1)
        except EnvironmentBroken as broken:
            bench.progress.line(f"{study.engine}: {broken}")


def _due(turn: int, states: Sequence[TrialState], launches: int) -> bool:
    """Whether a finalist is launched in this turn: until it has its launches, and one for those that did not settle.

    Where too many did not for the others to speak (see `candidates`) no further launch is paid for.
    """
    unsettled = states.count("unsettled")
    if 3 * unsettled > launches + 1:
        return False
    return len(states) < min(turn, launches + (unsettled > 0))


def _afresh(study: Study, configuration: Configuration, bench: Bench) -> list[TrialState]:
    return [
        record.state
        for record in bench.memory.of(study.key)
        if record.role == "finalist" and record.configuration == configuration and record.state not in AGAIN
    ]


def _boards(records: Sequence[TrialRecord], plan: TuningPlan) -> list[tuple[Target, tuple[Candidate, ...]]]:
    goals = targets(plan.objective, plan.workload_names)
    return [(target, _field(records, target, plan)) for target in goals]


def _own(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Without launches of another day: in turn with another engine, or anchors of what finals had launched before."""
    fresh = set[Configuration]()
    kept = []
    for one in records:
        if one.role == "finalist":
            fresh.add(one.configuration)
        if one.role != "in_turn" and (one.role != "anchor" or one.configuration not in fresh):
            kept.append(one)
    return kept


def _field(records: Sequence[TrialRecord], target: Target, plan: TuningPlan) -> tuple[Candidate, ...]:
    """The candidates of a target; where the plan says so, a broken gate keeps one from being a peak."""
    own = _own(records)
    found = candidates(own, target, plan.precision.rule())
    broken = broken_gates(own, plan.space.defaults) if plan.gates.exclude else {}
    vetoes = {one: f"breaks {', '.join(names)}, which the incumbent does not" for one, names in broken.items()}
    return tuple(one.model_copy(update={"veto": one.veto or vetoes.get(one.configuration, "")}) for one in found)


def peaks_of(study: Study, plan: TuningPlan, records: Sequence[TrialRecord]) -> dict[str, Peak]:
    """What these records of a study show to be best, by target."""
    found = ((target.name, _peak(study, plan, target, field)) for target, field in _boards(records, plan))
    return {name: peak for name, peak in found if peak is not None}


def _peak(study: Study, plan: TuningPlan, target: Target, field: Sequence[Candidate]) -> Peak | None:
    return declare_peak(
        field,
        target,
        noise_of(field, plan.precision.launch_noise),
        plan.precision.zone,
        incumbent=study.incumbent,
        defaults=study.space.defaults.values,
    )


def _shift(
    old: Study,
    new: Study,
    name: str,
    peaks: Mapping[str, Mapping[str, Peak]],
    plan: TuningPlan,
    memory: Memory,
) -> PeakShift | None:
    """The verdict between two engines for one target; None where the old one has no peak."""
    peak = peaks[old.engine].get(name)
    if peak is None:
        return None
    target = peak.target
    before = _field(memory.of(old.key), target, plan)
    after = _field(memory.of(new.key), target, plan)
    noise = noise_of([*before, *after], plan.precision.launch_noise)
    told = partial(could_not_run, memory.of(old.key))
    return judge_shift(before, after, peak.configuration, target, noise, plan.precision.zone, no_better_then=told)
