"""When to stop measuring: windows until a launch settles, launches until a number has an honest interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean, linear_regression
from typing import Literal, Self

from pydantic import Field, model_validator
from scipy import special

from trackers.records import Ending, Estimate, Frozen, Measurement

from .launch_noise import LaunchNoise, disagree, logs, mean_log, pooled, squares

__all__ = [
    "StabilityRule",
    "WindowVerdict",
    "estimate",
    "in_launch_variance",
    "judge_launches",
    "judge_windows",
    "launch_values",
    "worst_ending",
]

WindowEnding = Literal["stable", "noisy", "drifting", "bimodal"]
_Logs = list[float]
_FEWEST = 3  # windows under an interval
_TREND_SHOWN = 0.995  # quantile; one noisy launch in a hundred is called drifting by chance
_MODES_APART = 6.0  # distance of two modes in sds within a mode; normal windows stay under it
_HALVES: tuple[WindowEnding, str] = ("noisy", "halves differ by half the precision, within their noise")
_WORST_FIRST: tuple[Ending, ...] = ("failed", "bimodal", "drifting", "capped", "noisy", "stable")


class StabilityRule(Frozen):
    """How precise a launch is to be (relative, 0.01 is 1 %), and within what bounds to try."""

    precision: float = Field(gt=0, lt=1)
    min_windows: int = Field(5, ge=1)
    max_windows: int = Field(12, ge=1)
    min_launches: int = Field(1, ge=1)
    max_launches: int = Field(5, ge=1)
    drop_first: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_launches > self.max_launches:
            raise ValueError(f"min_launches {self.min_launches} is above max_launches {self.max_launches}")
        return self


@dataclass(frozen=True)
class WindowVerdict:
    """What the windows of one launch say so far.

    `value` and `half_width` (95 %, of this launch only) are in the metric's unit; `used` are the indices
    that count; `ending` is None while the decision is `repeat`.
    """

    decision: Literal["repeat", "settled"]
    ending: WindowEnding | None
    value: float
    half_width: float
    used: range
    reason: str


def judge_windows(values: Sequence[float], rule: StabilityRule) -> WindowVerdict:
    """Judge one metric's windows of one launch, in the order they were measured.

    The first window is dropped, then as much of the first half as makes the interval narrowest (MSER with
    Student's factor). Stable is an interval within the precision, no trend and one mode. At the cap it is
    named `bimodal`, `drifting`, or else `noisy`: usable, at the interval it achieved.

    Raises:
        ValueError: There are no windows, or one is not a positive finite number.
    """
    if not values:
        raise ValueError("a launch without windows has nothing to judge")
    x, first = logs(values), int(rule.drop_first and len(values) > 1)
    start = first + _truncation(x[first:], max(_FEWEST, rule.min_windows - first))
    used, precision = x[start:], math.log1p(rule.precision)
    half = _half_width(used)
    problem = _problem(x[first:], used, half, precision)
    if problem == _HALVES and len(x) > rule.min_windows and judge_windows(values[:-1], rule).ending == "stable":
        problem = None  # halves have to agree once; after that only what is shown unsettles a launch
    ending, reason = problem or ("stable", f"+-{half:.2%} over {len(used)} windows")
    capped = len(x) >= rule.max_windows
    settled = capped or (problem is None and len(x) >= rule.min_windows)
    value = math.exp(fmean(used))
    return WindowVerdict(
        "settled" if settled else "repeat",
        ending if settled else None,
        value,
        value * math.expm1(half),
        range(start, len(x)),
        reason if problem or settled else f"{reason}, of at least {rule.min_windows}",
    )


def _problem(measured: _Logs, used: _Logs, half: float, precision: float) -> tuple[WindowEnding, str] | None:
    """Why this is not stable: the gravest reason first."""
    if modes := _modes(measured, precision):
        return "bimodal", f"two modes, {modes[0]:.4g} and {modes[1]:.4g}"
    change, noise = _trend(used)
    # What moves less than its own noise is not drift: on a noisy machine half the series would be.
    if abs(change) >= precision / 2 and abs(change) > noise:
        return "drifting", f"the second half is {change:+.1%} from the first"
    if half >= precision:
        return "noisy", f"+-{half:.2%} over {len(used)} windows, {precision:.2%} asked"
    if abs(change) >= precision / 2:
        return _HALVES
    return None


def _half_width(x: _Logs) -> float:
    """The 95 % half-width of the mean; infinite under two windows."""
    n = len(x)
    return _t(n - 1, 0.975) * math.sqrt(squares(x) / (n - 1) / n) if n > 1 else math.inf


@cache
def _t(dof: int, quantile: float) -> float:
    return float(special.stdtrit(dof, quantile))


def _truncation(x: _Logs, keep: int) -> int:
    """How many leading windows to leave out, at most half, so that the interval is narrowest; `keep` stay."""
    most = max(0, min(len(x) // 2, len(x) - keep))
    return min(range(most + 1), key=lambda d: _half_width(x[d:]))


def _trend(x: _Logs) -> tuple[float, float]:
    """From the first half to the second: the change, and how much of it noise about a line explains."""
    n, half = len(x), len(x) // 2
    if n < _FEWEST:
        return 0.0, math.inf
    change = fmean(x[-half:]) - fmean(x[:half])
    slope, level = linear_regression(range(n), x)
    sd = math.sqrt(math.fsum((value - level - slope * at) ** 2 for at, value in enumerate(x)) / (n - 2))
    return change, _t(n - 2, _TREND_SHOWN) * sd * math.sqrt(2 / half)


def _modes(x: _Logs, precision: float) -> tuple[float, float] | None:
    """The two values windows jump between, in the metric's unit; None where there is one mode.

    A single early step up is a warm-up and truncation's business; modes need a way back, or both halves.
    """
    order = sorted(x)
    gaps = [b - a for a, b in pairwise(order)][1:-1]  # each mode holds two windows at least
    if not gaps:
        return None
    cut = gaps.index(max(gaps)) + 2
    low, high = order[:cut], order[cut:]
    apart = fmean(high) - fmean(low)
    within = math.sqrt((squares(low) + squares(high)) / max(1, len(x) - 2))
    if apart < 2 * precision or apart < _MODES_APART * within or max(gaps) < apart / 2:
        return None
    between = (low[-1] + high[0]) / 2
    switches = sum((a > between) != (b > between) for a, b in pairwise(x))
    if switches < 2 and min(len(low), len(high)) < len(x) / 3:
        return None
    return math.exp(fmean(low)), math.exp(fmean(high))


def launch_values(windows: Sequence[Measurement], workload: str, metric: str) -> dict[int, tuple[float, ...]]:
    """Launch number -> its windows of this metric on this workload, in measured order."""
    found: dict[int, list[tuple[int, float]]] = {}
    for window in windows:
        if window.workload.name == workload and metric in window.metrics:
            found.setdefault(window.launch, []).append((window.window, window.metrics[metric]))
    return {launch: tuple(value for _, value in sorted(pairs)) for launch, pairs in sorted(found.items())}


def estimate(launch_values: Sequence[Sequence[float]], rule: StabilityRule, noise: LaunchNoise) -> Estimate:
    """The number a configuration gets: the launches are the replicate, whatever their windows say.

    half-width = 1.96 sqrt((sL^2 + sW^2 / windows) / launches), so one launch carries at least 1.96 sL.

    Args:
        launch_values: For each launch its windows, in the metric's unit.
        rule: What decides which windows count.
        noise: From the prior and the *other* configurations; this one's launches are added here. Had they
            been in it already they would hide their own disagreement (`bimodal` beyond 4 sL).

    Raises:
        ValueError: There is no launch, or one has no windows.
    """
    verdicts = [judge_windows(values, rule) for values in launch_values]
    if not verdicts:
        raise ValueError("no launch, no estimate")
    means, counts = [v.value for v in verdicts], [len(v.used) for v in verdicts]
    error = in_launch_variance(launch_values, verdicts) * fmean(1 / n for n in counts)
    own = pooled(noise.sd, [means], prior_dof=noise.dof)
    half = 1.96 * math.sqrt((own.sd**2 + error) / len(means))
    endings: list[Ending] = [v.ending or "capped" for v in verdicts]
    if disagree(means, math.sqrt(noise.sd**2 + error)):
        endings.append("bimodal")
    value = math.exp(mean_log(means))
    return Estimate(
        value=value,
        half_width=value * math.expm1(half),
        launches=len(means),
        windows=sum(counts),
        ending=worst_ending(endings),
    )


def in_launch_variance(launches: Sequence[Sequence[float]], verdicts: Sequence[WindowVerdict]) -> float:
    """Variance between the windows of a launch, pooled over launches, log units; 0 where none has two."""
    used = [logs(values)[v.used.start :] for values, v in zip(launches, verdicts, strict=True)]
    dof = sum(len(x) - 1 for x in used)
    return math.fsum(squares(x) for x in used) / dof if dof else 0.0


def worst_ending(endings: Sequence[Ending]) -> Ending:
    """The gravest of these endings."""
    return next(ending for ending in _WORST_FIRST if ending in endings)


def judge_launches(
    launch_values: Sequence[Sequence[float]], rule: StabilityRule, noise: LaunchNoise
) -> Literal["repeat", "settled"]:
    """Whether a configuration needs another launch: fewer than the rule's, or launches that disagree."""
    n = len(launch_values)
    if n < rule.min_launches:
        return "repeat"
    split = n > 1 and estimate(launch_values, rule, noise).ending == "bimodal"
    return "repeat" if split and n < rule.max_launches else "settled"
