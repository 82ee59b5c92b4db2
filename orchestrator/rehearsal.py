"""Rehearsal: a whole study on the simulated engine, in seconds; its numbers are labelled and mean nothing."""

from __future__ import annotations

from pathlib import Path

from .engine_environment import EngineEnvironment
from .errors import PlanError
from .plan import EngineSpec, TuningPlan
from .simulated_environment import simulated_environment
from .simulated_moves import MOVES, make_surface
from .simulated_spec import Noise, Simulation

__all__ = ["rehearsed", "simulated"]

_SPEED = 1.0


def rehearsed(plan: TuningPlan, move: str = "k_shift") -> TuningPlan:
    """The plan on simulated engines: the last of them moved, those before it did not."""
    last = len(plan.engines) - 1
    engines = tuple(
        EngineSpec(name=engine.name, simulated=f"{move}/0/{'new' if index == last else 'old'}")
        for index, engine in enumerate(plan.engines)
    )
    name = f"{plan.name[:80]}-rehearsal"
    return plan.model_copy(update={"name": name, "engines": engines})


def simulated(what: str, directory: Path) -> EngineEnvironment:
    """The simulated environment of a name such as `k_shift/3/new`: a move, its seed, and which side of it.

    Raises:
        PlanError: There is no such move.
    """
    move, _, rest = what.partition("/")
    seed, _, side = rest.partition("/")
    if move not in MOVES or not seed.isdigit() or side not in ("old", "new"):
        raise PlanError(f"{what!r} is no simulated engine.", f"Write MOVE/SEED/old or new; moves: {', '.join(MOVES)}.")
    surface = make_surface(move, int(seed))[side == "new"]
    noise = Noise(launch_sd=0.015, window_sd=0.002)
    return simulated_environment(Simulation(surface=surface, noise=noise, seed=int(seed), speed=_SPEED), directory)
