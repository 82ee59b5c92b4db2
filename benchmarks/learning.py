"""What failed launches teach: 30-trial studies in a space of which half cannot start for lack of memory.

    python benchmarks/learning.py [--seeds 20] [--space small|wide]

Everything is the product's own (space, refusals, searcher, trial, journal) but the engine, which is the simulated
surface asked in process: it starts or fails as its memory says. `learning off` lets every configuration launch;
`chance` also draws them at random.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))
from scripted_slot import OneSlot, ScriptedSlot

from orchestrator import refusal
from orchestrator import study as studying
from orchestrator.budget import Budget
from orchestrator.clock import SystemClock
from orchestrator.failure_causes import CAUSES
from orchestrator.memory import Memory
from orchestrator.orders import Launchpad
from orchestrator.plan import TuningPlan
from orchestrator.progress import PlainProgress
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_moves import make_surface
from orchestrator.simulated_spec import Simulation
from orchestrator.simulated_surface import Surface, Traffic
from orchestrator.slot import LaunchOrder
from orchestrator.study import Bench, Study, search
from search_spaces.feasibility import KnownFacts
from search_spaces.space import SearchSpace
from trackers.journal import Journal
from trackers.records import Failure, StackFingerprint

TRIALS = 30
TRAFFIC = Traffic(streams=64)
SPACES: dict[str, dict[str, Any]] = {
    "small": {
        "drafter": {"none": {}, "mtp": {"k": {"low": 1, "high": 8}}},
        "max_num_batched_tokens": [2048, 4096, 8192, 16384, 32768],
        "max_num_seqs": [16, 32, 64, 128, 256, 512],
    },
    "wide": {
        "drafter": {"none": {}, "ngram": {"k": {"low": 1, "high": 8}}, "mtp": {"k": {"low": 1, "high": 8}}},
        "max_num_batched_tokens": [2048, 4096, 8192, 16384, 32768],
        "max_num_seqs": [16, 32, 64, 128, 256, 512],
        "gpu_memory_utilization": [0.8, 0.85, 0.9, 0.94],
    },
}


def values_of(order: LaunchOrder) -> dict[str, Any]:
    """What the surface reads, from the order as an engine gets it."""
    values: dict[str, Any] = {name: float(value) for name, value in order.settings.items()}
    if order.drafter != "none":
        config = json.loads(dict(zip(order.args, order.args[1:], strict=False))["--speculative-config"])
        values |= {"drafter": order.drafter, "k": config["num_speculative_tokens"]}
    return values


def failure_of(order: LaunchOrder, surface: Surface) -> Failure | None:
    cause = surface.failure(values_of(order))
    return cause and Failure(cause=cause, kind=CAUSES[cause].kind, message=CAUSES[cause].message)


def short(space: SearchSpace, surface: Surface) -> tuple[Surface, float]:
    """The surface with as little memory as lets half of the space start, and the share that does not."""
    every = [dict(one.values) for one in space.enumerate(limit=100_000)]

    def failing(memory_gib: float) -> float:
        made = replace(surface, memory_gib=memory_gib)
        return sum(made.failure(values) is not None for values in every) / len(every)

    low, high = 40.0, 400.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if failing(middle) > 0.5 else (low, middle)
    return replace(surface, memory_gib=high), failing(high)


class Trials(Budget):
    """Ends a search after so many trials, refused ones included."""

    memory: Memory

    def spent(self) -> str | None:
        return "done" if len(self.memory.all()) >= TRIALS else None


def study(plan: TuningPlan, surface: Surface, place: Path, seed: int) -> tuple[int, int, float]:
    """Launches that failed, launches that gave a number, and the best of these as a share of the space's best."""
    noise = random.Random(seed)
    environment = simulated_environment(Simulation(surface=surface), place / "engine")
    pad = Launchpad(
        environment=environment, space=plan.space, model="m", serve={}, env={}, bfloat16=False, logs=place,
        run_id="r", start_timeout_s=lambda: 1.0,
    )  # fmt: skip
    slot = ScriptedSlot(
        lambda order, *_: score(surface, values_of(order)) * noise.gauss(1, 0.003),
        lambda order: failure_of(order, surface),
    )
    stack = StackFingerprint(items={"vllm": environment.version})
    with Journal(place / "journal") as journal:
        memory = Memory(journal, None, print)
        budget = Trials(launches=None, time_s=None, before=(), clock=SystemClock())
        budget.memory = memory
        bench = Bench(
            plan=plan, slots=OneSlot(slot), memory=memory, budget=budget, clock=SystemClock(),
            progress=PlainProgress(lambda _: None),
        )  # fmt: skip
        mine = Study(engine="e", key="s", stack=stack, space=plan.space, pad=pad, facts=KnownFacts())
        search(mine, bench, allowance=10**6)
        states = [record.state for record in memory.all()]
        found = max(score(surface, one.configuration.values) for one in memory.all() if one.state == "measured")
    assert len(states) == TRIALS
    best = max(score(surface, one.values) for one in plan.space.enumerate(limit=100_000))
    return states.count("engine_failed"), states.count("measured"), found / best


def score(surface: Surface, values: Mapping[str, Any]) -> float:
    """Decode tok/s of all streams together, 0 where it cannot start: more requests at once are worth having."""
    fits = surface.failure(values) is None
    return float(surface.decode_tok_s(values, TRAFFIC) * surface.running(values, TRAFFIC)) if fits else 0.0


def arms(seed: int, space: str) -> Iterator[tuple[str, tuple[int, int, float], float]]:
    for name, sampler, learning in (("on", "tpe", True), ("off", "tpe", False), ("off, chance", "random", False)):
        plan = TuningPlan.model_validate(
            {
                "name": "learning",
                "model": {"id": "m"},
                "engines": ["vllm==0.30.0"],
                "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 64, "output_tokens": 64}],
                "space": SPACES[space],
                "precision": {"relative": "2%", "min_windows": 3, "max_windows": 3},
                "search": {"sampler": sampler, "seed": seed},
            }
        )
        surface, share = short(plan.space, replace(make_surface("null", seed)[0], version="0.30.0"))
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as patches:
            if not learning:
                patches.enter_context(mock.patch.object(refusal, "known_failure", return_value=None))
                patches.enter_context(mock.patch.object(studying, "gamble", return_value=False))
            yield name, study(plan, surface, Path(place), seed), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--space", choices=SPACES, default="small")
    asked = parser.parse_args()
    rows: dict[str, list[tuple[int, int, float]]] = {}
    shares = []
    for seed in range(asked.seeds):
        for name, counts, share in arms(seed, asked.space):
            rows.setdefault(name, []).append(counts)
            shares.append(share)
    print(f"{asked.seeds} studies of {TRIALS} trials; {statistics.mean(shares):.0%} of the space cannot start")
    print("| learning | launches that failed: mean | worst | trials measured: mean | best found, of the space's best |")
    print("|---|---|---|---|---|")
    for name, counts in rows.items():
        failed, measured, best = zip(*counts, strict=True)
        row = f"{statistics.mean(failed):.1f} | {max(failed)} | {statistics.mean(measured):.1f}"
        print(f"| {name} | {row} | {statistics.mean(best):.1%} |")


if __name__ == "__main__":
    main()
