"""What a retune reads and holds fixed: the records of one stack for one target, the effort, the frame of it all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from search_spaces.configuration import Configuration, Scalar
from search_spaces.space import SearchSpace
from trackers.records import Role, TrialRecord

from .candidates import Candidate, Target, candidates
from .joint_model import Rates
from .launch_noise import mean_log
from .peak import Peak
from .shift import PeakShift
from .stability import StabilityRule

__all__ = [
    "FAST",
    "THOROUGH",
    "Effort",
    "Frame",
    "Seen",
    "Step",
    "Verdict",
    "all_fresh",
    "both_seen",
    "drafting",
    "one_knob_away",
    "restated",
    "seen",
]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How far a retune goes: launches on the new stack before the finals, and what is worth one.

    `calm` launches where nothing seems to have moved, `most` where something has. Expected gains, in
    indifference zones, that are worth a launch: `gain` of a search where all is calm, `gain_moved` where not,
    `gain_probe` of turning a knob not turned yet, `gain_final` of a fresh launch. Drafters that were `hopeless`
    (log units behind on the old stack) are not visited again. At most `rivals` finalists beside the old peak,
    `finals` fresh launches of each.
    """

    calm: int
    most: int
    gain: float
    gain_moved: float
    gain_probe: float
    gain_final: float
    hopeless: float
    rivals: int
    finals: int


