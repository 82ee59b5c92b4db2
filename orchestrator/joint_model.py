"""The joint model: an old and a new stack's surface as one Gaussian process, what changed as another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, special

from search_spaces.configuration import Configuration
from search_spaces.space import SearchSpace

from .surface_parts import Array, Parts, Rates, parts, points

__all__ = ["Forecast", "JointModel", "Rates", "Reading", "fit_scales"]

_LEVEL, _SHIFT = 1.0, 0.5  # sds of what a stack's scores share, and of what a new engine adds to all alike
# Amplitudes of the old surface's parts, in log units, where too little is known to fit them.
_START = {"drafter": 0.3, "slope": 0.12, "waves": 0.03, "depth": 0.03, "tokens": 0.15, "together": 0.02}
_KNOB, _WIDE = 0.02, 1.2  # of any other part; sd of the log of each about these
# How much of the shape may have changed, in log units: along a drafter's path, and anywhere else.
_DRAFT, _REST = (0.01, 0.04, 0.12, 0.35), (0.004, 0.015, 0.06)
_DRAFT_PRIOR, _REST_PRIOR = (0.06, 1.2), (0.025, 1.0)  # log-normal: median, sd
# A cheaper draft token gains more the more of them there are, so most of a path's change is in its slope.
_PATH = {"drafter": 0.1, "slope": 0.35, "depth": 0.1}
_LOCAL = {"waves": 2.0, "together": 0.25, "tokens": 0.0}
_ORDERED, _CHOICE = 0.1, 0.3  # shares of knobs: a choice (caching, a backend) changes sooner than a number
_EFFECT, _LARGEST = 12.0, 0.15  # an effect changes by so many times the size; what is larger changes no more
_SLOW, _SLOW_SD = -3.5, 0.1  # sds under all other launches that make one a bad start, and what it then tells
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

    means: Array
    covariances: Array
    weights: Array

    @property
    def mean(self) -> Array:
        return np.asarray(self.weights @ self.means)

    def gap(self, a: int, b: int) -> tuple[float, float]:
        """Mean and sd of a over b."""
        gaps, c = self.means[:, a] - self.means[:, b], self.covariances
        mean = float(self.weights @ gaps)
        spread = c[:, a, a] + c[:, b, b] - 2 * c[:, a, b] + (gaps - mean) ** 2
        return mean, math.sqrt(max(float(self.weights @ spread), 1e-12))

    def gains(self, over: int) -> Array:
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
        scales: From `fit_scales`; without them those of knobs are what both stacks' scores make likely, as long as the
            engine is not thought to have changed the shape.
        centre: What the effects of knobs are counted from: the old peak.
    """

    def __init__(
        self,
        space: SearchSpace,
        old: Sequence[Reading],
        new: Sequence[Reading],
        rates: tuple[Rates, Rates],
        sd: float,
        scales: Mapping[str, float] | None,
        centre: Configuration,
    ) -> None:
        self._space, self._rates, self._old = space, rates, len(old)
        before = points(space, [one.configuration for one in old], rates[0], {})
        self._points = before.joined(points(space, [one.configuration for one in new], *rates))
        y = np.array([one.score for one in (*old, *new)]) - self._points.tokens
        self._level = float(y[: len(old) or None].mean()) if len(y) else 0.0
        y, noise = y - self._level, sd**2 / np.array([float(one.launches) for one in (*old, *new)])
        here = parts(space, self._points, self._points)
        self._new = np.arange(len(y)) >= len(old)
        self._scales = scales or _most_likely(here, y, np.diag(noise) + self._shift, usual=_START)
        k = _surface(here, self._scales)[: len(old), : len(old)] + np.diag(noise[: len(old)])
        self._alone = _solved(k, y[: len(old)]).alpha
        self._knobs = [name for name in self._points.knobs if name in here]
        self._centre = self._sums(parts(space, self._points, points(space, [centre], *rates)))
        self._felt = self._effects(here)
        self._mixture = self._weigh(here, y, noise)
        slow = _slow(max(self._mixture, key=lambda one: one.weight).solved)
        if slow.any():
            noise[slow] = np.maximum(noise[slow], _SLOW_SD**2)
            self._mixture = self._weigh(here, y, noise)

    @property
    def _shift(self) -> Array:
        """What a new engine adds to all its scores alike, as their covariance with all others'."""
        return np.asarray(_SHIFT**2 * np.outer(self._new, self._new))

    @property
    def log_likelihood_ratio(self) -> float:
        """For a changed shape, against one that did not change by more than launches could show."""
        evidence = [one.solved.evidence for one in self._mixture]
        return max(evidence) - evidence[0]

    def forecast(self, configurations: Sequence[Configuration]) -> Forecast:
        """The new surface at these configurations."""
        asked = points(self._space, configurations, *self._rates)
        own, cross = parts(self._space, asked, asked), parts(self._space, self._points, asked)
        new = self._new[:, None]
        felt = self._effects(cross)
        f_own = _surface(own, self._scales) + _SHIFT**2
        f_cross = _surface(cross, self._scales) + _SHIFT**2 * new
        logs = np.array([one.weight for one in self._mixture])
        weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
        means, covariances = [], []
        across, within = self._changes(cross, self._felt, felt), self._changes(own, felt, felt)
        for one in itertools.compress(self._mixture, weights > _UNLIKELY):
            k = f_cross + _sized(across, one.sizes) * new
            means.append(k.T @ one.solved.alpha + asked.tokens + self._level)
            covariances.append(f_own + _sized(within, one.sizes) - k.T @ one.solved.inverse @ k)
        kept = weights[weights > _UNLIKELY]
        return Forecast(np.array(means), np.array(covariances), kept / kept.sum())

    def _weigh(self, here: Parts, y: Array, noise: Array) -> list[_Component]:
        """Each size of change with its evidence; the first is next to none."""
        n, base = self._old, _surface(here, self._scales) + self._shift
        base[np.diag_indices_from(base)] += noise
        felt, found = self._felt[n:], []
        changes = self._changes({name: part[n:, n:] for name, part in here.items()}, felt, felt)
        for sizes in itertools.product(_DRAFT, _REST):
            k = base.copy()
            k[n:, n:] += _sized(changes, sizes)
            prior = _log_normal(sizes[0], *_DRAFT_PRIOR) + _log_normal(sizes[1], *_REST_PRIOR)
            found.append(_Component(sizes, prior, _solved(k, y)))
        return found

    def _sums(self, cross: Parts) -> Array:
        sums = [self._scales[name] ** 2 * (self._alone @ cross[name][: self._old]) for name in self._knobs]
        return np.array(sums).T if sums else np.zeros((next(iter(cross.values())).shape[1], 0))

    def _effects(self, cross: Parts) -> Array:
        """What each knob did on the old surface, from the centre's value (rows: where asked; log units)."""
        return np.clip(self._sums(cross) - self._centre, -_LARGEST, _LARGEST)

    def _changes(self, here: Parts, a: Array, b: Array) -> tuple[Array, Array]:
        """Covariances of a change of size 1: of drafters' paths; and of all else, what knobs did included."""
        shares = {knob.name: _ORDERED if knob.ordered else _CHOICE for knob in self._space.knobs} | _LOCAL
        path = sum(share * here[name] for name, share in _PATH.items())
        rest = sum(shares.get(name, 0.0) * part for name, part in here.items() if name not in _PATH)
        return np.asarray(path), np.asarray(rest + _EFFECT**2 * a @ b.T)


