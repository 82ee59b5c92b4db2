"""How often each stopping rule calls a wrong number stable: seeded series with a known truth, as a table.

Run `python benchmarks/stability_table.py [series]`. `false stable`: called stable, more than 2 % off.
`cover`: the 95 % interval holds the truth. `windows`: measured, the dropped ones included.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orchestrator.launch_noise import LaunchNoise, pooled
from orchestrator.stability import StabilityRule, estimate, judge_windows

Series = Callable[[np.random.Generator, int], np.ndarray]
RULE = StabilityRule(precision=0.01)
TRUTH = 100.0
RULES = {"first 3 windows": 0, "in-launch rule": 1, "3 launches": 3, "5 launches": 5}


@dataclass(frozen=True)
class Scenario:
    """Log offsets of one launch's windows about the truth, and the true sd between launches."""

    launch_sd: float
    window_sd: float
    shape: Series = lambda _, n: np.zeros(n)

    def launch(self, rng: np.random.Generator, n: int) -> list[float]:
        noise = rng.normal(0, self.launch_sd) + rng.normal(0, self.window_sd, n)
        return list(TRUTH * np.exp(noise + self.shape(rng, n)))


def _outliers(rng: np.random.Generator, n: int) -> np.ndarray:
    bad_launch = -rng.uniform(0.05, 0.15) if rng.random() < 0.05 else 0.0
    return bad_launch - np.where(rng.random(n) < 0.05, rng.uniform(0.05, 0.15, n), 0)


def _modes(rng: np.random.Generator, n: int) -> np.ndarray:
    apart = math.log(57.2 / 40.2)
    switched = np.cumsum(rng.random(n) < 1 / 8) + rng.integers(2)
    return apart * (switched % 2 - 0.5)


SCENARIOS = {
    "quiet": Scenario(0.015, 0.001),
    "launchy": Scenario(0.03, 0.002),
    "warm-up": Scenario(0.015, 0.002, lambda _, n: -0.12 * np.exp(-np.arange(n) / 2)),
    "drift": Scenario(0.015, 0.002, lambda _, n: 0.10 - 0.005 * np.arange(n)),
    "outlier": Scenario(0.015, 0.002, _outliers),
    "bimodal": Scenario(0.015, 0.002, _modes),
    "shared CPU": Scenario(0.05, 0.08),
}


def _history(rng: np.random.Generator, launch_sd: float) -> LaunchNoise:
    """What a machine in use knows of its launches: eight configurations launched twice, and the prior."""
    return pooled(0.02, [list(np.exp(rng.normal(0, launch_sd, 2))) for _ in range(8)])


def _one(scenario: Scenario, launches: int, rng: np.random.Generator) -> tuple[bool, float, float, int]:
    """Called stable; log error; log half-width; windows measured."""
    if not launches:
        x = np.log(scenario.launch(rng, 3))
        return True, x.mean() - math.log(TRUTH), 4.303 * x.std(ddof=1) / math.sqrt(3), 3
    taken = []
    for _ in range(launches):
        values = scenario.launch(rng, RULE.max_windows)
        n = next(i for i in range(1, 99) if judge_windows(values[:i], RULE).decision == "settled")
        taken.append(values[:n])
    found = estimate(taken, RULE, _history(rng, scenario.launch_sd))
    error = math.log(found.value / TRUTH)
    return found.ending == "stable", error, math.log1p(found.relative), sum(map(len, taken))


def row(name: str, launches: int, series: int, seed: int = 0) -> dict[str, float]:
    """One line of the table: shares, rmse (relative) and mean windows over `series` seeded repetitions."""
    rng = np.random.default_rng([seed, *name.encode(), launches])
    runs = [_one(SCENARIOS[name], launches, rng) for _ in range(series)]
    stable, error, half, windows = (np.array(column) for column in zip(*runs, strict=True))
    return {
        "stable": stable.mean(),
        "false stable": (stable & (abs(error) > 0.02)).mean(),
        "cover": (abs(error) <= half).mean(),
        "rmse %": 100 * math.sqrt((error**2).mean()),
        "windows": windows.mean(),
    }


def main(series: int = 300) -> None:
    header = ("stable", "false stable", "cover", "rmse %", "windows")
    print("| scenario | rule |", " | ".join(header), "|")
    print("|---" * (len(header) + 2) + "|")
    for name in SCENARIOS:
        for rule, launches in RULES.items():
            found = row(name, launches, series)
            print(f"| {name} | {rule} |", " | ".join(f"{found[key]:.2f}" for key in header), "|", flush=True)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:2]))
