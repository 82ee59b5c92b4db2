"""Compare two studies: what moved in the stack, old settings on the new engine, the gain, what stayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from search_spaces.configuration import Configuration
from trackers.records import Estimate, Frozen, TrialRecord

from .candidates import Candidate, Target, candidates, noise_of
from .equivalence import Equivalence, equivalent, untouched
from .errors import PlanError
from .library import Shelf, glances, plan_names, whole
from .peak import Comparison, Peak, beats
from .plan import TuningPlan
from .refusal import could_not_run
from .retune_view import all_fresh, both_seen, restated
from .shift import PeakShift, judge_shift
from .stability import StabilityRule

__all__ = [
    "Compared",
    "Lens",
    "Step",
    "TargetMove",
    "Unmoved",
    "compare",
    "find_studies",
    "lens_of",
    "peaks_of",
]

_NUMBERS = ("prefill_tok_s", "median_ttft_ms", "acceptance_length", "passes_s", "decode_tok_s")
_SAME = 3  # indifference zones: the margin of a number that did not move
_MOST = 300  # search trials a side; of more only the best are read window by window


class Step(Frozen):
    """One configuration on both engines; no comparison where one of them did not measure it."""

    name: str
    configuration: Configuration
    old: Estimate | None = None
    new: Estimate | None = None
    new_over_old: Comparison | None = None


class Unmoved(Frozen):
    """A number tested for having stayed: `claim` says on what grounds it should have."""

    workload: str
    metric: str
    claim: str
    declared: bool
    found: Equivalence


class TargetMove(Frozen):
    """What became of one target. `gain` is the new peak over the old settings, both on the new engine.

    `drift` is the old settings on the old engine, in turn with the new one, over what its study had: by as much
    all that it measured is restated. None where they were not launched in turn.
    """

    target: Target
    shift: PeakShift
    steps: tuple[Step, ...]
    gain: Comparison | None
    stayed: tuple[Unmoved, ...]
    drift: Comparison | None = None


class Compared(Frozen):
    """Two studies side by side; `moved` is stack item -> (old, new), None where it is absent."""

    old: str
    new: str
    old_study: str
    new_study: str
    model: str
    machine: str
    moved: dict[str, tuple[str | None, str | None]]
    targets: tuple[TargetMove, ...]
    notes: tuple[str, ...] = ()
    link: str = ""


class Lens(NamedTuple):
    """Through what launches are read: the plan's rule, prior launch noise, zone, and each knob's nulls."""

    rule: StabilityRule
    prior: float
    delta: float
    nulls: Mapping[str, frozenset[str]]


def lens_of(plan: TuningPlan | None, peak: Peak) -> Lens:
    """The plan's own where it was kept, else what the peak's record implies."""
    if plan is None:
        return Lens(StabilityRule(precision=peak.delta, min_windows=1), peak.noise.sd, peak.delta, {})
    nulls: dict[str, frozenset[str]] = {}
    for knob in plan.space.knobs:
        nulls[knob.name] = nulls.get(knob.name, frozenset(knob.nulls)) & frozenset(knob.nulls)
    precision = plan.precision
    return Lens(precision.rule(), precision.launch_noise, precision.zone, nulls)


def peaks_of(shelf: Shelf) -> dict[str, Peak]:
    """The peaks that a study last closed with, by target."""
    closed = (shelf.closed.peak if shelf.closed else None) or {}
    return {name: Peak.model_validate(peak) for name, peak in closed.items()}


def find_studies(*whats: str, plan: str | None = None) -> list[Shelf]:
    """Studies by engine name, study key or stack key (or enough of its beginning), in one plan if possible.

    Of several studies of one engine it is the latest.

    Raises:
        PlanError: One is not here.
    """
    seen: list[list[Shelf]] = []
    for name in [plan] if plan else plan_names():
        # An engine's latest study with an ending comes last: one that has just begun tells nothing.
        seen.append(sorted(glances(name), key=lambda shelf: shelf.closed is not None))
        found = [_hit(seen[-1], what) for what in whats]
        if all(found):
            return [shelf for shelf in found if shelf]
    found = [next(filter(None, (_hit(shelves, what) for shelves in seen)), None) for what in whats]
    for what, shelf in zip(whats, found, strict=True):
        if shelf is None:
            there = ", ".join(_name(one) for shelves in seen[:3] for one in shelves) or "none yet"
            raise PlanError(f"There is no study {what!r} here.", f"Engines of the latest plans: {there}.")
    return [shelf for shelf in found if shelf]


def _name(shelf: Shelf) -> str:
    return shelf.opened.facts.get("engine", shelf.opened.fingerprint.engine)


def _hit(shelves: Sequence[Shelf], what: str) -> Shelf | None:
    exact = [one for one in shelves if what == _name(one)]
    keys = [(one, (one.opened.study, one.opened.fingerprint.key)) for one in shelves]
    begun = [one for one, both in keys if len(what) >= 4 and any(key.startswith(what) for key in both)]
    return next(reversed(exact or begun), None)


def compare(old: Shelf, new: Shelf, plan: TuningPlan | None = None) -> Compared:
    """Judge a study against an earlier one, target by target, from their records alone.

    Raises:
        PlanError: The old study has no peak to start from.
    """
    before, after = peaks_of(old), peaks_of(new)
    if not before:
        hint = "`repeak tune` goes on where it stopped; `repeak show` lists what there is."
        raise PlanError(f"The study {old.opened.study} has no peak yet.", hint)
    traffic = [{ref.name: ref.sha256 for r in shelf.records for ref in r.workloads} for shelf in (old, new)]
    other = {name for name in traffic[0] if traffic[0][name] != traffic[1].get(name)}
    notes = [f"{name} is not the same traffic on both sides: left out" for name in sorted(other)]
    told = {name: peak for name, peak in before.items() if not other & set(peak.target.workloads)}
    moves = [_target(peak, after.get(name), old, new, lens_of(plan, peak)) for name, peak in told.items()]
    if new.closed and old.opened.plan == new.opened.plan:
        # A retune's model of both engines knows more than the launches that are compared here.
        said = [(move, new.closed.facts.get(f"shift.{move.target.name}")) for move in moves]
        notes += [
            f"{move.target.name}: the verdict when the peak was looked for was {verdict!r}"
            for move, verdict in said
            if verdict and verdict != move.shift.verdict
        ]
    return Compared(
        old=_name(old),
        new=_name(new),
        old_study=old.opened.study,
        new_study=new.opened.study,
        model=new.opened.model,
        machine=new.opened.machine,
        moved=old.opened.fingerprint.diff(new.opened.fingerprint),
        targets=tuple(moves),
        notes=tuple(notes),
    )


def _target(peak: Peak, after: Peak | None, old: Shelf, new: Shelf, lens: Lens) -> TargetMove:
    target, then = peak.target, peak.configuration
    kept = _telling(old.records, target) | _telling(new.records, target)
    telling = [[record for record in shelf.records if record.configuration in kept] for shelf in (old, new)]
    sides = [whole(shelf.opened.plan, records) for shelf, records in zip((old, new), telling, strict=True)]
    past, now = both_seen(sides[0], sides[1], target, lens.rule)
    # After a retune both read as it reads them; without one the new engine's own search may have chosen by luck.
    today = [all_fresh(one) if now.retune and one.configuration == then else one for one in now.field]
    fields = [{c.configuration: c for c in side} for side in (restated(past, then), today)]
    studied = {c.configuration: c for c in past.field}
    noise = noise_of([c for field in fields for c in field.values()], lens.prior)

    def over(a: Candidate | None, b: Candidate | None) -> Comparison | None:
        if a is None or b is None:
            return None
        pair, lower = (a.evidence, b.evidence), target.lower_is_better
        return beats(*pair, noise, lens.delta, lower_is_better=lower, restated=a.restated + b.restated)

    def step(name: str, c: Configuration) -> Step:
        here, there = fields[0].get(c), fields[1].get(c)
        return Step(
            name=name,
            configuration=c,
            old=here and here.estimate(noise),
            new=there and there.estimate(noise),
            new_over_old=over(there, here),
        )

    shown = {then: "old settings"}
    if after is not None:
        shown.setdefault(after.configuration, "new peak")
    in_use = next((r.configuration for r in old.records if r.role == "incumbent"), then)
    shown.setdefault(in_use, "incumbent")
    return TargetMove(
        target=target,
        shift=judge_shift(
            [*fields[0].values()],
            [*fields[1].values()],
            then,
            target,
            noise,
            lens.delta,
            no_better_then=partial(could_not_run, old.records),
        ),
        steps=tuple(step(name, c) for c, name in shown.items()),
        gain=over(fields[1].get(after.configuration), fields[1].get(then))
        if after and after.configuration != then
        else None,
        stayed=tuple(_stayed(target, then, after.configuration if after else then, sides, past.in_turn, lens)),
        drift=over(fields[0].get(then), studied.get(then))
        if any(c.configuration == then for c in past.turns)
        else None,
    )


def _telling(records: Sequence[TrialRecord], target: Target) -> set[Configuration]:
    """All configurations of a study; of very many trials those launched for a reason, and the best of the search."""
    if len(records) <= _MOST:
        return {record.configuration for record in records}
    sign = 1 if target.lower_is_better else -1
    keys = [f"{name}/{target.metric}" for name in target.workloads]

    def score(record: TrialRecord) -> float:
        return sign * sum(record.estimates[key].value for key in keys)

    whole = [r for r in records if r.state == "measured" and all(key in r.estimates for key in keys)]
    best = sorted((r for r in whole if r.role == "search"), key=score)[:_MOST]
    return {r.configuration for r in [*best, *(r for r in records if r.role != "search")]}


def _stayed(
    target: Target,
    then: Configuration,
    now: Configuration,
    sides: Sequence[Sequence[TrialRecord]],
    turns: Sequence[TrialRecord],
    lens: Lens,
) -> Iterator[Unmoved]:
    """Same settings on both engines (in `turns` where there are any); on the new one what the knobs cannot touch."""
    changed = {n for n in then.values.keys() | now.values.keys() if then.values.get(n) != now.values.get(n)}
    nulls = [untouched([name]) | lens.nulls.get(name, frozenset()) for name in changed]
    controls = frozenset[str]().union(*nulls[:1]).intersection(*nulls)
    for workload in target.workloads:
        for metric in _NUMBERS:
            one = Target(name=workload, metric=metric, workloads=(workload,))
            fields = [candidates(_launched(side, one, then, now), one, lens.rule) for side in sides]
            noise = noise_of([c for field in fields for c in field], lens.prior)
            at = [{c.configuration: c.evidence for c in field} for field in fields]
            today = candidates(_launched(turns, one, then), one, lens.rule, in_turn=True)
            at[0] |= {c.configuration: c.evidence for c in today}
            pairs = [(at[1].get(then), at[0].get(then), "same settings", False)]
            if metric in controls:
                claim = f"{', '.join(sorted(changed))} cannot touch it"
                pairs.append((at[1].get(now), at[1].get(then), claim, True))
            for a, b, claim, declared in pairs:
                if a and b and metric != target.metric:
                    found = equivalent(a, b, noise, _SAME * lens.delta)
                    yield Unmoved(workload=workload, metric=metric, claim=claim, declared=declared, found=found)


def _launched(records: Sequence[TrialRecord], one: Target, *shown: Configuration) -> list[TrialRecord]:
    """Records that have this number, of the configurations shown and of those launched more than once."""
    key = f"{one.name}/{one.metric}"
    have = [r for r in records if r.state == "measured" and key in r.estimates]
    return [r for r in have if r.configuration in shown or r.role != "search" or len(r.launches) > 1]
