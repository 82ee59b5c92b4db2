"""What moved between two stacks: the speed, the shape, the peak, or nothing that the launches can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from search_spaces.configuration import Configuration
from trackers.records import Frozen

from .candidates import Candidate, Target
from .launch_noise import LaunchNoise, disagree, launches_for_gap
from .peak import Comparison, beats

__all__ = ["PeakShift", "ShiftVerdict", "Speed", "judge_shift"]

ShiftVerdict = Literal[
    "same",
    "faster, same peak",
    "slower, same peak",
    "shape changed, same peak",
    "peak moved",
    "cannot tell",
]
_Array = NDArray[np.float64]
Shape = Literal["changed", "not shown", "cannot tell"]
_MOVED, _SAME = 2, 3  # indifference zones: a speed that moved, and the margin of one that did not
_BAYES = 2.0  # log likelihood ratio beyond which the shape changed
_CHANCE = 0.01  # of calling a shape changed where ratios differ by launch noise only
_GAIN_LEFT = 0.4  # indifference zones of expected gain that are not worth a launch
_RELAUNCHED = 2  # launches a side needs before it may move a peak, or keep it


class Speed(Frozen):
    """New over old of the metric with its 95 % interval; no numbers where nothing was measured on both."""

    verdict: Literal["faster", "slower", "same", "cannot tell"]
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    launches_to_decide: int | None = None


class PeakShift(Frozen):
    """The verdict between two stacks for one target, and the evidence of each of its three parts.

    `speed` is that of the old peak where both stacks measured it, else of all `compared` configurations.
    `challenger` is the strongest rival against the old peak on the new stack, `before` the same pair on
    the old one. `new_peak` is what is shown best on the new stack, None where nothing is.
    `launches_to_decide` is per side; `would_decide` says of what.
    """

    target: Target
    verdict: ShiftVerdict
    speed: Speed
    shape: Shape
    shape_evidence: str
    old_peak: Configuration
    new_peak: Configuration | None = None
    rival: Configuration | None = None
    challenger: Comparison | None = None
    before: Comparison | None = None
    compared: tuple[Configuration, ...] = ()
    launches_to_decide: int | None = None
    would_decide: str = ""
    noise: LaunchNoise
    delta: float

    @property
    def said(self) -> str:
        """The verdict for a reader: `cannot tell` is of where the peak is, how it came there, or its speed."""
        if self.verdict != "cannot tell":
            return self.verdict
        if self.new_peak is None:
            return "cannot tell where the best settings are now"
        if self.new_peak == self.old_peak:
            return "same peak; cannot tell whether it got faster or slower"
        if self.missed:
            return "other settings are better on both engines: the old study had missed them"
        return "other settings are better now; cannot tell whether the peak moved or was missed before"

    @property
    def missed(self) -> bool:
        """Whether the new peak is shown to have been better before, too."""
        other = self.new_peak not in (None, self.old_peak)
        return other and self.before is not None and self.before.verdict == "better"

    @property
    def decides(self) -> str:
        """What would tell, as a clause; empty where the verdict does."""
        if self.verdict != "cannot tell" or not self.would_decide or self.missed:
            return ""
        count = self.launches_to_decide
        many = f"{count} launch{'es' * (count > 1)} a side of " if count else ""
        return f"; {many}{self.would_decide} would decide"


@dataclass(frozen=True)
class _Stacks:
    """Both stacks' candidates by configuration, and what every comparison of one verdict shares."""

    before: dict[Configuration, Candidate]
    after: dict[Configuration, Candidate]
    target: Target
    noise: LaunchNoise
    delta: float
    no_better_then: Callable[[Configuration], bool]

    @property
    def zone(self) -> float:
        return math.log1p(self.delta)

    @property
    def shared(self) -> tuple[Configuration, ...]:
        return tuple(key for key in self.after if key in self.before)

    def gap(self, a: Candidate, b: Candidate) -> tuple[float, float]:
        """Log score of a over b, and its standard error."""
        gap = self.target.score(a.evidence) - self.target.score(b.evidence)
        return gap, self.noise.sd * math.sqrt(1 / len(a.evidence) + 1 / len(b.evidence))

    def moves(self, keys: Sequence[Configuration]) -> tuple[_Array, _Array, float]:
        """New over old in log score, the weight of each (1 / se^2), and their weighted mean."""
        gaps, errors = np.array([self.gap(self.after[key], self.before[key]) for key in keys]).T
        return gaps, errors**-2.0, float(np.average(gaps, weights=errors**-2.0))

    def compare(self, a: Candidate | None, b: Candidate | None, comparisons: int = 1) -> Comparison | None:
        if a is None or b is None:
            return None
        lower, rivals = self.target.lower_is_better, max(1, comparisons)
        pair = a.evidence, b.evidence
        return beats(*pair, self.noise, self.delta, lower_is_better=lower, comparisons=rivals)


