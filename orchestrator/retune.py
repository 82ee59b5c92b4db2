"""Retune: which launch tells most about where the peak went, planned from the records of both stacks alone."""

from __future__ import annotations

from functools import cached_property
from itertools import chain

import numpy as np

from search_spaces.configuration import Configuration
from search_spaces.knob import Knob

from .both_stacks import CHANGED, UNTRIED_K, BothStacks
from .candidates import Candidate
from .launch_noise import disagree, finalist_launches
from .peak import beats, declare_peak
from .refusal import could_not_run
from .retune_view import Frame, Seen, Step, Verdict, all_fresh, one_knob_away, restated
from .shift import judge_shift

__all__ = ["next_step"]

_ANCHORS = 2
_CLEAR = 5.0  # indifference zones of lead that no drift of a machine makes
_LIKELY = 1.0  # sds of lead that recommend a configuration before it is shown


def next_step(old: Seen, new: Seen, frame: Frame) -> Step | Verdict:
    """What to launch next, or the verdict: a pure function, so that a retune stopped anywhere goes on."""
    now = _Now(old, new, frame)
    return now.anchor() or now.walk() or now.coverage() or now.search() or now.finals() or now.then() or now.verdict()


class _Now(BothStacks):
    """One look at all records, and the phases of a retune: each a step, or nothing more to do."""

    def anchor(self) -> Step | None:
        """The old peak on the new stack, twice; once more where the two are no one number."""
        tried = self.new.times(self.peak, "anchor")
        if self.lost or tried > _ANCHORS:
            return None
        if tried and (step := self._old_turn(tried)):
            return step
        found = next((one for one in self.new.field if one.configuration == self.peak), None)
        split = found is not None and disagree(found.evidence, self.noise.sd)
        if tried < _ANCHORS or (split and not self.finals_so_far):
            return Step(self.peak, "anchor", "the old peak on the new engine")
        return None

    def _old_turn(self, turns: int) -> Step | None:
        """The old engine in turn with the new one, so that the host's own drift cannot pass for an engine's."""
        taken = sum(one.configuration == self.peak for one in self.old.in_turn)
        if not self.frame.alternate or taken >= min(turns, _ANCHORS):
            return None
        return Step(self.peak, "in_turn", "the old engine in turn, to tell its host's drift", "old")

    def walk(self) -> Step | None:
        """Where nothing has started yet: what was good before and probably starts."""
        if self.here or self.spent >= self.frame.effort.most:
            return None
        far = dict.fromkeys(one_knob_away(self.frame.space, self.peak, far=True))
        options = [one for one in far if not self.new.times(one) and not self.refused(one)]
        if not options:
            return None
        chances = np.log([self.chance(one) for one in options])
        found = options[int((self.model.forecast(options).mean + 2 * chances).argmax())]
        return Step(found, "probe", "the old peak does not run here")

    def coverage(self) -> Step | None:
        """Every other drafter once, at its best k, then every other knob: what changed shows in no other way."""
        if self.finals_so_far or not self.here or self.spent >= self.frame.effort.most:
            return None
        return self._another_drafter() or self._another_knob()

    def _another_drafter(self) -> Step | None:
        visited = {one.configuration.drafter for one in self.new.records}
        measured = {c.drafter for c, _ in self.old.readings}
        paths: dict[str, list[Configuration]] = {}
        for one in self.frame.drafting(self.base):
            if one.drafter not in visited and not self.refused(one):
                paths.setdefault(one.drafter, []).append(one)
        for drafter, path in paths.items():
            if drafter not in measured:
                return Step(path[min(len(path) - 1, UNTRIED_K)], "probe", f"{drafter} was never measured")
        left = list(chain.from_iterable(paths.values()))
        means = self.model.forecast([*left, self.base]).mean
        best = int(means[:-1].argmax()) if left else -1
        if not left or means[best] - means[-1] < -self.frame.effort.hopeless:
            return None
        return Step(left[best], "probe", f"{left[best].drafter} may have changed")

    def _another_knob(self) -> Step | None:
        """The knob not yet turned, up or down, that promises most; k and choices first: engines change those."""
        base, effort, turned = self.base, self.frame.effort, set[tuple[str, bool]]()
        for record in self.new.records:
            if record.configuration.drafter == base.drafter:
                turned |= _turns(record.configuration, base)
        left: list[tuple[bool, float, Configuration, Knob]] = []
        means = self.model.forecast([*self.options, base]).mean
        for gain, one, mean in zip(self.gains, self.options, means, strict=False):
            turns = _turns(one, base)
            if one.drafter == base.drafter and len(turns) == 1 and not turns & turned:
                knob = self._knob(next(iter(turns))[0], one)
                # What was far behind no engine brings forward; what only makes room gains nothing.
                near = mean - means[-1] > -effort.hopeless / 2 and knob.needs != ("device",)
                if gain > effort.gain_probe * self.zone or near:
                    left.append((knob.name == "k" or not knob.ordered, gain, one, knob))
        if not left or self.spent >= effort.calm:
            return None
        _, gain, found, knob = max(left, key=lambda each: each[:2])
        return Step(found, "probe", f"{knob.name} may have changed, expected gain {gain:.1%}")

    def _knob(self, name: str, one: Configuration) -> Knob:
        return next(knob for knob in self.frame.space.knobs if knob.name == name and knob.active(one.values))

    def search(self) -> Step | None:
        """What promises most, as long as that is worth a launch."""
        effort = self.frame.effort
        if self.finals_so_far or not self.gains or self.spent >= (effort.most if self.moved else effort.calm):
            return None
        most = max(self.gains)
        if most < (effort.gain_moved if self.moved else effort.gain) * self.zone:
            return None
        return Step(self.options[self.gains.index(most)], "search", f"expected gain {most:.1%}")

    def finals(self) -> Step | None:
        """The best launched afresh, the old peak in turn where drift could explain the lead."""
        effort = self.frame.effort
        most = min(effort.finals, finalist_launches(self.noise))
        if self.finals_so_far >= effort.finals * (effort.rivals + 1):
            return None
        for rival in self._rivals():
            fresh = self.new.times(rival, "finalist")
            if fresh >= most or (fresh >= 2 and self._shown(rival)):
                continue
            again = self.new.times(self.peak, "finalist")
            if fresh > again and self.peak in self.here and self.lead(rival)[0] < _CLEAR * self.zone:
                return Step(self.peak, "finalist", "the old peak in turn with what may replace it")
            if again and (step := self._old_turn(again + 1)):
                return step
            return Step(rival, "finalist", "launched afresh, as the search chose it by its luck too")
        return None

    def _rivals(self) -> list[Configuration]:
        """What may replace the old peak: close to the best, and worth more launches."""
        if not self.here:
            return []
        mean, least = self.measured.mean, self.frame.effort.gain_final * self.zone
        gains = self.measured.gains(self.here.index(self.peak)) if self.peak in self.here else np.full(len(mean), 1.0)
        found = [
            self.here[i]
            for i in np.argsort(-mean)
            if self.here[i] != self.peak and mean[i] >= mean.max() - 1.5 * self.zone and gains[i] > least
        ]
        return found[: self.frame.effort.rivals]

    def _shown(self, rival: Configuration) -> bool:
        by = {one.configuration: one for one in self.judged}
        if self.peak not in by:
            return True
        pair, lower = (by[rival].fresh, by[self.peak].evidence), self.frame.target.lower_is_better
        return beats(*pair, self.noise, self.frame.delta, lower_is_better=lower).verdict == "better"

    def then(self) -> Step | None:
        """What is shown to be better now, once on the old engine too: it may only have been missed there."""
        rival, turns = self.best_shown, [one.configuration for one in self.old.in_turn]
        if not self.frame.alternate or rival is None or not self.frame.known_then(rival):
            return None
        if rival not in (*turns, *(one.configuration for one in self.old.records)):
            return Step(rival, "in_turn", "better now, and never launched on the old engine", "old")
        told = any(one.configuration == rival for one in self.old.turns)
        if told and self.peak not in turns[turns.index(rival) :]:
            return Step(self.peak, "in_turn", "the old peak beside it, as the host may have drifted since", "old")
        return None

    @cached_property
    def best_shown(self) -> Configuration | None:
        """The best of what was launched afresh and is shown to beat the old peak; None where there is nothing."""
        fresh = [one for one in self.new.field if len(one.fresh) >= 2 and not one.veto]
        shown = [one for one in fresh if one.configuration != self.peak and self._shown(one.configuration)]
        score = self.frame.target.score
        return max(shown, key=lambda one: score(one.fresh)).configuration if shown and not self.lost else None

    # The verdict.

    @cached_property
    def judged(self) -> list[Candidate]:
        """The new stack's candidates; the old peak was not chosen here by luck, so all its launches speak."""
        return [all_fresh(one) if one.configuration == self.peak else one for one in self.new.field]

    def verdict(self) -> Verdict:
        frame = self.frame
        shift = judge_shift(
            restated(self.old, self.peak),
            self.judged,
            self.peak,
            frame.target,
            self.noise,
            frame.delta,
            impossible=f"{self.peak.label()} does not start on the new engine" if self.lost else "",
            log_likelihood_ratio=self.model.log_likelihood_ratio if self.here else None,
            expected_gain=self._gain_left(),
            worth=frame.effort.gain_final,
            no_better_then=self._no_better_then,
        )
        incumbent = None if self.lost else self.peak
        defaults = frame.space.defaults.values
        peak = declare_peak(self.judged, frame.target, self.noise, frame.delta, incumbent=incumbent, defaults=defaults)
        recommended = self._recommended()
        known = recommended is not None and recommended != self.peak and self.peak in self.here
        return Verdict(shift, peak, recommended, self.lead(recommended) if known and recommended else None)

    def _gain_left(self) -> float | None:
        """What is still to be gained over the old peak, by what was measured or by what was not."""
        if self.peak not in self.here:
            return None
        over = self.measured.gains(self.here.index(self.peak))
        over[self.here.index(self.peak)] = 0.0
        return max(float(over.max()), *self.gains, 0.0)

    def _recommended(self) -> Configuration | None:
        fresh = [one.configuration for one in self.new.field if one.fresh and one.configuration in self.here]
        for one in sorted(fresh, key=lambda each: -self.measured.mean[self.here.index(each)]):
            ahead, sd = self.lead(one)
            if ahead > max(self.zone / 2, _LIKELY * sd):
                return one
        if not self.lost:
            return self.peak
        return self.best if self.here else None

    def _no_better_then(self, rival: Configuration) -> bool:
        """Of a rival that the old stack did not measure: it cannot run there, or the shape changed within its reach."""
        if could_not_run((*self.old.records, *self.old.in_turn), rival):
            return True
        return self.model.log_likelihood_ratio > CHANGED and self._within_reach_then(rival)

    def _within_reach_then(self, rival: Configuration) -> bool:
        """Whether the old study says something of each of its values: what it never turned may be no change."""
        for knob in self.frame.space.knobs:
            value = rival.values.get(knob.name)
            if value is None or not knob.active(rival.values):
                continue
            seen = [
                one.values[knob.name]
                for one, _ in self.old.readings
                if knob.name in one.values and (knob.name != "k" or one.drafter == rival.drafter)
            ]
            between = knob.ordered and bool(seen) and min(seen) <= value <= max(seen)  # type: ignore[operator]
            if not between and value not in seen:
                return False
        return True


def _turns(one: Configuration, base: Configuration) -> set[tuple[str, bool]]:
    """Which knobs differ from the base, and whether upwards; a drafter's own settings come with it."""
    found = set()
    for name in one.values.keys() | base.values.keys():
        mine, theirs = one.values.get(name), base.values.get(name)
        if mine != theirs and not name.startswith("drafter."):
            numbers = isinstance(mine, int | float) and isinstance(theirs, int | float)
            found.add((name, mine > theirs if numbers else str(mine) > str(theirs)))  # type: ignore[operator]
    return found
