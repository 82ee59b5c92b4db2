"""Retune: which launch tells most about where the peak went, planned from the records of both stacks alone."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import chain

import numpy as np

from search_spaces.configuration import Configuration
from trackers.records import TrialRecord

from .candidates import Candidate, noise_of
from .joint_model import Forecast, JointModel, Reading
from .launch_noise import LaunchNoise, disagree, finalist_launches
from .peak import beats, declare_peak
from .refusal import known_failure
from .retune_view import Frame, Seen, Step, Verdict, drafting
from .shift import judge_shift

__all__ = ["next_step"]

_ANCHORS = 2
_NO_DRAFTER = ("unsupported_drafter", "unknown_drafter")
_CHANGED = 2.0  # log likelihood ratio from which the shape counts as changed
_CLEAR = 5.0  # indifference zones of lead that no drift of a machine makes


def next_step(old: Seen, new: Seen, frame: Frame) -> Step | Verdict:
    """What to launch next, or the verdict: a pure function, so that a retune stopped anywhere goes on."""
    now = _Now(old, new, frame)
    return now.anchor() or now.walk() or now.coverage() or now.search() or now.finals() or now.verdict()


class _Now:
    """One look at all records; what several phases ask for is worked out once."""

    def __init__(self, old: Seen, new: Seen, frame: Frame) -> None:
        self.old, self.new, self.frame, self.peak = old, new, frame, frame.old_peak
        self.zone = math.log1p(frame.delta)
        self.noise: LaunchNoise = noise_of([*old.field, *new.field], frame.launch_noise)
        self.here = [one.configuration for one in new.field if not one.veto]
        self.spent = sum(1 for one in new.records if one.role != "finalist" and one.launches)
        self.finishing = any(one.role == "finalist" for one in new.records)
        self.lost = self.refused(self.peak)

    @cached_property
    def model(self) -> JointModel:
        def readings(stack: Seen) -> list[Reading]:
            return [Reading(c, self.frame.target.score(values), len(values)) for c, values in stack.readings]

        rates, frame = (self.old.rates, self.new.rates), self.frame
        return JointModel(
            frame.space, readings(self.old), readings(self.new), rates, self.noise.sd, frame.scales, self.peak
        )

    @cached_property
    def measured(self) -> Forecast:
        return self.model.forecast(self.here)

    @cached_property
    def best(self) -> Configuration:
        """The best of what was measured here, by the model."""
        return self.here[int(self.measured.mean.argmax())] if self.here else self.peak

    @cached_property
    def lead(self) -> tuple[float, float]:
        """The best over the old peak: mean and sd, log units."""
        if self.peak not in self.here:
            return math.inf, 0.0
        return self.measured.gap(self.here.index(self.best), self.here.index(self.peak))

    @cached_property
    def moved(self) -> bool:
        """Whether there is evidence that the peak is elsewhere now."""
        return (
            self.lost
            or self.peak not in self.here
            or self.model.log_likelihood_ratio > _CHANGED
            or self.lead[0] > self.zone / 2
        )

    def refused(self, configuration: Configuration) -> bool:
        """Whether it cannot start here, by arithmetic or by what failed already."""
        return (
            self.frame.refuses(configuration)
            or any(
                one.failure is not None
                and one.failure.cause in _NO_DRAFTER
                and one.configuration.drafter == configuration.drafter
                for one in self.new.failed
            )
            or known_failure(configuration, self.frame.space, self.new.failed) is not None
        )

    def chance(self, configuration: Configuration) -> float:
        """Chance that it starts: small close to what failed here, doubted close to what failed before."""
        here = min((self._relief(configuration, one) for one in self.new.failed), default=1.0)
        doubted = known_failure(configuration, self.frame.space, self.old.failed) is not None
        return min(here, 0.4 if doubted else 1.0)

    def _relief(self, configuration: Configuration, failed: TrialRecord) -> float:
        there, apart = failed.configuration, 0.0
        if configuration.drafter != there.drafter:
            apart = 0.3
        for knob in self.frame.space.knobs:
            mine, theirs = configuration.values.get(knob.name), there.values.get(knob.name)
            if knob.needs and knob.ordered and mine and theirs:
                low, high = sorted((float(mine), float(theirs)))
                apart = max(apart, 1 - low / high)
        return min(1.0, 0.15 + 1.4 * apart)

    def anchor(self) -> Step | None:
        """The old peak on the new stack, twice; once more where the two are no one number."""
        tried = self.new.times(self.peak)
        if self.lost or tried > _ANCHORS:
            return None
        found = next((one for one in self.new.field if one.configuration == self.peak), None)
        split = found is not None and disagree(found.evidence, self.noise.sd)
        if tried < _ANCHORS or (split and not self.finishing):
            return Step(self.peak, "anchor", "the old peak on the new engine")
        return None

    def walk(self) -> Step | None:
        """Where nothing has started yet: what was good before and probably starts."""
        if self.here or self.spent >= self.frame.effort.most:
            return None
        options = self.options
        if not options:
            return None
        chances = np.log([self.chance(one) for one in options])
        found = options[int((self.model.forecast(options).mean + 2 * chances).argmax())]
        return Step(found, "probe", "the old peak does not run here")

    def coverage(self) -> Step | None:
        """Every other drafter once, at its best k, then every other knob: what changed shows in no other way."""
        if self.finishing or not self.here or self.spent >= self.frame.effort.most:
            return None
        return self._another_drafter() or self._another_knob()

    def _another_drafter(self) -> Step | None:
        visited = {one.configuration.drafter for one in self.new.records}
        measured = {c.drafter for c, _ in self.old.readings}
        paths: dict[str, list[Configuration]] = {}
        for one in drafting(self.frame.space, self.base):
            if one.drafter not in visited and not self.refused(one):
                paths.setdefault(one.drafter, []).append(one)
        for drafter, path in paths.items():
            if drafter not in measured:
                return Step(path[min(len(path) - 1, 4)], "probe", f"{drafter} was never measured")
        gaps: list[tuple[float, Configuration]] = []
        for path in paths.values():
            means = self.model.forecast([*path, self.base]).mean
            gaps.append((float(means[:-1].max() - means[-1]), path[int(means[:-1].argmax())]))
        gap, found = max(gaps, key=lambda pair: pair[0], default=(-math.inf, self.base))
        if gap < -self.frame.effort.hopeless:
            return None
        return Step(found, "probe", f"{found.drafter} may have changed")

    def _another_knob(self) -> Step | None:
        """The knob not yet turned that promises most, at its most promising value."""
        base, gains = self.base, self.gains[0]
        turned = {
            name
            for one in self.new.records
            if one.configuration.drafter == base.drafter
            for name in _differing(one.configuration, base)
        }
        left = [
            (gain, one, names)
            for gain, one in zip(gains, self.options, strict=True)
            if one.drafter == base.drafter and len(names := _differing(one, base)) == 1 and not names & turned
        ]
        if not left or self.spent >= self.frame.effort.calm:
            return None
        _, found, (name,) = max(left, key=lambda each: each[0])
        return Step(found, "probe", f"{name} may have changed")

    @property
    def base(self) -> Configuration:
        """What probes are one knob away from."""
        return self.best if self.lost else self.peak

    @cached_property
    def options(self) -> list[Configuration]:
        """One knob away from the best and from the old peak, as far as it may start and is not measured."""
        bases = dict.fromkeys([self.best, self.peak])
        deepest: dict[str, int] = {}
        for one, _ in (*self.old.readings, *self.new.readings):
            deepest[one.drafter] = max(deepest.get(one.drafter, 0), one.k)
        near = dict.fromkeys(chain.from_iterable(map(self.frame.around, bases)))
        # Acceptance past the launched k is a guess, so it is approached in strides.
        return [
            one
            for one in near
            if one.k <= 1 + 1.5 * deepest.get(one.drafter, 4) and not self.new.times(one) and not self.refused(one)
        ]

    @cached_property
    def gains(self) -> tuple[np.ndarray, float]:
        """Expected gain of each option over the best measured, times its chance; and the largest."""
        if not self.options:
            return np.zeros(0), 0.0
        forecast = self.model.forecast([*self.options, self.best])
        chances = np.array([self.chance(one) for one in self.options])
        gains = forecast.gains(len(self.options))[:-1] * chances
        return gains, float(gains.max())

    def search(self) -> Step | None:
        """What promises most, as long as that is worth a launch."""
        effort = self.frame.effort
        if self.finishing or not self.here or self.spent >= (effort.most if self.moved else effort.calm):
            return None
        gains, most = self.gains
        if most < (effort.gain_moved if self.moved else effort.gain) * self.zone:
            return None
        found = self.options[int(gains.argmax())]
        return Step(found, "search", f"expected gain {most:.1%}")

    def finals(self) -> Step | None:
        """The best launched afresh, the old peak in turn where drift could explain the lead."""
        most = min(self.frame.effort.finals, finalist_launches(self.noise))
        for rival in self._rivals():
            fresh = self.new.times(rival, "finalist")
            if fresh >= most or (fresh >= 2 and self._shown(rival)):
                continue
            close = self.peak in self.here and self.lead[0] < _CLEAR * self.zone
            if fresh and close and self.new.times(self.peak, "finalist") < fresh:
                return Step(self.peak, "finalist", "the old peak in turn with what may replace it")
            return Step(rival, "finalist", "launched afresh, as the search chose it by its luck too")
        return None

    def _rivals(self) -> list[Configuration]:
        if not self.here:
            return []
        mean, least = self.measured.mean, self.measured.mean.max() - 1.5 * self.zone
        if self.peak in self.here:
            least = max(least, mean[self.here.index(self.peak)] + self.zone / 2)
        order = sorted(range(len(self.here)), key=lambda i: -mean[i])
        found = [self.here[i] for i in order if mean[i] >= least and self.here[i] != self.peak]
        begun = [one for one in found if self.new.times(one, "finalist")]
        return list(dict.fromkeys([*begun, *found]))[: self.frame.effort.rivals]

    def _shown(self, rival: Configuration) -> bool:
        by = {one.configuration: one for one in self.judged}
        if self.peak not in by:
            return True
        lower = self.frame.target.lower_is_better
        told = beats(by[rival].fresh, by[self.peak].evidence, self.noise, self.frame.delta, lower_is_better=lower)
        return told.verdict == "better"

    @cached_property
    def judged(self) -> list[Candidate]:
        """The new stack's candidates; the old peak was not chosen here by luck, so all its launches speak."""
        return [
            one.model_copy(update={"fresh": one.searched + one.fresh, "searched": ()})
            if one.configuration == self.peak
            else one
            for one in self.new.field
        ]

    def verdict(self) -> Verdict:
        frame = self.frame
        shift = judge_shift(
            self.old.field,
            self.judged,
            self.peak,
            frame.target,
            self.noise,
            frame.delta,
            impossible=f"{self.peak.label()} does not start on the new engine" if self.lost else "",
            log_likelihood_ratio=self.model.log_likelihood_ratio if self.here else None,
            expected_gain=self.gains[1] if self.here else None,
        )
        peak = declare_peak(
            self.judged,
            frame.target,
            self.noise,
            frame.delta,
            incumbent=self.peak,
            defaults=frame.space.defaults.values,
        )
        return Verdict(shift, peak)


def _differing(one: Configuration, other: Configuration) -> set[str]:
    return {name for name in one.values.keys() | other.values.keys() if one.values.get(name) != other.values.get(name)}