FAST = Effort(
    calm=9,
    most=14,
    gain=0.5,
    gain_moved=0.1,
    gain_probe=0.1,
    gain_final=0.8,
    hopeless=0.33,
    rivals=1,
    finals=3,
)
THOROUGH = Effort(
    calm=13,
    most=17,
    gain=0.25,
    gain_moved=0.05,
    gain_probe=0.05,
    gain_final=0.5,
    hopeless=0.5,
    rivals=2,
    finals=3,
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a retune holds fixed.

    `scales` are those of the old surface (`fit_scales`), None where it is too little known. `refuses`: whether
    arithmetic rules a configuration out on the new stack. `streams`: the most requests ever in flight, None where no
    one knows. `alternate`: the old engine can still be launched; `known_then`: it has all that a configuration sets.
    """

    space: SearchSpace
    old_peak: Configuration
    target: Target
    delta: float
    launch_noise: float
    scales: Mapping[str, float] | None
    effort: Effort = FAST
    refuses: Callable[[Configuration], bool] = field(default=lambda _: False)
    streams: int | None = None
    alternate: bool = False
    known_then: Callable[[Configuration], bool] = field(default=lambda _: True)
    memo: dict[str, tuple[Configuration, ...]] = field(default_factory=dict)

    @cached_property
    def depths(self) -> Mapping[str, tuple[int, ...]]:
        """Drafter -> every k of its space, ascending; drafters without one are not there."""
        depths = [knob for knob in self.space.knobs if knob.name == "k"]
        return {str(each): tuple(sorted(map(int, k.grid()))) for k in depths for each in k.only_if["drafter"]}

    def drafting(self, base: Configuration) -> tuple[Configuration, ...]:
        """Every drafter and k, all else as in the base."""
        if (key := f"drafting {base.key}") not in self.memo:
            self.memo[key] = tuple(drafting(self.space, base))
        return self.memo[key]

    def around(self, base: Configuration) -> tuple[Configuration, ...]:
        """One knob away from a configuration."""
        if base.key not in self.memo:
            near = one_knob_away(self.space, base)
            self.memo[base.key] = tuple(one for one in near if not self._idle(one, base))
        return self.memo[base.key]

    def _idle(self, one: Configuration, base: Configuration) -> bool:
        """Whether it cannot be faster than the base: less room, or seats where both have one for every request."""
        for knob in self.space.knobs:
            mine, theirs = one.values.get(knob.name), base.values.get(knob.name)
            if mine != theirs and isinstance(mine, int | float) and isinstance(theirs, int | float):
                if knob.needs == ("device",):
                    return mine < theirs
                if knob.name == "max_num_seqs" and self.streams is not None:
                    return min(mine, theirs) >= self.streams
        return False


@dataclass(frozen=True)
class Step:
    """The next launch: of what, in which role and why; on the old stack where both take turns."""

    configuration: Configuration
    role: Role
    reason: str
    stack: Literal["new", "old"] = "new"


@dataclass(frozen=True)
class Verdict:
    """What is shown, and what to run meanwhile.

    `recommended` is the likelier best, by the joint model, of what was launched afresh; the old peak where that
    is not likely enough. `lead` is its mean and sd over the old peak (log units), None without one.
    """

    shift: PeakShift
    peak: Peak | None
    recommended: Configuration | None = None
    lead: tuple[float, float] | None = None


@dataclass(frozen=True)
class Seen:
    """What the records of one stack say for one target; `in_turn` with another stack, they say it in `turns`."""

    records: tuple[TrialRecord, ...]
    field: tuple[Candidate, ...]
    rates: Rates
    in_turn: tuple[TrialRecord, ...] = ()
    turns: tuple[Candidate, ...] = ()

    @cached_property
    def failed(self) -> tuple[TrialRecord, ...]:
        return tuple(one for one in self.records if one.state == "engine_failed")

    @cached_property
    def readings(self) -> list[tuple[Configuration, tuple[float, ...]]]:
        return [(one.configuration, one.searched + one.fresh) for one in self.field]

    @cached_property
    def retune(self) -> tuple[TrialRecord, ...]:
        """The records from the first anchor or probe on; what lies before is another search's."""
        begun = (n for n, one in enumerate(self.records) if one.role in ("anchor", "probe"))
        return self.records[next(begun, len(self.records)) :]

    def times(self, configuration: Configuration, *roles: Role) -> int:
        """How often it was tried in one of these roles (any, where none is named)."""
        tried = self._tried.get(configuration.key, Counter())
        return sum(count for role, count in tried.items() if not roles or role in roles)

    @cached_property
    def _tried(self) -> dict[str, Counter[Role]]:
        found: dict[str, Counter[Role]] = {}
        for one in self.records:
            found.setdefault(one.configuration.key, Counter())[one.role] += 1
        return found


def seen(
    records: Sequence[TrialRecord],
    target: Target,
    rule: StabilityRule,
    *,
    turns_from: float = math.inf,
    beside: str = "",
) -> Seen:
    """Records of one stack as a retune reads them; interrupted and lost ones say nothing.

    Those taken in turn with the study `beside` count from `turns_from` on (seconds since the epoch): where it began.
    """
    told = [one for one in records if one.state not in ("interrupted", "lost")]
    own = tuple(one for one in told if one.role != "in_turn")
    turns = tuple(
        one for one in told if one.role == "in_turn" and one.started_at >= turns_from and one.beside in ("", beside)
    )
    field, today = candidates(own, target, rule), candidates(turns, target, rule, in_turn=True)
    return Seen(own, field, _rates(own, target), turns, today)


def both_seen(
    old: Sequence[TrialRecord], new: Sequence[TrialRecord], target: Target, rule: StabilityRule
) -> tuple[Seen, Seen]:
    """The records of both stacks; what the old engine ran in turn counts since the retune of the new one began."""
    now = seen(new, target, rule)
    if not now.retune:
        return seen(old, target, rule), now
    first = now.retune[0]
    return seen(old, target, rule, turns_from=first.started_at, beside=first.study), now


def all_fresh(one: Candidate) -> Candidate:
    """One that was not chosen by its luck: all its launches speak."""
    return one.model_copy(update={"fresh": one.searched + one.fresh, "searched": ()})


def restated(old: Seen, peak: Configuration) -> list[Candidate]:
    """The old study as it would read today, by the old peak's launches in turn with the new stack's.

    What else was launched in turn is there too, where the study does not have it.
    """
    today = next((one for one in old.turns if one.configuration == peak), None)
    then = next((one for one in old.field if one.configuration == peak), None)
    if today is None or then is None:
        return list(old.field)
    known = {one.configuration for one in old.field}
    others = [all_fresh(one) for one in old.turns if one.configuration not in known]
    now = all_fresh(today)
    drift = math.exp(mean_log(now.fresh) - mean_log(then.evidence))
    doubt = 1 / len(now.fresh) + 1 / len(then.evidence)
    return others + [
        now.model_copy(update={"error": then.error})
        if one.configuration == peak
        else one.model_copy(
            update={name: tuple(value * drift for value in getattr(one, name)) for name in ("searched", "fresh")}
            | {"restated": doubt}
        )
        for one in old.field
    ]


def _rates(records: Sequence[TrialRecord], target: Target) -> dict[str, dict[int, list[float]]]:
    rows: dict[str, dict[int, list[list[float]]]] = {}
    for record in records:
        k = record.configuration.k
        for window in record.windows:
            counts = window.acceptance
            if not k or counts is None or not counts.drafts or window.workload.name not in target.workloads:
                continue
            if len(counts.accepted_per_position) >= k:
                row = [accepted / counts.drafts for accepted in counts.accepted_per_position[:k]]
                rows.setdefault(record.configuration.drafter, {}).setdefault(k, []).append(row)
    return {d: {k: np.mean(all_of, axis=0).tolist() for k, all_of in at.items()} for d, at in rows.items()}


def drafting(space: SearchSpace, base: Configuration) -> Iterator[Configuration]:
    """Every drafter with each of its k, all else as in the base."""
    for drafter in next(knob for knob in space.knobs if knob.name == "drafter").grid():
        depth = [k for k in space.knobs if k.name == "k" and k.active({"drafter": drafter})]
        for k in depth[0].grid() if depth else (0,):
            if one := _changed(space, base, {"drafter": drafter, "k": k}):
                yield one


def one_knob_away(space: SearchSpace, base: Configuration, *, far: bool = False) -> Iterator[Configuration]:
    """Every drafter and k, and each other knob a step away from the base; `far`: at any of its values."""
    yield from drafting(space, base)
    for knob in space.knobs:
        if knob.name not in ("drafter", "k") and knob.active(base.values):
            for value in knob.grid() if far else knob.near(base.values.get(knob.name, knob.first)):
                if one := _changed(space, base, {knob.name: value}):
                    yield one


def _changed(space: SearchSpace, base: Configuration, changes: Mapping[str, Scalar]) -> Configuration | None:
    """The base with other values; None where the space has no such configuration.

    A knob that the base has not, as its engine lacked it, stays out unless it is what is changed: else all would
    differ from the base in it.
    """
    one = space.complete({**base.values, **changes})
    if not space.contains(one):
        return None
    new = {knob.name for knob in space.knobs if knob.active(base.values)} - base.values.keys() - changes.keys()
    return Configuration(values={name: value for name, value in one.values.items() if name not in new})
