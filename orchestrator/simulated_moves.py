"""How engine versions move: pairs of surfaces by name and seed, and their true peaks by enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from .simulated_surface import Drafter, Surface, Traffic

__all__ = ["AXES", "DEPTHS", "GH200", "MOVES", "SPARK", "choices", "make_surface", "peak", "regret"]

# Calibrated to what two owners published: GH200 160 and 175 tok/s at k = 2 and 4, less at 6; Spark 13.4 fresh
# and 39 editing at k = 15, its block drafter 46 % ahead at k = 7.
GH200 = Surface(drafters={"mtp": Drafter(cost=0.1416, acceptance={"generate": (0.85, 0.9373)}, gib=0.8)})
SPARK = Surface(
    version="0.27.1",
    base_tok_s=8.1,
    slope=0.0,
    memory_gib=119.0,
    drafters={
        "mtp": Drafter(cost=0.153, overhead=0, acceptance={"generate": (0.86, 0.9843), "edit": (0.999, 0.9998)}),
        "dspark": Drafter(
            cost=0.046,
            overhead=0,
            block=7,
            parallel=True,
            acceptance={"generate": (0.84, 0.975), "edit": (0.998, 0.9987)},
        ),
    },
)
DEPTHS: dict[str, Sequence[int]] = {
    "none": (0,),
    "ngram": range(1, 9),
    "mtp": range(1, 16),
    "dspark": range(1, 16),
}
AXES: dict[str, Sequence[Any]] = {
    "max_num_batched_tokens": (2048, 4096, 8192, 16384, 32768),
    "max_num_seqs": (2, 4, 8, 16, 32),
    "gpu_memory_utilization": (0.7, 0.8, 0.85, 0.9, 0.94),
    "enable_prefix_caching": (False, True),
}
_BASE = Surface(
    base_tok_s=80.0,
    slope=0.006,
    kv_bytes_per_token=196608,
    block_size=128,
    state_groups=0,
    max_model_len=16384,
    weights_gib=60.0,
    activation_gib_per_ktoken=0.4,
    graph_gib_per_token=0.01,
    drafters={
        "ngram": Drafter(cost=0.012, acceptance={"generate": (0.42, 0.85), "edit": (0.95, 0.99)}),
        "mtp": Drafter(cost=0.13, acceptance={"generate": (0.85, 0.94), "edit": (0.97, 0.99)}, gib=0.8),
        "dspark": Drafter(
            cost=0.075, overhead=0.25, block=8, parallel=True, acceptance={"generate": (0.8, 0.93)}, gib=1.6
        ),
    },
)


def _drafter(surface: Surface, name: str, **moved: Any) -> Surface:
    changed = replace(surface.drafters[name], **moved)
    return replace(surface, drafters={**surface.drafters, name: changed})


def _scaled(surface: Surface, name: str, factor: float) -> Surface:
    return _drafter(surface, name, cost=surface.drafters[name].cost * factor)


# name -> (what the old engine is made of the base, what the new one is made of the old).
_Change = Callable[[Surface], Surface]
MOVES: dict[str, tuple[_Change, _Change]] = {
    "null": (lambda s: s, lambda s: s),
    "drift": (lambda s: s, lambda s: replace(s, base_tok_s=s.base_tok_s * 1.03)),
    "uniform": (lambda s: s, lambda s: replace(s, base_tok_s=s.base_tok_s * 1.43)),
    "k_shift": (lambda s: _scaled(s, "mtp", 2.5), lambda s: _scaled(s, "mtp", 0.35)),
    "drafter_flip": (lambda s: s, lambda s: _drafter(s, "dspark", cost=0.03, overhead=0.02)),
    "drafter_new": (
        lambda s: _drafter(s, "dspark", supported=False),
        lambda s: _drafter(s, "dspark", supported=True, cost=0.03, overhead=0.02),
    ),
    "kv_pool": (
        lambda s: replace(s, kv_bytes_per_token=983040),
        lambda s: replace(s, kv_bytes_per_token=262144),
    ),
    "mtp_regress": (lambda s: s, lambda s: _scaled(s, "mtp", 3.0)),
    "pc_free": (lambda s: replace(s, cache_cost=0.12), lambda s: replace(s, cache_cost=0.0)),
    "act_cliff": (
        lambda s: replace(s, budget_best=16384.0, budget_loss=0.03),
        lambda s: replace(s, activation_cliff_tokens=12000.0),
    ),
    "graph_cliff": (lambda s: s, lambda s: replace(s, steps=((4, 0.06), (16, 0.12), (32, 0.1)))),
    "non_additive": (
        lambda s: s,
        lambda s: replace(
            s,
            pairs=(
                ("drafter", "mtp", "enable_prefix_caching", False, 0.9),
                ("drafter", "dspark", "max_num_batched_tokens", 16384, 1.15),
                ("k", 5, "max_num_seqs", 16, 0.9),
            ),
        ),
    ),
}


def make_surface(move: str, seed: int) -> tuple[Surface, Surface]:
    """An old and a new engine; each seed has its own parameters, and 1 % between the two by mere drift."""
    random = Random(f"{move}/{seed}")  # noqa: S311 - a reproducible case
    surface = _jittered(_BASE, random)
    before, after = MOVES[move]
    old = before(surface)
    new = replace(after(old), version="0.27.1")
    return old, replace(new, base_tok_s=new.base_tok_s * random.lognormvariate(0, 0.01))


def _jittered(surface: Surface, random: Random) -> Surface:
    def near(value: float, sd: float) -> float:
        return value * random.lognormvariate(0, sd)

    drafters = {}
    for name, drafter in surface.drafters.items():
        pairs = drafter.acceptance.items()
        accepted = {key: (min(near(a, 0.03), 0.99), min(near(d, 0.01), 0.999)) for key, (a, d) in pairs}
        drafters[name] = replace(drafter, cost=near(drafter.cost, 0.15), acceptance=accepted)
    return replace(
        surface,
        drafters=drafters,
        base_tok_s=near(surface.base_tok_s, 0.1),
        prefill_max_tok_s=near(surface.prefill_max_tok_s, 0.1),
        slope=near(surface.slope, 0.2),
        cache_cost=near(surface.cache_cost, 0.3),
        budget_best=random.choice((4096.0, 8192.0, 16384.0)),
        budget_loss=near(surface.budget_loss, 0.5),
        weights_gib=near(surface.weights_gib, 0.02),
        activation_gib_per_ktoken=near(surface.activation_gib_per_ktoken, 0.15),
    )


def choices(
    surface: Surface,
    traffic: Traffic,
    axes: Mapping[str, Sequence[Any]] = AXES,
    depths: Mapping[str, Sequence[int]] = DEPTHS,
) -> Iterator[tuple[dict[str, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """For each drafter and k: its values (arrays over the other axes), scores in tok/s, what can start."""
    grid = [np.array(axis) for axis in zip(*itertools.product(*axes.values()), strict=True)]
    for name, ks in depths.items():
        for k in ks:
            values: dict[str, Any] = dict(zip(axes, grid, strict=True)) | {"drafter": name}
            values |= {"k": k} if k else {}
            fits = np.ones(len(grid[0]), dtype=bool)
            for left in surface.margins(values).values():
                fits = fits & (np.asarray(left) >= 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                yield values, np.where(fits, surface.score(values, traffic), 0.0), fits


def peak(surface: Surface, traffic: Traffic, **space: Any) -> tuple[dict[str, Any], float]:
    """The best choice that can start and its score, by enumeration (`axes`, `depths` as in `choices`)."""
    best: tuple[dict[str, Any], float] = ({}, 0.0)
    for values, scores, _ in choices(surface, traffic, **space):
        at = int(scores.argmax())
        if scores[at] > best[1]:
            arrays = {key: value[at].item() for key, value in values.items() if isinstance(value, np.ndarray)}
            best = ({**values, **arrays}, float(scores[at]))
    return best


def regret(surface: Surface, traffic: Traffic, values: Mapping[str, Any], best: float) -> float:
    """The share of the peak that a choice loses; all of it where it cannot start."""
    return 1.0 if surface.failure(values) else 1 - float(surface.score(values, traffic)) / best
