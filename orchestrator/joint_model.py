"""The joint model: an old and a new stack's surface as one Gaussian process, their difference as another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, special

from search_spaces.configuration import Configuration, Scalar
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace

__all__ = ["Forecast", "JointModel", "Lengths", "Reading", "expected_gain"]

_Array = NDArray[np.float64]
Lengths = Mapping[str, Sequence[float]]
"""Drafter -> tokens a target pass at k = 1, 2, ...: from the acceptance of each position, as far as known."""

_LEVEL, _SHIFT = 1.0, 0.5  # sds of what is common to a stack, and of what a new engine adds to all alike
_TAU_DRAFT, _TAU_REST = (0.01, 0.04, 0.12, 0.35), (0.01, 0.03, 0.1)
_TAU_MEDIAN, _TAU_SD = 0.05, 1.2  # log-normal prior of the size of a changed shape
# Amplitudes of the old surface's parts (log units) before it is fitted; each within a factor e or so.
_DRAFTER, _DEPTH, _KNOB, _TOGETHER, _YIELD = 0.3, 0.15, 0.05, 0.03, 0.15
_WAVE = 3.0  # draft tokens over which the cost of one more stays alike


@dataclass(frozen=True)
class Reading:
    """Mean log score of a configuration's launches on one stack; higher is better."""

    configuration: Configuration
    score: float
    launches: int


@dataclass(frozen=True)
class Forecast:
    """The new surface at some configurations, averaged over how much of the shape may have changed.

    `means` (mixture x n) are log scores, `covariances` (mixture x n x n) theirs, `weights` sum to 1.
    """

    means: _Array
    covariances: _Array
    weights: _Array

    @property
    def mean(self) -> _Array:
        return np.asarray(self.weights @ self.means)

    def gap(self, a: int, b: int) -> tuple[float, float]:
        """Mean and sd of a over b, log units."""
        gaps = self.means[:, a] - self.means[:, b]
        c = self.covariances
        mean = float(self.weights @ gaps)
        spread = c[:, a, a] + c[:, b, b] - 2 * c[:, a, b] + (gaps - mean) ** 2
        return mean, math.sqrt(max(float(self.weights @ spread), 1e-12))

    def gains(self, over: int) -> _Array:
        """Expected improvement of each over one of them, log units."""
        gaps = self.means - self.means[:, [over]]
        c = self.covariances
        own = np.diagonal(c, axis1=1, axis2=2)
        spread = own + own[:, [over]] - 2 * c[:, :, over]
        return np.asarray(self.weights @ expected_gain(gaps, np.sqrt(np.maximum(spread, 1e-12))))


def expected_gain(gap: _Array, sd: _Array) -> _Array:
    """Mean of what a normal reading has over zero."""
    z = gap / sd
    return np.asarray(gap * special.ndtr(z) + sd * np.exp(-z * z / 2) / math.sqrt(2 * math.pi))


