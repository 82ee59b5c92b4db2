"""What an old and a new stack's records say together: what is best, what moved, what may start, what is worth it."""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from search_spaces.configuration import Configuration
from trackers.records import TrialRecord

from .candidates import noise_of
from .joint_model import Forecast, JointModel, Reading
from .launch_noise import LaunchNoise
from .refusal import NO_DRAFTER, known_failure
from .retune_view import Frame, Seen

__all__ = ["CHANGED", "UNTRIED_K", "BothStacks"]

CHANGED = 2.0
"""Log likelihood ratio from which the shape counts as changed."""
UNTRIED_K = 4
"""Place on its grid of a new drafter's first k."""
_DOUBTED = 0.7  # chance to start of what failed on the old stack


class BothStacks:
    """One look at the records of both stacks; what several questions need is worked out once."""

    def __init__(self, old: Seen, new: Seen, frame: Frame) -> None:
        self.old, self.new, self.frame, self.peak = old, new, frame, frame.old_peak
        self.zone = math.log1p(frame.delta)
        self.noise: LaunchNoise = noise_of([*old.field, *old.turns, *new.field], frame.launch_noise)
        self.here = [one.configuration for one in new.field if not one.veto]
        self.spent = sum(1 for one in new.retune if one.role != "finalist" and one.launches)
        self.finals_so_far = sum(one.role == "finalist" for one in new.retune)
        self.lost = self.refused(self.peak)

    @cached_property
    def model(self) -> JointModel:
        def readings(stack: Seen) -> list[Reading]:
            return [Reading(c, self.frame.target.score(values), len(values)) for c, values in stack.readings]

        rates, frame = (self.old.rates, self.new.rates), self.frame
        return JointModel(
            frame.space, readings(self.old), readings(self.new), rates, self.usual_sd, frame.scales, self.peak
        )

    @cached_property
    def usual_sd(self) -> float:
        """Launch noise without the starts that went wrong: the model finds those by itself."""
        prior = self.frame.launch_noise
        total, dof = 4 * prior**2, 4.0
        groups = chain.from_iterable((one.searched, one.fresh) for one in (*self.old.field, *self.new.field))
        for group in (np.log(each) for each in groups if len(each) > 1):
            total += float((np.clip(group - np.median(group), -3 * prior, 3 * prior) ** 2).sum())
            dof += len(group) - 1
        return math.sqrt(total / dof)

    @cached_property
    def measured(self) -> Forecast:
        return self.model.forecast(self.here)

    @cached_property
    def best(self) -> Configuration:
        """The best of what was measured here, by the model."""
        return self.here[int(self.measured.mean.argmax())] if self.here else self.peak

    def lead(self, one: Configuration) -> tuple[float, float]:
        """A measured configuration over the old peak: mean and sd, log units."""
        if self.peak not in self.here:
            return math.inf, 0.0
        return self.measured.gap(self.here.index(one), self.here.index(self.peak))

    @cached_property
    def moved(self) -> bool:
        """Whether there is evidence that the peak is elsewhere now."""
        ahead, sd = self.lead(self.best)
        return self.lost or self.model.log_likelihood_ratio > CHANGED or ahead > self.zone / 2 + sd

    @cached_property
    def base(self) -> Configuration:
        """What probes are one knob away from: the old peak until another is clearly ahead."""
        ahead, sd = self.lead(self.best)
        return self.best if self.lost or ahead > max(self.zone, 2 * sd) else self.peak

    def refused(self, configuration: Configuration) -> bool:
        """Whether it cannot start here, by arithmetic or by what failed already."""
        unsupported = {
            one.configuration.drafter
            for one in self.new.failed
            if one.failure is not None and one.failure.cause in NO_DRAFTER
        }
        return (
            configuration.drafter in unsupported
            or self.frame.refuses(configuration)
            or known_failure(configuration, self.frame.space, self.new.failed) is not None
        )

    def chance(self, configuration: Configuration) -> float:
        """Chance that it starts: small close to what failed here, doubted close to what failed before."""
        here = min((self._apart(configuration, one) for one in self.new.failed), default=1.0)
        doubted = known_failure(configuration, self.frame.space, self.old.failed) is not None
        return min(here, _DOUBTED if doubted else 1.0)

    def _apart(self, configuration: Configuration, failed: TrialRecord) -> float:
        """How sure it is that another start does not fail alike: by what it asks of memory."""
        there = failed.configuration
        apart = 0.3 if configuration.drafter != there.drafter else 0.0
        for knob in self.frame.space.knobs:
            mine, theirs = configuration.values.get(knob.name), there.values.get(knob.name)
            if knob.needs and knob.ordered and mine and theirs:
                low, high = sorted((float(mine), float(theirs)))
                apart = max(apart, 1 - low / high)
        return min(1.0, 0.15 + 1.4 * apart)

    @cached_property
    def options(self) -> list[Configuration]:
        """One knob away from the best and from the old peak, as far as it may start and is not measured."""
        bases = dict.fromkeys([self.best, self.peak])
        near = dict.fromkeys(chain.from_iterable(map(self.frame.around, bases)))
        return [one for one in near if self._in_reach(one) and not self.new.times(one) and not self.refused(one)]

    def _in_reach(self, one: Configuration) -> bool:
        """Once its drafter was launched here k moves a step or two of its grid at a time: curves have one top.

        Never further than half beyond the deepest of either stack, or a step.
        """
        here, deepest = self._depths.get(one.drafter, ((), UNTRIED_K))
        grid = self.frame.depths.get(one.drafter, ())
        next_step = grid[bisect(grid, deepest) :][:1]
        if one.k > max((1 + 1.5 * deepest, *next_step)):
            return False
        return not here or min(abs(_place(grid, k) - _place(grid, one.k)) for k in here) <= 2

    @cached_property
    def _depths(self) -> dict[str, tuple[list[int], int]]:
        """Drafter -> the k that ran here, and the deepest measured on either stack."""
        found: dict[str, tuple[list[int], int]] = {}
        for one, _ in (*self.old.readings, *self.new.readings):
            here, deepest = found.get(one.drafter, ([], 0))
            found[one.drafter] = here, max(deepest, one.k)
        for one in self.here:
            found[one.drafter][0].append(one.k)
        return found

    @cached_property
    def gains(self) -> list[float]:
        """Expected gain of each option over the best measured, times its chance to start."""
        if not self.options or not self.here:
            return []
        gains = self.model.forecast([*self.options, self.best]).gains(len(self.options))
        return [float(gain) * self.chance(one) for gain, one in zip(gains, self.options, strict=False)]


def _place(grid: Sequence[int], k: int) -> float:
    """Where k stands on an ascending grid, in steps; between two of its values half a step from each."""
    return (bisect_left(grid, k) + bisect(grid, k)) / 2