@dataclass(frozen=True)
class _Finding:
    """The old peak on the new stack: what became of it, its strongest rival, and what would tell."""

    verdict: Literal["moved", "missed", "same", "cannot tell"]
    rival: Configuration | None = None
    challenger: Comparison | None = None
    launches: int | None = None
    would_decide: str = ""


def judge_shift(
    old: Sequence[Candidate],
    new: Sequence[Candidate],
    old_peak: Configuration,
    target: Target,
    noise: LaunchNoise,
    delta: float,
    *,
    impossible: str = "",
    log_likelihood_ratio: float | None = None,
    expected_gain: float | None = None,
    worth: float = _GAIN_LEFT,
    no_better_then: Callable[[Configuration], bool] = lambda _: False,
) -> PeakShift:
    """Judge what moved from the old stack to the new.

    `peak moved`: a rival with two fresh launches beats the old peak on the new stack, by more than `delta`
    and beyond what choosing among the rivals explains; and it gained on the old peak, which takes both on the old
    stack, or `no_better_then` (else the old study may have missed it: `cannot tell`, with a `new_peak`). `same
    peak`: nothing measured or predicted has an expected gain over it that is worth a launch.

    Args:
        old: The old stack's candidates; those that `new` holds too are compared across.
        new: The new stack's candidates, the old peak among them.
        old_peak: Its configuration.
        target: What is compared, the same on both stacks.
        noise: Launch noise pooled over both stacks.
        delta: The indifference zone, relative.
        impossible: Why the old peak cannot run on the new stack; empty where it can.
        log_likelihood_ratio: Of a changed shape, from a joint model of both surfaces, where one was fitted.
        expected_gain: The largest over the old peak by that model, measured or not, log units; without one it
            is read from the launches of each rival.
        worth: Indifference zones of expected gain that are worth a launch.
        no_better_then: Whether a rival that the old stack did not measure is known to have been no better there.
    """
    before, after = ({c.configuration: c for c in side if not c.veto} for side in (old, new))
    stacks = _Stacks(before, after, target, noise, delta, no_better_then)
    speed = _speed(stacks, old_peak)
    shape, evidence = _shape(stacks, log_likelihood_ratio)
    found = _gone(stacks, old_peak, impossible) if impossible else _peak(stacks, old_peak, expected_gain, worth)
    return PeakShift(
        target=target,
        verdict=_verdict(found, speed, shape),
        speed=speed,
        shape=shape,
        shape_evidence=evidence,
        old_peak=old_peak,
        new_peak={"same": old_peak, "cannot tell": None}.get(found.verdict, found.rival),
        rival=found.rival,
        challenger=found.challenger,
        before=stacks.compare(before.get(found.rival), before.get(old_peak)) if found.rival else None,
        compared=stacks.shared,
        **_what_decides(found, speed, old_peak),
        noise=noise,
        delta=delta,
    )


def _verdict(found: _Finding, speed: Speed, shape: Shape) -> ShiftVerdict:
    if found.verdict != "same":
        return "peak moved" if found.verdict == "moved" else "cannot tell"
    if shape == "changed":
        return "shape changed, same peak"
    words: dict[str, ShiftVerdict] = {
        "faster": "faster, same peak",
        "slower": "slower, same peak",
        "same": "same",
    }
    return words.get(speed.verdict, "cannot tell")


def _speed(stacks: _Stacks, old_peak: Configuration) -> Speed:
    keys = [old_peak] if old_peak in stacks.shared else stacks.shared
    if not keys:
        return Speed(verdict="cannot tell")
    _, weights, mean = stacks.moves(keys)
    se, noise, zone = float(weights.sum()) ** -0.5, stacks.noise, stacks.zone
    verdict: Literal["faster", "slower", "same", "cannot tell"] = "cannot tell"
    if abs(mean) > _MOVED * zone and abs(mean) > noise.t(0.99) * se:
        verdict = "faster" if mean > 0 else "slower"
    elif abs(mean) + noise.t(0.90) * se < _SAME * zone:
        verdict = "same"
    sign = -1 if stacks.target.lower_is_better else 1
    low, high = sorted(math.exp(sign * mean + side * noise.t() * se) for side in (-1, 1))
    launches = launches_for_gap(max(abs(mean), _MOVED * zone), noise.sd) if verdict == "cannot tell" else None
    return Speed(verdict=verdict, ratio=math.exp(sign * mean), low=low, high=high, launches_to_decide=launches)


