"""Ways to find a peak again on a simulated machine: what is done today, and `retune` itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.simulated_world import DELTA, PRIOR, RULE, SPACE, TARGET, Case, World, best_reading, score, searched
from orchestrator.both_stacks import BothStacks
from orchestrator.candidates import noise_of
from orchestrator.joint_model import Reading, fit_scales
from orchestrator.retune import next_step
from orchestrator.retune_view import FAST, THOROUGH, Effort, Frame, Seen, Verdict, seen
from orchestrator.simulated_moves import AXES, DEPTHS
from search_spaces.configuration import Configuration

__all__ = ["METHODS", "Found"]

_SEARCHED, _GP = 32, 20  # launches of the searches that do not stop by themselves


@dataclass(frozen=True)
class Found:
    """`run` is what a user is told to run at the end, `declared` what is claimed to be the peak."""

    run: Configuration | None
    declared: Configuration | None
    after: dict[int, Configuration | None]
    verdict: str = ""
    lead_shown: bool = True


def _keep_old(case: Case, _: World) -> Found:
    return Found(case.old_peak, case.old_peak, {4: case.old_peak, 10: case.old_peak})


def _readings(world: World, otherwise: Configuration | None) -> Found:
    """A tool that declares its largest number."""
    best = best_reading(world.records, otherwise)
    return Found(best, best, {n: best_reading(world.records[:n], otherwise) for n in (4, 10)})


def _optuna(sampler: str, launches: int, warm: int = 0) -> Callable[[Case, World], Found]:
    def method(case: Case, world: World) -> Found:
        order = sorted((one for one in case.old if one.windows), key=lambda one: -(score(one) or 0.0))
        queue = list(dict.fromkeys(one.configuration for one in order))[:warm]
        searched(world, launches, sampler, case.seed, queue)
        return _readings(world, None)

    return method


def _grid(_: Case, world: World) -> Found:
    """Eight of drafter and k, two budgets, two utilisations, caching on and off, at a width of 8: 64."""
    drafting = [("none", 0), ("ngram", 4), ("mtp", 2), ("mtp", 4), ("mtp", 8), ("dspark", 3), ("dspark", 5)]
    axes = ((8192, 16384), (0.85, 0.94), (False, True))
    for (drafter, k), budget, memory, caching in itertools.product([*drafting, ("dspark", 7)], *axes):
        chosen = {"max_num_batched_tokens": budget, "gpu_memory_utilization": memory, "enable_prefix_caching": caching}
        one = SPACE.complete({"drafter": drafter, **({"k": k} if k else {}), "max_num_seqs": 8, **chosen})
        if not world.refuses(one):
            world.launch(one)
    return _readings(world, None)


def _one_knob(case: Case, world: World) -> Found:
    """From the old peak each knob in turn, the drafter first at its best old k, the best value kept."""
    here, value = case.old_peak, _launched(world, case.old_peak)
    for options in _sweeps(case):
        best = (value, here)
        for one in options(here):
            if one != here and (found := _launched(world, one)) > best[0]:
                best = (found, one)
        value, here = best
    return Found(here, here, {n: best_reading(world.records[:n], case.old_peak) for n in (4, 10)})


def _launched(world: World, one: Configuration) -> float:
    found = None if world.refuses(one) else score(world.launch(one))
    return float("-inf") if found is None else found


def _sweeps(case: Case) -> Iterator[Callable[[Configuration], list[Configuration]]]:
    depths: dict[str, tuple[float, int]] = {}
    for record in case.old:
        at, found = record.configuration, score(record)
        if found is not None and found > depths.get(at.drafter, (float("-inf"), 0))[0]:
            depths[at.drafter] = (found, at.k)

    def drafters(here: Configuration) -> list[Configuration]:
        ks = {name: depths[name][1] if name in depths else min(5, max(all_of)) for name, all_of in DEPTHS.items()}
        return [SPACE.complete({**here.values, "drafter": name, "k": k}) for name, k in ks.items()]

    yield drafters
    yield lambda here: [
        SPACE.complete({**here.values, "k": k}) for k in DEPTHS[here.drafter] if here.k and abs(k - here.k) <= 4
    ]
    for name, values in AXES.items():
        yield lambda here, name=name, values=values: [SPACE.complete({**here.values, name: v}) for v in values]


def _retune(effort: Effort) -> Callable[[Case, World], Found]:
    """The product's own planner, launched on the simulated machine until it has a verdict."""

    def method(case: Case, world: World) -> Found:
        old, frame = seen(case.old, TARGET, RULE), frame_of(case, world, effort)
        after: dict[int, Configuration | None] = {}
        while True:
            new = seen(world.records, TARGET, RULE)
            for n in (4, 10):
                if len(world.records) == n and n not in after:
                    after[n] = BothStacks(old, new, frame).best
            step = next_step(old, new, frame)
            if isinstance(step, Verdict):
                break
            world.launch(step.configuration, step.role)
        end = step.recommended
        after = {n: after.get(n, end) for n in (4, 10)}
        return Found(end, step.peak.configuration if step.peak else None, after, step.shift.verdict)

    return method


def frame_of(case: Case, world: World, effort: Effort) -> Frame:
    past: Seen = seen(case.old, TARGET, RULE)
    readings = [Reading(one, TARGET.score(values), len(values)) for one, values in past.readings]
    return Frame(
        space=SPACE,
        old_peak=case.old_peak,
        target=TARGET,
        delta=DELTA,
        launch_noise=PRIOR,
        scales=fit_scales(SPACE, readings, past.rates, noise_of(past.field, PRIOR).sd),
        effort=effort,
        refuses=world.impossible,
        streams=case.traffic.streams,
    )


METHODS: dict[str, Callable[[Case, World], Found]] = {
    "keep-old": _keep_old,
    "random": _optuna("random", _SEARCHED),
    "grid": _grid,
    "one-knob": _one_knob,
    "tpe-cold": _optuna("tpe", _SEARCHED),
    "tpe-enqueue": _optuna("tpe", _SEARCHED, warm=5),
    "gp": _optuna("gp", _GP),
    "fast": _retune(FAST),
    "thorough": _retune(THOROUGH),
}