def _sized(changes: tuple[Array, Array], sizes: tuple[float, float]) -> Array:
    return np.asarray(sizes[0] ** 2 * changes[0] + sizes[1] ** 2 * changes[1])


def fit_scales(space: SearchSpace, old: Sequence[Reading], rates: Rates, sd: float) -> dict[str, float] | None:
    """Amplitudes of the old surface's parts (log units), by marginal likelihood with log-normal priors.

    None where there are too few readings for that many: a knob that was hardly turned there would seem to do next to
    nothing, and what it does on the new stack would then pass for a change.
    """
    there = points(space, [one.configuration for one in old], rates, {})
    here = parts(space, there, there)
    if len(old) < 2 * len(here):
        return None
    y = np.array([one.score for one in old]) - there.tokens
    y, noise = y - y.mean(), sd**2 / np.array([float(one.launches) for one in old])
    found = _most_likely(here, y, np.diag(noise))
    slow = _slow(_solved(_surface(here, found) + np.diag(noise), y))
    if slow.any():
        noise[slow] = np.maximum(noise[slow], _SLOW_SD**2)
        found = _most_likely(here, y, np.diag(noise))
    return found


def _most_likely(here: Parts, y: Array, others: Array, usual: Iterable[str] = ()) -> dict[str, float]:
    """The amplitudes that make the scores likeliest, with `others` as the covariance of all else.

    Those named `usual` are left as they usually are: what drafters do is known better than what a knob may.
    """
    names, blocks = list(here), list(here.values())
    centre = np.log([_START.get(name, _KNOB) for name in names])

    def cost(x: Array) -> tuple[float, Array]:
        found = _solved(_surface(here, dict(zip(names, np.exp(x), strict=True))) + others, y)
        rise = np.outer(found.alpha, found.alpha) - found.inverse
        slopes = np.array([float((rise * part).sum()) for part in blocks]) * np.exp(2 * x)
        pull = (x - centre) / _WIDE
        return 0.5 * float(pull @ pull) - found.evidence, pull / _WIDE - slopes

    bounds = [(c, c) if name in usual else (c - 3, c + 3) for name, c in zip(names, centre, strict=True)]
    best = optimize.minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40})
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


@dataclass(frozen=True)
class _Solved:
    evidence: float
    factor: Array
    alpha: Array

    @cached_property
    def inverse(self) -> Array:
        return np.asarray(linalg.cho_solve((self.factor, True), np.eye(len(self.alpha)), check_finite=False))


@dataclass(frozen=True)
class _Component:
    sizes: tuple[float, float]
    prior: float
    solved: _Solved

    @property
    def weight(self) -> float:
        return self.solved.evidence + self.prior


def _solved(k: Array, y: Array) -> _Solved:
    factor = linalg.cholesky(k, lower=True, check_finite=False)
    alpha = linalg.cho_solve((factor, True), y, check_finite=False)
    half_logdet = float(np.log(np.diag(factor)).sum())
    return _Solved(-0.5 * float(y @ alpha) - half_logdet - len(y) / 2 * math.log(2 * math.pi), factor, alpha)


def _slow(found: _Solved) -> NDArray[np.bool_]:
    """Readings far under what all others say of them: a start can go wrong, it never goes too well."""
    return np.asarray(found.alpha / np.sqrt(np.diag(found.inverse)) < _SLOW)


def _surface(here: Parts, scales: Mapping[str, float]) -> Array:
    return np.asarray(sum(scales[name] ** 2 * part for name, part in here.items()) + _LEVEL**2)


def _log_normal(value: float, median: float, sd: float) -> float:
    return -0.5 * (math.log(value / median) / sd) ** 2