def _shape(stacks: _Stacks, log_likelihood_ratio: float | None) -> tuple[Shape, str]:
    """Whether configurations moved by different ratios: the joint model's word, or a test of the ratios."""
    if log_likelihood_ratio is not None:
        text = f"log likelihood ratio {log_likelihood_ratio:.1f} for a changed shape, {_BAYES:g} shows it"
        return "changed" if log_likelihood_ratio > _BAYES else "not shown", text
    keys = stacks.shared
    if len(keys) < 2:
        return (
            "cannot tell",
            f"{len(keys)} of the two configurations that it takes were measured on both stacks",
        )
    gaps, weights, mean = stacks.moves(keys)
    spread = float((weights * (gaps - mean) ** 2).sum()) / (len(keys) - 1)
    chance = float(special.fdtrc(len(keys) - 1, stacks.noise.dof, spread))
    furthest = float(abs(gaps - mean).max())
    text = f"ratios of {len(keys)} configurations differ by up to {furthest:.1%}, chance {chance:.2g}"
    return "changed" if chance < _CHANCE and furthest > stacks.zone else "not shown", text


def _gone(stacks: _Stacks, old_peak: Configuration, impossible: str) -> _Finding:
    """The old peak does not run any more: the best that does takes its place, how well shown or not."""
    rivals = [c for key, c in stacks.after.items() if key != old_peak]
    best = max(rivals, key=lambda c: (bool(c.fresh), stacks.target.score(c.evidence)), default=None)
    return _Finding("moved", best.configuration if best else None, would_decide=impossible)


def _peak(stacks: _Stacks, old_peak: Configuration, expected_gain: float | None, worth: float) -> _Finding:
    """Whether the old peak still is one, from the new stack's launches alone."""
    anchor = stacks.after.get(old_peak)
    if anchor is None or len(anchor.evidence) < _RELAUNCHED:
        return _Finding("cannot tell", would_decide=f"{old_peak.label()} launched twice on the new stack")
    rivals = [c for key, c in stacks.after.items() if key != old_peak]
    if not rivals:
        return _Finding("cannot tell", would_decide="other configurations launched on the new stack")
    ready = [c for c in rivals if len(c.fresh) >= _RELAUNCHED]
    told = [(c, stacks.compare(c, anchor, len(ready))) for c in ready]
    if better := [(c, found) for c, found in told if found and found.verdict == "better"]:
        best, found = max(better, key=lambda pair: stacks.target.score(pair[0].evidence))
        return _moved_or_missed(stacks, best, anchor, found)
    gains = {c.configuration: _expected_gain(*stacks.gap(c, anchor)) for c in rivals}
    rival = max(gains, key=lambda key: gains[key])
    challenger = stacks.compare(stacks.after[rival], anchor, len(ready))
    if (gains[rival] if expected_gain is None else expected_gain) < worth * stacks.zone:
        return _Finding("same", rival, challenger)
    size, fresh = abs(stacks.gap(stacks.after[rival], anchor)[0]), len(stacks.after[rival].fresh)
    launches = max(launches_for_gap(max(size, stacks.zone), stacks.noise.sd), fresh + 1)
    text = f"{rival.label()} and {old_peak.label()} launched afresh on the new stack"
    return _Finding("cannot tell", rival, challenger, launches, text)


def _moved_or_missed(stacks: _Stacks, best: Candidate, anchor: Candidate, found: Comparison) -> _Finding:
    """A rival that was no worse on the old stack was missed there: to have moved it must have gained."""
    pair = stacks.before.get(best.configuration), stacks.before.get(anchor.configuration)
    (now, now_se), rival = stacks.gap(best, anchor), best.configuration
    if pair[0] is None and not stacks.no_better_then(rival):
        launches = launches_for_gap(max(now, stacks.zone), math.sqrt(2) * stacks.noise.sd)
        text = f"{rival.label()}, better now and never measured on the old engine, launched there"
        return _Finding("missed", rival, found, launches, text)
    if pair[0] and pair[1]:
        then, then_se = stacks.gap(pair[0], pair[1])
        before, unsteady = stacks.compare(pair[0], pair[1]), disagree(pair[1].evidence, stacks.noise.sd)
        if (
            (before and before.verdict == "better")
            or unsteady
            or now - then < stacks.noise.t() * math.hypot(then_se, now_se)
        ):
            launches = launches_for_gap(max(abs(now - then), stacks.zone), math.sqrt(2) * stacks.noise.sd)
            text = f"{rival.label()}, better now, and {anchor.configuration.label()} on both stacks"
            return _Finding("missed", rival, found, launches, text)
    return _Finding("moved", rival, found)


def _what_decides(found: _Finding, speed: Speed, old_peak: Configuration) -> dict[str, Any]:
    if found.verdict == "same" and speed.verdict == "cannot tell":
        text = f"{old_peak.label()} launched on both stacks"
        return {"launches_to_decide": speed.launches_to_decide, "would_decide": text}
    return {"launches_to_decide": found.launches, "would_decide": found.would_decide}


def _expected_gain(gap: float, se: float) -> float:
    """Expected improvement of a normal reading over zero, in its unit."""
    z = gap / se
    return float(gap * special.ndtr(z) + se * math.exp(-z * z / 2) / math.sqrt(2 * math.pi))
