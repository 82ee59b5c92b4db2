"""Tune: a search per engine, finalists in alternation over the engines, then peaks and the shift between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, zip_longest

from search_spaces.configuration import Configuration
from trackers.records import AGAIN, TrialRecord

from .advice import Advice
from .candidates import Candidate, Target, candidates, noise_of
from .errors import EnvironmentBroken
from .gates import broken_gates
from .memory import Memory
from .objective import targets
from .peak import Peak, contenders, declare_peak, finalist_order
from .plan import TuningPlan
from .shift import PeakShift, judge_shift
from .study import Bench, Study, attempt, search, search_trials

__all__ = ["Outcome", "conclude", "launch_bounds", "peaks_of", "run_studies"]

_ROUNDS = 3


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
    aside: Mapping[str, set[str]] = {}
    for _ in range(_ROUNDS):
        _finals(studies, bench, aside)
        outcome = conclude(studies, bench.plan, bench.memory, ended)
        peaks = [peak for by_target in outcome.peaks.values() for peak in by_target.values()]
        if not any(map(_open_still, peaks)) or bench.budget.spent():
            break
        aside = {
            engine: {label for peak in by_target.values() for label in peak.set_aside}
            for engine, by_target in outcome.peaks.items()
        }
    return outcome


def _open_still(peak: Peak) -> bool:
    """Whether finalists that were set aside are to make room for the next ones.

    Where nothing holds that was launched afresh; and where the incumbent stays only as what was ahead of it could
    not be judged.
    """
    return not peak.confirmed or (peak.verdict == "incumbent stays" and bool(peak.set_aside))


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
    finals = _finalists_at_most(plan) * plan.finalists.launches
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


def _finals(studies: Sequence[Study], bench: Bench, aside: Mapping[str, set[str]]) -> None:
    """Launch every engine's finalists afresh, there and back, the engines taking turns: drift falls on all.

    Left out are those already set `aside` (engine -> their labels).
    """
    plan = bench.plan
    orders = []
    for study in studies:
        out = aside.get(study.engine, set())
        searched = search_trials(bench.memory.of(study.key))
        boards = _boards([one for one in searched if one.configuration.label() not in out], plan)
        chosen = contenders(boards, plan.precision.zone, plan.finalists.count, study.incumbent)
        orders.append([(study, one) for one in finalist_order(chosen, plan.finalists.launches)])
    done: dict[tuple[str, Configuration], int] = {}
    for study, configuration in filter(None, chain.from_iterable(zip_longest(*orders))):
        at = (study.key, configuration)
        done[at] = done.get(at, 0) + 1
        if _launched_afresh(study, configuration, bench) >= done[at]:
            continue
        if not bench.budget.take():
            bench.progress.line(f"finalists are not complete: {bench.budget.spent()}")
            return
        try:
            attempt(study, bench, configuration, "finalist", reserved=1)
        except EnvironmentBroken as broken:
            bench.progress.line(f"{study.engine}: {broken}")


def _launched_afresh(study: Study, configuration: Configuration, bench: Bench) -> int:
    return sum(
        1
        for record in bench.memory.of(study.key)
        if record.role == "finalist" and record.configuration == configuration and record.state not in AGAIN
    )


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
    found = {}
    for target, field in _boards(records, plan):
        noise = noise_of(field, plan.precision.launch_noise)
        peak = declare_peak(
            field,
            target,
            noise,
            plan.precision.zone,
            incumbent=study.incumbent,
            defaults=study.space.defaults.values,
        )
        if peak is not None:
            found[target.name] = peak
    return found


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
    return judge_shift(before, after, peak.configuration, target, noise, plan.precision.zone)
