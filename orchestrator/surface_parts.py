"""Configurations as coordinates, and the kernels a speed surface is made of: drafter, k, tokens a pass, knobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.configuration import Configuration, Scalar
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace

__all__ = ["Array", "Parts", "Points", "Rates", "parts", "points"]

Array = NDArray[np.float64]
Parts = Mapping[str, Array]
"""Name -> unit kernel between two sets of configurations."""
Rates = Mapping[str, Mapping[int, Sequence[float]]]
"""Drafter -> k launched -> chance that each draft token, from the first, is accepted."""

_COST = 0.3  # log units that a pass loses per log(1 + k): what draft tokens cost before any is known
_WAVE, _FAR = 2.0, 4.0  # draft tokens over which a drafter's curve, and what all drafters share, stay alike


@dataclass(frozen=True)
class Points:
    """Coordinates of n configurations; `tokens` is the log of tokens a pass, less what drafting them may cost."""

    drafter: NDArray[np.str_]
    k: Array
    tokens: Array
    knobs: dict[str, Array]

    def joined(self, other: Points) -> Points:
        return Points(
            np.concatenate([self.drafter, other.drafter]),
            np.concatenate([self.k, other.k]),
            np.concatenate([self.tokens, other.tokens]),
            {name: np.concatenate([here, other.knobs[name]]) for name, here in self.knobs.items()},
        )


def points(space: SearchSpace, asked: Sequence[Configuration], old: Rates, new: Rates) -> Points:
    """Coordinates on the stack that `new` is of; an empty `new` stands for the old stack itself."""
    knobs = [knob for knob in space.knobs if knob.name not in ("drafter", "k") and not knob.fixed]
    tokens = [math.log1p(sum(_accepted(one, old, new))) - _COST * math.log1p(one.k) for one in asked]
    return Points(
        drafter=np.array([one.drafter for one in asked], dtype=np.str_),
        k=np.array([float(one.k) for one in asked]),
        tokens=np.array(tokens),
        knobs={knob.name: _places(knob, [one.values.get(knob.name) for one in asked]) for knob in knobs},
    )


def parts(space: SearchSpace, a: Points, b: Points) -> dict[str, Array]:
    """Unit kernels: the drafter, its slope and waves in k, k for all drafters, tokens a pass, each knob, all."""
    same = np.asarray(a.drafter[:, None] == b.drafter[None, :], dtype=np.float64)
    apart = np.abs(a.k[:, None] - b.k[None, :])
    waves = same * np.exp(-0.5 * (apart / _WAVE) ** 2)
    found = {
        "drafter": same,
        "slope": same * np.outer(np.log1p(a.k), np.log1p(b.k)),
        "waves": waves,
        "depth": np.exp(-apart / _FAR),
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


def _places(knob: Knob, values: Sequence[Scalar | None]) -> Array:
    """Where values stand on a knob: 0 to 1 along a grid of numbers, else a whole number a choice."""
    grid = knob.grid()
    if not knob.ordered:
        return np.array([float(grid.index(one)) if one in grid else -1.0 for one in values])
    numbers = sorted(float(one) for one in grid)
    known = [float(one) if isinstance(one, int | float) else math.nan for one in values]
    return np.nan_to_num(np.interp(known, numbers, np.linspace(0, 1, len(numbers))), nan=-1.0)


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