class JointModel:
    """y_old = f, y_new = f + shift + delta; f and delta additive over knobs, in log units.

    Args:
        space: The new stack's space; old configurations are of it too.
        old: What the old stack gave.
        new: What the new stack gave so far.
        lengths: Tokens a pass by drafter, on the old and the new stack.
        sd: Launch noise, log units.
    """

    def __init__(
        self,
        space: SearchSpace,
        old: Sequence[Reading],
        new: Sequence[Reading],
        lengths: tuple[Lengths, Lengths],
        sd: float,
    ) -> None:
        self._space, self._lengths, self._sd = space, lengths, sd
        self._old, self._new = _Points(space, old, lengths[0]), _Points(space, new, lengths[1])
        self._scales = _fitted(space, self._old, sd)
        self._mixture = self._weigh()

    @property
    def log_likelihood_ratio(self) -> float:
        """For a changed shape against one that changed by 1 % at most."""
        return max(0.0, max(one.evidence for one in self._mixture) - self._mixture[0].evidence)

    def forecast(self, configurations: Sequence[Configuration]) -> Forecast:
        asked = _Points(self._space, [Reading(one, 0.0, 1) for one in configurations], self._lengths[1])
        surface = _surface(asked, asked, self._scales) + _SHIFT**2
        cross = np.hstack([_surface(asked, self._old, self._scales), _surface(asked, self._new, self._scales) + _SHIFT**2])
        means, covariances = [], []
        for one in self._mixture:
            k = cross.copy()
            k[:, len(self._old.y) :] += _changed(asked, self._new, one.tau)
            means.append(k @ one.alpha + asked.offset + self._level)
            solved = linalg.cho_solve(one.factor, k.T)
            covariances.append(surface + _changed(asked, asked, one.tau) - k @ solved)
        logs = np.array([one.evidence + one.prior for one in self._mixture])
        weights = np.exp(logs - logs.max())
        return Forecast(np.array(means), np.array(covariances), weights / weights.sum())

    def _weigh(self) -> list[_Component]:
        old, new = self._old, self._new
        y = np.concatenate([old.residual, new.residual])
        self._level = float(old.residual.mean()) if len(old.y) else float(y.mean())
        n = len(old.y)
        both = _join(old, new)
        base = _surface(both, both, self._scales)
        base[n:, n:] += _SHIFT**2
        base[np.diag_indices_from(base)] += self._sd**2 / both.launches
        # what the old stack alone says is the same for every tau: only p(new | old) is weighed
        only_old = _log_likelihood(base[:n, :n], y[:n] - self._level)[0] if n else 0.0
        found = []
        for tau in itertools.product(_TAU_DRAFT, _TAU_REST):
            k = base.copy()
            k[n:, n:] += _changed(new, new, tau)
            evidence, factor, alpha = _log_likelihood(k, y - self._level)
            prior = sum(-0.5 * (math.log(t / _TAU_MEDIAN) / _TAU_SD) ** 2 for t in tau)
            found.append(_Component(tau, evidence - only_old, prior, factor, alpha))
        return found


@dataclass(frozen=True)
class _Component:
    tau: tuple[float, float]
    evidence: float
    prior: float
    factor: tuple[_Array, bool]
    alpha: _Array


@dataclass
class _Points:
    """Configurations as coordinates; `offset` is the log of tokens a pass, taken out of the scores."""

    space: SearchSpace
    readings: Sequence[Reading]
    lengths: Lengths
    y: _Array = field(init=False)
    launches: _Array = field(init=False)
    drafter: NDArray[np.str_] = field(init=False)
    k: _Array = field(init=False)
    offset: _Array = field(init=False)
    knobs: dict[str, _Array] = field(init=False)

    def __post_init__(self) -> None:
        values = [one.configuration for one in self.readings]
        self.y = np.array([one.score for one in self.readings])
        self.launches = np.array([float(one.launches) for one in self.readings])
        self.drafter = np.array([one.drafter for one in values], dtype=np.str_)
        self.k = np.array([float(one.k) for one in values])
        self.offset = np.array([_log_length(one, self.lengths) for one in values])
        self.knobs = {
            knob.name: np.array([_place(knob, one.values.get(knob.name)) for one in values])
            for knob in self.space.knobs
            if knob.name not in ("drafter", "k") and not knob.fixed
        }

    @property
    def residual(self) -> _Array:
        return self.y - self.offset


def _join(one: _Points, other: _Points) -> _Points:
    both = _Points(one.space, [*one.readings, *other.readings], one.lengths)
    both.offset = np.concatenate([one.offset, other.offset])
    return both


def _log_length(configuration: Configuration, lengths: Lengths) -> float:
    """Log of tokens a pass; beyond what was seen, positions go on to be accepted less and less."""
    known, k = list(lengths.get(configuration.drafter, ())), configuration.k
    if not known or not k:
        return 0.0
    rates = np.diff([1.0, *known])
    while len(rates) < k:
        ratio = rates[-1] / rates[-2] if len(rates) > 1 and rates[-2] > 0 else rates[-1]
        rates = np.append(rates, rates[-1] * min(1.0, max(0.0, ratio)))
    return float(np.log1p(rates[:k].sum()))


