"""What few launches find: the surfaces of `rivals.py` in process, whose truth is known, by the product's own rules.

    python benchmarks/small_budget.py [--seeds 100] [--launches 14,20,40] [--at-random 4,8]

Half of a budget, or what its finals leave, is searched from what is in use; then three finalists and what is in use are
launched afresh, there and back, and a peak is declared. `--at-random`: results before the sampler's model is asked.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.rivals import NOISE, best, make_surface, speed, under
from benchmarks.rivals_side import IN_USE, SPACE
from orchestrator import searcher as searching
from orchestrator.candidates import Candidate, Target, noise_of
from orchestrator.peak import contenders, declare_peak, finalist_order
from orchestrator.plan_file import load_plan
from search_spaces.configuration import Configuration
from search_spaces.space import SearchSpace

TARGET = Target(name="load", metric="decode_tok_s", workloads=("load",))
DELTA, FINALISTS, AFRESH = 0.01, 3, 3


def space() -> SearchSpace:
    with tempfile.TemporaryDirectory() as folder:
        plan = {"name": "small", "model": {"path": folder}, "engines": [{"name": "s", "python": sys.executable}]}
        plan |= {"workloads": [{"name": "load", "kind": "generate"}], "space": under(SPACE)}
        path = Path(folder) / "plan.yaml"
        path.write_text(json.dumps(plan), encoding="utf-8")
        return load_plan(path).space


def flags(one: Configuration) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in one.values.items() if name != "drafter"}


def study(where: SearchSpace, kind: str, seed: int, launches: int) -> tuple[bool, float]:
    """Whether another than the one in use was declared, and what the declared one loses to the best."""
    surface, rng = make_surface(kind, seed), np.random.default_rng((seed, len(kind)))
    incumbent = next(one for one in where.enumerate() if flags(one) == IN_USE)

    def launch(one: Configuration) -> float:
        return speed(surface, flags(one)) * math.exp(NOISE.launch_sd * rng.normal() + NOISE.window_sd * rng.normal())

    share = max(launches // 2, launches - (FINALISTS + 1) * AFRESH)
    searched: dict[Configuration, float] = {}
    searcher = searching.Searcher(where, seed=seed, queue=[incumbent, *where.opening()])
    while len(searched) < share and (one := searcher.ask()):
        searched[one] = launch(one)
        searcher.tell(one, [math.log(searched[one])] if searched[one] else None)
    field = [Candidate(configuration=one, searched=(value,)) for one, value in searched.items() if value]
    chosen = contenders([(TARGET, field)], DELTA, FINALISTS, incumbent)
    fresh: dict[Configuration, tuple[float, ...]] = {}
    for one in finalist_order(chosen, AFRESH)[: launches - len(searched)]:
        fresh[one] = (*fresh.get(one, ()), launch(one))
    field = [one.model_copy(update={"fresh": fresh.get(one.configuration, ())}) for one in field]
    peak = declare_peak(
        field, TARGET, noise_of(field, NOISE.launch_sd), DELTA, incumbent=incumbent, defaults=where.defaults.values
    )
    declared = peak.configuration if peak else incumbent
    return declared != incumbent, 1 - speed(surface, flags(declared)) / best(surface)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--launches", default="14,20,40")
    parser.add_argument("--at-random", default="4,8")
    asked = parser.parse_args()
    where = space()
    print("| launches | at random | a better one is declared | it loses to the best, mean % | false winner, flat |")
    print("|---|---|---|---|---|")
    for launches in map(int, asked.launches.split(",")):
        for drawn in map(int, asked.at_random.split(",")):
            vars(searching)["_AT_RANDOM"] = drawn
            peaks, flat = (
                [study(where, kind, seed, launches) for seed in range(asked.seeds)] for kind in ("peak", "null")
            )
            found, lost = sum(switched for switched, _ in peaks), 100 * mean(regret for _, regret in peaks)
            false = sum(switched for switched, _ in flat)
            print(f"| {launches} | {drawn} | {found} of {asked.seeds} | {lost:.1f} | {false} of {asked.seeds} |")


if __name__ == "__main__":
    main()
