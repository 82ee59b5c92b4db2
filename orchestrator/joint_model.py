"""The joint model: an old and a new stack's surface as one Gaussian process, what changed as another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, special

from search_spaces.configuration import Configuration, Scalar
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace

__all__ = ["Forecast", "JointModel", "Rates", "Reading", "fit_scales"]

_Array = NDArray[np.float64]
Rates = Mapping[str, Mapping[int, Sequence[float]]]
"""Drafter -> k launched -> chance that each draft token, from the first, is accepted."""

_LEVEL, _SHIFT = 1.0, 0.5  # sds of what a stack's scores share, and of what a new engine adds to all alike
# Amplitudes of the old surface's parts, in log units, where too little is known to fit them.
_START, _KNOB = {"drafter": 0.3, "slope": 0.15, "waves": 0.03, "tokens": 0.15, "together": 0.02}, 0.04
# How much of the shape may have changed, in log units: along a drafter's path, and anywhere else.
_DRAFT, _REST = (0.01, 0.04, 0.12, 0.35), (0.004, 0.015, 0.06)
_DRAFT_PRIOR, _REST_PRIOR = (0.06, 1.2), (0.015, 1.0)  # log-normal: median, sd
# A cheaper draft token gains more the more of them there are, so most of a path's change is in its slope.
_PATH = {"drafter": 0.4, "slope": 0.25}
_LOCAL = {"waves": 2.0, "together": 0.25, "tokens": 0.0}
_ORDERED, _CHOICE = 0.1, 0.3  # shares of knobs: a choice (caching, a backend) changes sooner than a number
_EFFECT, _LARGEST = 12.0, 0.15  # an effect changes by so many times the size; what is larger changes no more
_UNLIKELY = 0.01  # weight under which a size of change is left out of forecasts


@dataclass(frozen=True)
class Reading:
    """Mean log score of a configuration's launches on one stack; higher is better."""

    configuration: Configuration
    score: float
    launches: int


@dataclass(frozen=True)
class Forecast:
    """The new surface (log scores) at n configurations, mixed over how much of its shape may have changed.

    `means` (mixture, n), `covariances` (mixture, n, n), `weights` (mixture,) summing to 1.
    """

    means: _Array
    covariances: _Array
    weights: _Array

    @property
    def mean(self) -> _Array:
        return np.asarray(self.weights @ self.means)

    def gap(self, a: int, b: int) -> tuple[float, float]:
        """Mean and sd of a over b."""
        gaps, c = self.means[:, a] - self.means[:, b], self.covariances
        mean = float(self.weights @ gaps)
        spread = c[:, a, a] + c[:, b, b] - 2 * c[:, a, b] + (gaps - mean) ** 2
        return mean, math.sqrt(max(float(self.weights @ spread), 1e-12))

    def gains(self, over: int) -> _Array:
        """Expected improvement of each over one of them."""
        gaps, c = self.means - self.means[:, [over]], self.covariances
        own = np.diagonal(c, axis1=1, axis2=2)
        sd = np.sqrt(np.maximum(own + own[:, [over]] - 2 * c[:, :, over], 1e-12))
        z = gaps / sd
        gain = gaps * special.ndtr(z) + sd * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return np.asarray(self.weights @ gain)


