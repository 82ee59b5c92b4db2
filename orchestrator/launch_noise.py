"""How much two launches of one configuration differ, and how many launches a question therefore costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from pydantic import Field
from scipy import special

from trackers.records import Frozen

__all__ = [
    "LaunchNoise",
    "disagree",
    "finalist_launches",
    "launches_for_equivalence",
    "launches_for_gap",
    "logs",
    "mean_log",
    "pooled",
    "squares",
    "windows_per_launch",
]

_DISAGREEMENT = 4.0  # launch sds between two launches: once in 200 pairs by chance
_NOT_NOISE = 0.999  # quantile of the variance ratio beyond which a group is something else than noise
_ENOUGH_DOF = 4  # of the other groups, before one of them may be called something else than noise


class LaunchNoise(Frozen):
    """The sd between launches of one configuration, in log units (0.015 is 1.5 %), and what it rests on.

    It belongs to one machine, model and metric: decode and prefill have each their own.
    """

    sd: float = Field(gt=0)
    dof: float = Field(gt=0)

    def t(self, level: float = 0.95) -> float:
        """Two-sided Student quantile at this many degrees of freedom."""
        return float(special.stdtrit(self.dof, 0.5 + level / 2))


def logs(values: Sequence[float]) -> list[float]:
    """Natural logs; ValueError where a value is not a positive finite number."""
    # Without numpy: a trial asks for hundreds of series of three to twelve numbers.
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"only positive finite values have a log: {list(values)}")
    return [math.log(value) for value in values]


def mean_log(values: Sequence[float]) -> float:
    """The mean of the logs: the log of the geometric mean."""
    return fmean(logs(values))


def squares(x: Sequence[float]) -> float:
    """The sum of squares about the mean."""
    mean = fmean(x)
    return math.fsum((value - mean) ** 2 for value in x)


def pooled(
    prior_sd: float, groups: Sequence[Sequence[float]], prior_dof: float = 4.0, floor: float = 0.0
) -> LaunchNoise:
    """Pool the launch noise over all configurations that were launched more than once.

    sd^2 = (prior_dof prior_sd^2 + sum of squares within configurations) / (prior_dof + their dof). A
    group so far out that it cannot be noise (two modes) is left out, or it would hide every difference.

    Args:
        prior_sd: What the plan expects of this machine, log units.
        groups: Launch means in the metric's unit, one group a configuration; single launches add nothing.
        prior_dof: What the prior weighs, in degrees of freedom.
        floor: The in-launch error of a launch's mean: launches cannot repeat better than their windows.
    """
    spreads = [(squares(x), len(x) - 1) for x in map(logs, groups) if len(x) > 1]
    while (worst := _not_noise(spreads, prior_sd, prior_dof)) is not None:
        del spreads[worst]
    dof = prior_dof + sum(n for _, n in spreads)
    variance = (prior_dof * prior_sd**2 + sum(ss for ss, _ in spreads)) / dof
    return LaunchNoise(sd=max(math.sqrt(variance), floor), dof=dof)


def _not_noise(spreads: Sequence[tuple[float, int]], prior_sd: float, prior_dof: float) -> int | None:
    """The group least like the others, where it is beyond chance."""
    all_ss, all_dof = sum(ss for ss, _ in spreads), sum(n for _, n in spreads)
    excess = []
    for ss, n in spreads:
        dof = all_dof - n + prior_dof
        rest = (all_ss - ss + prior_dof * prior_sd**2) / dof
        known = all_dof - n >= _ENOUGH_DOF
        excess.append(ss / n / rest / special.fdtri(n, dof, _NOT_NOISE) if known else 0.0)
    return excess.index(max(excess)) if excess and max(excess) > 1 else None


def disagree(launches: Sequence[float], sd: float) -> bool:
    """Whether launches of one configuration lie further apart than noise `sd` (log units) puts them.

    Two disagree beyond 4 sd; with more of them the bound widens so that chance stays one in 200.
    """
    pairs = len(launches) * (len(launches) - 1) // 2
    if not pairs:
        return False
    chance = special.ndtr(-_DISAGREEMENT / math.sqrt(2))
    bound = -math.sqrt(2) * special.ndtri(chance / pairs) * sd
    return bool(max(logs(launches)) - min(logs(launches)) > bound)


def finalist_launches(noise: LaunchNoise) -> int:
    """Fresh launches a finalist gets: 3, or 5 where launches differ by more than 2 %."""
    return 3 if noise.sd <= 0.02 else 5


def launches_for_gap(gap: float, sd: float) -> int:
    """Launches per side that show a relative gap with 80 % power at 5 %."""
    return math.ceil(2 * (1.96 + 0.84) ** 2 * sd**2 / gap**2)


def launches_for_equivalence(margin: float, sd: float) -> int:
    """Launches per side that show two equal things equal within a relative margin (TOST, 90 % power)."""
    return math.ceil(2 * (1.645 + 1.282) ** 2 * sd**2 / margin**2)


def windows_per_launch(launch_s: float, window_s: float, window_sd: float, launch_sd: float) -> float:
    """The number of windows that makes the most of the time: sqrt(cost ratio x variance ratio).

    Under 1 means that time is better spent on another launch than on a second window.
    """
    return math.sqrt(launch_s / window_s) * window_sd / launch_sd
