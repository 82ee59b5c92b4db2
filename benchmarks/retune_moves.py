"""Finding the peak again after a version move: twelve kinds of move, simulated, known truth.

    python benchmarks/retune_moves.py [--seeds 100:130] [--methods fast,one-knob] [--out rows.jsonl]

Each case is a surface with its own parameters, an old study with its own noise, and a new surface. Rows already in
the file are not run again. Seeds under 100 are those that the product was tuned on. GP stops after 30 cases and needs
torch. Launches count every engine start, failed ones too; on the old engine none are made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.retune_methods import METHODS
from benchmarks.simulated_world import Case
from orchestrator.simulated_moves import MOVES
from search_spaces.configuration import Configuration

GP_CASES, HARM = 30, 0.005
Row = dict[str, Any]


def run(case: Case, method: str, repeat: int = 0) -> Row:
    """One method on one case: its launches and the true regret of what it says."""
    world, began = case.world("new", repeat), time.process_time()
    found = METHODS[method](case, world)

    def lost(one: Configuration | None) -> float:
        return 1.0 if one is None else case.regret(one)

    return {
        "move": case.move,
        "seed": case.seed,
        "method": method,
        "keep": case.regret(case.old_peak),
        "launches": len(world.records),
        "failed": sum(not one.windows for one in world.records),
        "after4": lost(found.after[4]),
        "after10": lost(found.after[10]),
        "regret": lost(found.run),
        "declared": lost(found.declared),
        "switched": found.run != case.old_peak,
        "verdict": found.verdict,
        "cpu_s": time.process_time() - began,
    }


def cases(seeds: Iterable[int]) -> Iterator[Case]:
    """Seed by seed, so that a part of them is balanced over the moves."""
    return (Case(move, seed) for seed in seeds for move in MOVES)


def measure(seeds: Iterable[int], methods: list[str], out: Path) -> None:
    kept = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["move"], row["seed"], row["method"]) for row in kept}
    with out.open("a") as file:
        for number, case in enumerate(cases(seeds)):
            for method in methods:
                if (case.move, case.seed, method) in done or (method == "gp" and number >= GP_CASES):
                    continue
                file.write(json.dumps(run(case, method)) + "\n")
                file.flush()


def wilson(hits: int, n: int) -> str:
    """A share with its 95 % interval."""
    share, z2 = hits / n, 1.96**2
    centre, half = share + z2 / 2 / n, 1.96 * np.sqrt(share * (1 - share) / n + z2 / 4 / n**2)
    low, high = max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n))
    return f"{share:.3f} ({low:.2f} to {high:.2f})" if share < 0.05 else f"{share:.2f} ({low:.2f} to {high:.2f})"


def boot(values: list[float], of: Callable[..., Any] = np.mean, digits: int = 1) -> str:
    """A mean or median with its bootstrap 95 % interval."""
    if not values:
        return "-"
    draws = np.random.default_rng(0).choice(values, (1000, len(values)))
    low, high = np.quantile(of(draws, axis=1), [0.025, 0.975])
    return f"{of(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def percent(rows: list[Row], key: str) -> str:
    return boot([100 * row[key] for row in rows], digits=1)


def harmful(row: Row) -> bool:
    """It tells to run what is worse than the old peak was."""
    return bool(row["switched"] and row["regret"] > row["keep"] + HARM)


def _mean(rows: list[Row], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


HEAD = (
    "method | cases | launches: all | old peak still best | moved | failed | regret % after 4 | after 10 | at the end "
    "| within 3 % | within 1 % | declared > 3 % off | > 1 % off | harmful switch"
)


def line(name: str, rows: list[Row]) -> str:
    n, launches = len(rows), [float(row["launches"]) for row in rows]
    cells = [
        name,
        str(n),
        boot(launches),
        boot([float(row["launches"]) for row in rows if row["keep"] <= 0.01], np.median),
        boot([float(row["launches"]) for row in rows if row["keep"] > 0.01], np.median),
        f"{np.mean([row['failed'] for row in rows]):.1f}",
        percent(rows, "after4"),
        percent(rows, "after10"),
        percent(rows, "regret"),
        wilson(sum(row["regret"] <= 0.03 for row in rows), n),
        wilson(sum(row["regret"] <= 0.01 for row in rows), n),
        wilson(sum(row["declared"] > 0.03 for row in rows), n),
        wilson(sum(row["declared"] > 0.01 for row in rows), n),
        wilson(sum(map(harmful, rows)), n),
    ]
    return "| " + " | ".join(cells) + " |"


def table(rows: list[Row]) -> None:
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    by = {name: [row for row in rows if row["method"] == name] for name in methods}
    print(f"| {HEAD} |\n|{'---|' * (HEAD.count('|') + 1)}")
    for name in methods:
        print(line(name, by[name]))
    if "gp" in by:
        same = {(row["move"], row["seed"]) for row in by["gp"]}
        for name in methods:
            if name not in ("gp", "keep-old"):
                print(line(f"{name}, GP's cases", [r for r in by[name] if (r["move"], r["seed"]) in same]))
    print(f"\nMean regret % at the end (mean launches)\n\n| move | {' | '.join(methods)} |")
    print(f"|{'---|' * (len(methods) + 1)}")
    for move in MOVES:
        mine = [[row for row in by[name] if row["move"] == move] for name in methods]
        cells = [f"{100 * _mean(one, 'regret'):.1f} ({_mean(one, 'launches'):.0f})" if one else "-" for one in mine]
        print(f"| {move} | {' | '.join(cells)} |")
    for name in ("fast", "thorough"):
        if name in by:
            verdicts(name, by[name])


def verdicts(name: str, rows: list[Row]) -> None:
    """What is said, by what is true of the old peak."""
    print(f"\n| {name}: old peak is truly | cases | verdicts |\n|---|---|---|")
    for text, low, high in (("<= 1 % off", -1.0, 0.01), ("1 to 3 % off", 0.01, 0.03), ("> 3 % off", 0.03, 2.0)):
        mine = [row["verdict"] for row in rows if low < row["keep"] <= high]
        told = ", ".join(f"{word} {mine.count(word) / len(mine):.2f}" for word in sorted(set(mine)))
        print(f"| {text} | {len(mine)} | {told} |")
    for moves in (("null",), ("null", "drift", "uniform")):
        told = [row["verdict"] == "peak moved" for row in rows if row["move"] in moves]
        print(f"\n`peak moved` on {', '.join(moves)}: {wilson(sum(told), len(told))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="100:130", help="FROM:TO, TO not included")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("retune_moves.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(":"))
    if not given.table:
        measure(range(first, last), given.methods.split(","), given.out)
    rows = [json.loads(text) for text in given.out.read_text().splitlines()]
    table([row for row in rows if first <= row["seed"] < last])


if __name__ == "__main__":
    main()
