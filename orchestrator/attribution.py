"""Which of the changed settings moved the number: a factorial between the old levels and the new."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from search_spaces.configuration import Scalar
from trackers.records import Frozen

from .launch_noise import LaunchNoise, logs, mean_log

__all__ = [
    "Attribution",
    "Design",
    "Effect",
    "Factor",
    "MainEffect",
    "Observation",
    "Run",
    "attribute",
    "plan_design",
]

REST = "rest"
_FULL = 3  # factors up to which every combination is launched; with one more, half of them
_Array = NDArray[np.float64]


class Factor(Frozen):
    """What changes as one: settings at the old levels and at the new.

    A drafter and its k, which only exist together, are one factor. The engine can be one too.
    """

    name: str
    old: dict[str, Scalar]
    new: dict[str, Scalar]


class Run(Frozen):
    """One launch of a design: factor -> at its new level, and the settings that this makes."""

    block: int
    levels: dict[str, bool]
    settings: dict[str, Scalar]


class Design(Frozen):
    """Launches in order. The all-old configuration comes first and once more at the end, to see drift."""

    factors: tuple[Factor, ...]
    runs: tuple[Run, ...]
    note: str


class Observation(Frozen):
    """One launch's mean in the metric's unit, at these levels."""

    levels: dict[str, bool]
    value: float


class Effect(Frozen):
    """A relative change of the metric (0.09 is +9 %) with its 95 % interval."""

    name: str
    change: float
    low: float
    high: float

    @property
    def resolved(self) -> bool:
        return not self.low <= 0 <= self.high

    def __str__(self) -> str:
        half = math.sqrt((1 + self.high) / (1 + self.low)) - 1
        found = f"{self.change:+.1%} (+-{half:.1%})" if self.resolved else f"unresolved (+-{half:.1%})"
        return f"{self.name}: {found}"


class MainEffect(Frozen):
    """One factor's change averaged over the others' levels, and with all others old, and all new.

    They differ by the interactions; None where the launches do not separate them.
    """

    factor: str
    averaged: Effect
    at_old: Effect | None = None
    at_new: Effect | None = None


class Attribution(Frozen):
    """`interactions` are differences of differences; names joined by `+` cannot be told apart here."""

    mains: tuple[MainEffect, ...]
    interactions: tuple[Effect, ...]
    total: Effect | None
    drift: Effect | None
    launches: int
    notes: tuple[str, ...] = ()


def plan_design(
    factors: Sequence[Factor],
    predicted: Mapping[str, float] | None = None,
    *,
    replicates: int = 1,
    seed: int = 0,
) -> Design:
    """Plan the launches: all 2^m combinations up to three factors, with four a half of them (resolution IV).

    Of more than four the three with the largest predicted effect stand alone and the rest move as one.

    Args:
        factors: What differs between the old peak and the new one.
        predicted: Factor -> expected log effect, where something is known.
        replicates: Blocks, each a whole design in its own order.
        seed: Of the order within blocks.
    """
    if not factors:
        raise ValueError("nothing differs between the two peaks: there is nothing to attribute")
    chosen, note = _at_most_four(factors, predicted or {})
    cells = [dict(zip([f.name for f in chosen], cell, strict=True)) for cell in _cells(len(chosen))]
    order, rng = [], random.Random(seed)  # noqa: S311 - an order, not a secret
    for block in range(replicates):
        shuffled = rng.sample(cells[1:], len(cells) - 1) if not block else rng.sample(cells, len(cells))
        order += [(block, cell) for cell in ([cells[0]] if not block else []) + shuffled]
    order.append((replicates - 1, cells[0]))
    runs = tuple(Run(block=b, levels=cell, settings=_settings(chosen, cell)) for b, cell in order)
    return Design(factors=chosen, runs=runs, note=note)


def _at_most_four(factors: Sequence[Factor], predicted: Mapping[str, float]) -> tuple[tuple[Factor, ...], str]:
    if len(factors) <= _FULL:
        return tuple(factors), f"full 2^{len(factors)}"
    if len(factors) == _FULL + 1:
        return tuple(factors), "half fraction 2^(4-1): pairs of interactions are not told apart"
    ranked = sorted(factors, key=lambda f: -abs(predicted.get(f.name, 0.0)))
    rest = ranked[_FULL:]
    old = {name: value for f in rest for name, value in f.old.items()}
    new = {name: value for f in rest for name, value in f.new.items()}
    names = ", ".join(f.name for f in rest)
    return (*ranked[:_FULL], Factor(name=REST, old=old, new=new)), f"half fraction; {names} move as one"


def _cells(m: int) -> list[tuple[bool, ...]]:
    """All-old first. The half fraction sets the fourth factor where an odd number of the three is new."""
    if m <= _FULL:
        return list(product((False, True), repeat=m))
    return [(*cell, sum(cell) % 2 == 1) for cell in product((False, True), repeat=_FULL)]


def _settings(factors: Sequence[Factor], cell: Mapping[str, bool]) -> dict[str, Scalar]:
    return {name: v for f in factors for name, v in (f.new if cell[f.name] else f.old).items()}


class _Model:
    """Least squares on log values with the launch noise known; columns are products of +-1/2 levels."""

    def __init__(self, seen: Sequence[Observation], names: Sequence[str], order: int, noise: LaunchNoise) -> None:
        self.terms = [t for size in range(order + 1) for t in combinations(range(len(names)), size)]
        levels = np.array([[o.levels[name] - 0.5 for name in names] for o in seen])
        self.columns = np.array([levels[:, list(term)].prod(axis=1) for term in self.terms]).T
        self._inverse = np.linalg.pinv(self.columns)
        self._y, self._noise = np.array(logs([o.value for o in seen])), noise

    def effect(self, name: str, contrast: Mapping[tuple[int, ...], float]) -> Effect | None:
        """The sum of terms so weighted, None where these launches do not determine it."""
        weights = np.array([contrast.get(term, 0.0) for term in self.terms])
        over = weights @ self._inverse
        if not np.allclose(over @ self.columns, weights, atol=1e-6):
            return None
        return _effect(name, float(over @ self._y), float(np.linalg.norm(over)), self._noise)

    def main(self, name: str, i: int, others: float) -> Effect | None:
        """Factor i's effect with every other at this level: -1/2 old, 1/2 new, 0 averaged."""
        return self.effect(name, {term: others ** (len(term) - 1) for term in self.terms if i in term})