class JointModel:
    """y_old = f, y_new = f + shift + change; f and change additive over knobs, scores in log units.

    Args:
        space: The new stack's; old configurations are of it too.
        old: What the old stack gave.
        new: What the new stack gave so far.
        rates: Acceptance on the old and on the new stack: tokens a pass are taken out of the scores, so that
            what is left along k is smooth.
        sd: Launch noise, log units.
        scales: From `fit_scales`.
        centre: What the effects of knobs are counted from: the old peak.
    """

    def __init__(
        self,
        space: SearchSpace,
        old: Sequence[Reading],
        new: Sequence[Reading],
        rates: tuple[Rates, Rates],
        sd: float,
        scales: Mapping[str, float],
        centre: Configuration,
    ) -> None:
        self._space, self._rates, self._scales, self._old = space, rates, scales, len(old)
        old_points, new_points = _points(space, old, (rates[0], {})), _points(space, new, rates)
        self._points = old_points.joined(new_points)
        scores = np.array([one.score for one in (*old, *new)])
        y = scores - self._points.tokens
        self._level = float(y[: len(old)].mean() if old else y.mean())
        noise = sd**2 / np.array([one.launches for one in (*old, *new)])
        parts = _parts(space, self._points, self._points)
        k = _surface(parts, scales)[: len(old), : len(old)] + np.diag(noise[: len(old)])
        self._alone = _log_likelihood(k, (y - self._level)[: len(old)])[2] if old else np.zeros(0)
        self._centre = self._effects(_parts(space, self._points, _points(space, [Reading(centre, 0.0, 1)], rates)))
        self._felt = self._effects(parts)
        self._mixture = self._weigh(parts, y - self._level, noise)

    @property
    def log_likelihood_ratio(self) -> float:
        """For a changed shape, against one that did not change by more than launches could show."""
        return max(one.evidence for one in self._mixture) - self._mixture[0].evidence

    def forecast(self, configurations: Sequence[Configuration]) -> Forecast:
        asked = _points(self._space, [Reading(one, 0.0, 1) for one in configurations], self._rates)
        own, cross = _parts(self._space, asked, asked), _parts(self._space, self._points, asked)
        new = (np.arange(len(self._points.k)) >= self._old)[:, None]
        felt = self._effects(cross)
        f_own = _surface(own, self._scales) + _SHIFT**2
        f_cross = _surface(cross, self._scales) + _SHIFT**2 * new
        logs = np.array([one.evidence + one.prior for one in self._mixture])
        weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
        means, covariances = [], []
        for one in itertools.compress(self._mixture, weights > _UNLIKELY):
            k = f_cross + (_change(self._space, cross, one.sizes) + self._rescaled(self._felt, felt, one.sizes)) * new
            means.append(k.T @ one.alpha + asked.tokens + self._level)
            covariances.append(
                f_own
                + _change(self._space, own, one.sizes)
                + self._rescaled(felt, felt, one.sizes)
                - k.T @ one.inverse @ k
            )
        kept = weights[weights > _UNLIKELY]
        return Forecast(np.array(means), np.array(covariances), kept / kept.sum())

    def _effects(self, parts: Mapping[str, _Array]) -> _Array:
        """What each knob did on the old surface, from the centre's value (rows: where asked; log units)."""
        names = [knob.name for knob in self._space.knobs if knob.name in parts]
        scaled = [self._scales[n] ** 2 * (self._alone @ parts[n][: self._old]) for n in names if n != "drafter"]
        effects = np.array(scaled).T
        return np.clip(effects - self._centre, -_LARGEST, _LARGEST) if hasattr(self, "_centre") else effects

    def _rescaled(self, a: _Array, b: _Array, sizes: tuple[float, float]) -> _Array:
        """Covariance of effects that became larger or smaller."""
        return np.asarray((_EFFECT * sizes[1]) ** 2 * a @ b.T)

    def _weigh(self, parts: Mapping[str, _Array], y: _Array, noise: _Array) -> list[_Component]:
        """Each size of change with its evidence; the first is next to none."""
        n, base = self._old, _surface(parts, self._scales)
        base[n:, n:] += _SHIFT**2
        base[np.diag_indices_from(base)] += noise
        fresh = {name: part[n:, n:] for name, part in parts.items()}
        found = []
        for sizes in itertools.product(_DRAFT, _REST):
            k = base.copy()
            k[n:, n:] += _change(self._space, fresh, sizes) + self._rescaled(self._felt[n:], self._felt[n:], sizes)
            evidence, factor, alpha = _log_likelihood(k, y)
            prior = _log_normal(sizes[0], *_DRAFT_PRIOR) + _log_normal(sizes[1], *_REST_PRIOR)
            found.append(_Component(sizes, evidence, prior, factor, alpha))
        return found


def fit_scales(space: SearchSpace, old: Sequence[Reading], rates: Rates, sd: float) -> dict[str, float]:
    """Amplitudes of the old surface's parts (log units), by marginal likelihood with log-normal priors."""
    points = _points(space, old, (rates, {}))
    parts = _parts(space, points, points)
    names, blocks = list(parts), list(parts.values())
    centre = np.log([_START.get(name, _KNOB) for name in names])
    if len(old) < 2 * len(names):
        return dict(zip(names, np.exp(centre).tolist(), strict=True))
    y = np.array([one.score for one in old]) - points.tokens
    noise = np.diag(sd**2 / np.array([one.launches for one in old]) + 1e-9) + _LEVEL**2

    def cost(x: _Array) -> tuple[float, _Array]:
        squares = np.exp(2 * x)
        k = sum((s * part for s, part in zip(squares, blocks, strict=True)), noise)
        value, factor, alpha = _log_likelihood(k, y - y.mean())
        inverse = linalg.cho_solve((factor, True), np.eye(len(y)), check_finite=False)
        rise = np.outer(alpha, alpha) - inverse
        slopes = np.array([float((rise * part).sum()) for part in blocks]) * squares
        return 0.5 * float(((x - centre) ** 2).sum()) - value, x - centre - slopes

    bounds = [(c - 3, c + 3) for c in centre]
    best = optimize.minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40})
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


@dataclass(frozen=True)
class _Component:
    sizes: tuple[float, float]
    evidence: float
    prior: float
    factor: _Array
    alpha: _Array

    @cached_property
    def inverse(self) -> _Array:
        return np.asarray(linalg.cho_solve((self.factor, True), np.eye(len(self.alpha)), check_finite=False))


@dataclass(frozen=True)
class _Points:
    """Configurations as coordinates; `tokens` is the log of tokens a pass."""

    drafter: NDArray[np.str_]
    k: _Array
    tokens: _Array
    knobs: dict[str, _Array]

    def joined(self, other: _Points) -> _Points:
        return _Points(
            np.concatenate([self.drafter, other.drafter]),
            np.concatenate([self.k, other.k]),
            np.concatenate([self.tokens, other.tokens]),
            {name: np.concatenate([here, other.knobs[name]]) for name, here in self.knobs.items()},
        )


