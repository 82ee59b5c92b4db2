"""What a retune reads and holds fixed: the records of one stack for one target, the effort, the frame of it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from search_spaces.configuration import Configuration
from search_spaces.space import SearchSpace
from trackers.records import Role, TrialRecord

from .candidates import Candidate, Target, candidates
from .joint_model import Rates
from .peak import Peak
from .shift import PeakShift
from .stability import StabilityRule

__all__ = ["FAST", "THOROUGH", "Effort", "Frame", "Seen", "Step", "Verdict", "drafting", "seen"]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How far a retune goes: launches on the new stack before the finals, and what is worth one.

    `calm` launches where nothing seems to have moved, `most` where something has. `gain` is the expected gain
    (indifference zones) worth a launch. Drafters that were `hopeless` (log units behind on the old stack) are
    not visited again. At most `rivals` finalists beside the old peak.
    """

    calm: int
    most: int
    gain: float
    gain_moved: float
    hopeless: float
    rivals: int
    finals: int


FAST = Effort(calm=10, most=14, gain=0.5, gain_moved=0.15, hopeless=0.4, rivals=1, finals=3)
THOROUGH = Effort(calm=14, most=19, gain=0.3, gain_moved=0.1, hopeless=2.0, rivals=3, finals=5)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a retune holds fixed. `refuses`: whether arithmetic rules a configuration out on the new stack.

    `scales` are those of the old surface (`fit_scales`).
    """

    space: SearchSpace
    old_peak: Configuration
    target: Target
    delta: float
    launch_noise: float
    scales: Mapping[str, float]
    effort: Effort = FAST
    refuses: Callable[[Configuration], bool] = field(default=lambda _: False)
    memo: dict[str, tuple[Configuration, ...]] = field(default_factory=dict)

    def around(self, base: Configuration) -> tuple[Configuration, ...]:
        """One knob away from a configuration."""
        if base.key not in self.memo:
            self.memo[base.key] = tuple(one_knob_away(self.space, base))
        return self.memo[base.key]


@dataclass(frozen=True)
class Step:
    """The next launch on the new stack: of what, in which role and why."""

    configuration: Configuration
    role: Role
    reason: str


@dataclass(frozen=True)
class Verdict:
    shift: PeakShift
    peak: Peak | None


@dataclass(frozen=True)
class Seen:
    """What the records of one stack say for one target."""

    records: tuple[TrialRecord, ...]
    field: tuple[Candidate, ...]
    rates: Rates

    @cached_property
    def failed(self) -> tuple[TrialRecord, ...]:
        return tuple(one for one in self.records if one.state == "engine_failed")

    @cached_property
    def readings(self) -> list[tuple[Configuration, tuple[float, ...]]]:
        return [(one.configuration, one.searched + one.fresh) for one in self.field]

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


def seen(records: Sequence[TrialRecord], target: Target, rule: StabilityRule) -> Seen:
    """Records as a retune reads them; interrupted and lost ones say nothing."""
    told = tuple(one for one in records if one.state not in ("interrupted", "lost"))
    rows: dict[str, dict[int, list[list[float]]]] = {}
    for record in told:
        k = record.configuration.k
        for window in record.windows:
            counts = window.acceptance
            if not k or counts is None or not counts.drafts or window.workload.name not in target.workloads:
                continue
            if len(counts.accepted_per_position) >= k:
                row = [accepted / counts.drafts for accepted in counts.accepted_per_position[:k]]
                rows.setdefault(record.configuration.drafter, {}).setdefault(k, []).append(row)
    rates = {d: {k: np.mean(all_of, axis=0).tolist() for k, all_of in at.items()} for d, at in rows.items()}
    return Seen(told, candidates(told, target, rule), rates)


def drafting(space: SearchSpace, base: Configuration) -> Iterator[Configuration]:
    """Every drafter with each of its k, all else as in the base."""
    for drafter in next(knob for knob in space.knobs if knob.name == "drafter").grid():
        depth = [k for k in space.knobs if k.name == "k" and k.active({"drafter": drafter})]
        for k in depth[0].grid() if depth else (0,):
            one = space.complete({**base.values, "drafter": drafter, "k": k})
            if space.contains(one):
                yield one


def one_knob_away(space: SearchSpace, base: Configuration) -> Iterator[Configuration]:
    yield from drafting(space, base)
    for knob in space.knobs:
        if knob.name not in ("drafter", "k") and knob.active(base.values):
            for value in knob.grid():
                one = space.complete({**base.values, knob.name: value})
                if space.contains(one):
                    yield one