def _effect(name: str, log_effect: float, norm: float, noise: LaunchNoise) -> Effect:
    half = noise.t() * noise.sd * norm
    low, change, high = (math.expm1(log_effect + side * half) for side in (-1, 0, 1))
    return Effect(name=name, change=change, low=low, high=high)


def attribute(seen: Sequence[Observation], noise: LaunchNoise) -> Attribution:
    """Estimate every effect that the launches determine; a missing launch costs the highest interactions.

    se = 2 sL / sqrt(N) of an average effect and 4 sL / sqrt(N) of an interaction (full design, N launches).

    Args:
        seen: Launches in the order they ran.
        noise: Launch noise of this metric.

    Raises:
        ValueError: The launches do not even separate the main effects.
    """
    names = list(seen[0].levels) if seen else []
    for order in range(len(names), 0, -1):
        model = _Model(seen, names, order, noise)
        averaged = [model.main(name, i, 0.0) for i, name in enumerate(names)]
        if all(averaged):
            break
    else:
        raise ValueError("these launches do not separate the factors: launch the design's missing runs")
    mains = [
        MainEffect(
            factor=name,
            averaged=effect,
            at_old=model.main(name, i, -0.5),
            at_new=model.main(name, i, 0.5),
        )
        for i, (name, effect) in enumerate(zip(names, averaged, strict=True))
        if effect
    ]
    drift = _drift(seen, noise)
    notes = [f"interactions of more than {order} factors are taken as 0"] if order < len(names) else []
    notes += ["the machine drifted while this ran: effects carry it"] if drift and drift.resolved else []
    return Attribution(
        mains=tuple(mains),
        interactions=_interactions(model, names),
        total=_total(seen, noise),
        drift=drift,
        launches=len(seen),
        notes=tuple(notes),
    )


def _interactions(model: _Model, names: Sequence[str]) -> tuple[Effect, ...]:
    """Each interaction, those with the same column together as one sum."""
    groups: dict[tuple[float, ...], list[tuple[int, ...]]] = {}
    for term, column in zip(model.terms, model.columns.T, strict=True):
        if len(term) > 1:
            groups.setdefault(tuple(column.round(9)), []).append(term)
    found = []
    for alike in groups.values():
        label = " + ".join(" x ".join(names[i] for i in term) for term in alike)
        found.append(model.effect(label, dict.fromkeys(alike, 1.0)))
    return tuple(effect for effect in found if effect)


def _total(seen: Sequence[Observation], noise: LaunchNoise) -> Effect | None:
    """All new over all old, from those launches alone."""
    old = [o.value for o in seen if not any(o.levels.values())]
    new = [o.value for o in seen if all(o.levels.values())]
    if not old or not new:
        return None
    gap = mean_log(new) - mean_log(old)
    return _effect("all", gap, math.sqrt(1 / len(old) + 1 / len(new)), noise)


def _drift(seen: Sequence[Observation], noise: LaunchNoise) -> Effect | None:
    """The last launch over the first, where both are the all-old configuration."""
    first, last = seen[0], seen[-1]
    if len(seen) < 2 or any(first.levels.values()) or any(last.levels.values()):
        return None
    return _effect("drift", math.log(last.value / first.value), math.sqrt(2), noise)