def _points(space: SearchSpace, readings: Sequence[Reading], rates: tuple[Rates, Rates]) -> _Points:
    asked = [one.configuration for one in readings]
    knobs = [knob for knob in space.knobs if knob.name not in ("drafter", "k") and not knob.fixed]
    return _Points(
        drafter=np.array([one.drafter for one in asked], dtype=np.str_),
        k=np.array([float(one.k) for one in asked]),
        tokens=np.array([math.log1p(sum(_accepted(one, *rates))) for one in asked]),
        knobs={knob.name: _places(knob, [one.values.get(knob.name) for one in asked]) for knob in knobs},
    )


def _accepted(configuration: Configuration, old: Rates, new: Rates) -> list[float]:
    """Acceptance of each draft token: as the new stack's nearest k says, its course in k as the old one's."""
    k, drafter = configuration.k, configuration.drafter
    before, after = old.get(drafter), new.get(drafter)
    if not k or not (before or after):
        return []
    if not before or (after and k in after):
        return _extended(_nearest(after or {}, k), k)
    then = _extended(_nearest(before, k), k)
    if not after:
        return then
    now = _nearest(after, k)
    there = _extended(_nearest(before, len(now)), len(now))
    ratio = [a / b if b > 0 else 1.0 for a, b in zip(now, there, strict=True)]
    ratio += ratio[-1:] * max(0, k - len(ratio))
    return [min(1.0, a * b) for a, b in zip(then, ratio, strict=False)]


def _nearest(rates: Mapping[int, Sequence[float]], k: int) -> Sequence[float]:
    return rates[min(rates, key=lambda other: (abs(math.log(other / k)), -other))]


def _extended(rates: Sequence[float], k: int) -> list[float]:
    """The first k positions; past what is known they go on to fade as they did."""
    found = list(rates[:k])
    while len(found) < k:
        fade = found[-1] / found[-2] if len(found) > 1 and found[-2] > 0 else found[-1]
        found.append(found[-1] * min(1.0, fade))
    return found


def _places(knob: Knob, values: Sequence[Scalar | None]) -> _Array:
    """Where values stand on a knob: 0 to 1 along a grid of numbers, else a whole number a choice."""
    grid = knob.grid()
    if not knob.ordered:
        return np.array([float(grid.index(one)) if one in grid else -1.0 for one in values])
    numbers = sorted(float(one) for one in grid)
    known = [float(one) if isinstance(one, int | float) else math.nan for one in values]
    return np.nan_to_num(np.interp(known, numbers, np.linspace(0, 1, len(numbers))), nan=-1.0)


def _parts(space: SearchSpace, a: _Points, b: _Points) -> dict[str, _Array]:
    """Unit kernels by part: the drafter, its slope in k and waves on that, tokens a pass, each knob, all."""
    same = np.asarray(a.drafter[:, None] == b.drafter[None, :], dtype=np.float64)
    waves = same * np.exp(-0.5 * ((a.k[:, None] - b.k[None, :]) / 2.0) ** 2)
    found = {
        "drafter": same,
        "slope": same * np.outer(np.log1p(a.k), np.log1p(b.k)),
        "waves": waves,
        "tokens": np.outer(a.tokens, b.tokens),
    }
    together = waves
    for knob in space.knobs:
        if knob.name in a.knobs:
            gap = np.abs(a.knobs[knob.name][:, None] - b.knobs[knob.name][None, :])
            # Steps along a knob are independent of each other: plateaus and cliffs are both likely.
            found[knob.name] = np.exp(-gap) if knob.ordered else (gap == 0).astype(np.float64)
            together = together * (0.3 + 0.7 * found[knob.name])
    return {**found, "together": together}


def _surface(parts: Mapping[str, _Array], scales: Mapping[str, float]) -> _Array:
    return np.asarray(sum(scales[name] ** 2 * part for name, part in parts.items()) + _LEVEL**2)


def _change(space: SearchSpace, parts: Mapping[str, _Array], sizes: tuple[float, float]) -> _Array:
    """Covariance of what changed: a drafter's whole path by the first size, all else by the second."""
    draft, rest = sizes
    shares = {knob.name: _ORDERED if knob.ordered else _CHOICE for knob in space.knobs} | _LOCAL
    weights = {name: rest**2 * shares.get(name, 0.0) for name in parts}
    weights |= {name: draft**2 * share for name, share in _PATH.items()}
    return np.asarray(sum(weights[name] * part for name, part in parts.items()))


def _log_likelihood(k: _Array, y: _Array) -> tuple[float, _Array, _Array]:
    factor = linalg.cholesky(k, lower=True, check_finite=False)
    alpha = linalg.cho_solve((factor, True), y, check_finite=False)
    half_logdet = float(np.log(np.diag(factor)).sum())
    return -0.5 * float(y @ alpha) - half_logdet - len(y) / 2 * math.log(2 * math.pi), factor, alpha


def _log_normal(value: float, median: float, sd: float) -> float:
    return -0.5 * (math.log(value / median) / sd) ** 2