def _place(knob: Knob, value: Scalar | None) -> float:
    """Where a value stands on its knob: 0 to 1 along a grid of numbers, else a whole number a choice."""
    grid = knob.grid()
    if value is None or not knob.ordered or isinstance(value, bool | str):
        return float(grid.index(value)) if value in grid else -1.0
    numbers = sorted(float(one) for one in grid)
    return float(np.interp(float(value), numbers, np.linspace(0, 1, len(numbers))))


def _along(space: SearchSpace, a: _Points, b: _Points, name: str) -> _Array:
    knob = next(one for one in space.knobs if one.name == name)
    gap = a.knobs[name][:, None] - b.knobs[name][None, :]
    return np.exp(-0.5 * (gap / 0.5) ** 2) if knob.ordered else np.asarray(gap == 0, dtype=np.float64)


def _same(a: _Points, b: _Points) -> _Array:
    return np.asarray(a.drafter[:, None] == b.drafter[None, :], dtype=np.float64)


def _waves(a: _Points, b: _Points) -> _Array:
    return np.asarray(np.exp(-0.5 * ((a.k[:, None] - b.k[None, :]) / _WAVE) ** 2))


def _slopes(a: _Points, b: _Points) -> _Array:
    return np.asarray(np.log1p(a.k)[:, None] * np.log1p(b.k)[None, :])


def _surface(a: _Points, b: _Points, scales: Mapping[str, float]) -> _Array:
    same, waves, slopes = _same(a, b), _waves(a, b), _slopes(a, b)
    found = _LEVEL**2 + same * (scales["drafter"] ** 2 + scales["depth"] ** 2 * slopes + (scales["depth"] / 4) ** 2 * waves)
    together = same * waves
    for name in a.knobs:
        along = _along(a.space, a, b, name)
        found = found + scales[name] ** 2 * along
        together = together * (0.5 + 0.5 * along)
    found = found + scales["yield"] ** 2 * a.offset[:, None] * b.offset[None, :]
    return np.asarray(found + scales["together"] ** 2 * together)


def _changed(a: _Points, b: _Points, tau: tuple[float, float]) -> _Array:
    """Covariance of what changed in shape: a drafter's whole path, and its slope in k; each knob; the rest."""
    draft, rest = tau
    same = _same(a, b)
    found = draft**2 * same * (1.0 + 0.15 * _slopes(a, b))
    together = same * _waves(a, b)
    for name in a.knobs:
        along = _along(a.space, a, b, name)
        found = found + rest**2 * along
        together = together * along
    return np.asarray(found + (rest / 2) ** 2 * (together + same * _waves(a, b)))


def _log_likelihood(k: _Array, y: _Array) -> tuple[float, tuple[_Array, bool], _Array]:
    factor = linalg.cho_factor(k, lower=True, check_finite=False)
    alpha = linalg.cho_solve(factor, y, check_finite=False)
    value = -0.5 * float(y @ alpha) - float(np.log(np.diag(factor[0])).sum()) - len(y) / 2 * math.log(2 * math.pi)
    return value, factor, alpha


def _fitted(space: SearchSpace, old: _Points, sd: float) -> dict[str, float]:
    """Amplitudes of the old surface's parts, by marginal likelihood with log-normal priors."""
    start = {"drafter": _DRAFTER, "depth": _DEPTH, "yield": _YIELD, "together": _TOGETHER}
    start |= dict.fromkeys(old.knobs, _KNOB)
    if len(old.y) < 2 * len(start):
        return start
    names, y = list(start), old.residual - old.residual.mean()
    centre = np.log(list(start.values()))

    def cost(x: _Array) -> float:
        k = _surface(old, old, dict(zip(names, np.exp(x), strict=True)))
        k[np.diag_indices_from(k)] += sd**2 / old.launches
        return -_log_likelihood(k, y)[0] + 0.5 * float((((x - centre) / 1.0) ** 2).sum())

    best = optimize.minimize(cost, centre, method="L-BFGS-B", bounds=[(c - 3, c + 3) for c in centre])
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))
