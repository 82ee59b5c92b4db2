"""What one simulated engine is told: its surface, its noise at two levels, its faults and its lies."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from .simulated_surface import Surface, surface_from

__all__ = [
    "LIES",
    "Noise",
    "Simulation",
    "launch_effect",
    "read_simulation",
    "window_effect",
    "write_simulation",
]

# Workload -> a text that its prompts contain; what contains none is `generate`.
MARKERS = {
    "edit": "Changed text:",
    "structured": "Continue the list of records",
    "long_context": "code of the vault",
    "shared_prefix": "Continue the account.",
    "tool_loop": "with the tool",
}
LIES = (
    "wrong_block_size",  # the label says twice the true block size
    "state_counted_as_attention",  # the pool is reported as if every layer kept KV
    "hits_when_cold",  # prompts never seen are counted, and served, as cached
    "acceptance_doubled",  # the counters of accepted tokens run at twice the truth
    "clock_off",  # the engine's own times are 5 % long
    "cached_output",  # a prompt seen before gets its output replayed twenty times as fast
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Relative sds, log-normal. A launch keeps one effect; a window is `window_s` seconds.

    `drift`: lost per window; `warmup`: lost at first, fading over two windows; `bimodal`: lost in every other
    run of `bimodal_windows`; `outliers`: share of launches that lose 5 to 15 %.
    """

    launch_sd: float = 0.0
    window_sd: float = 0.0
    prefill_launch_sd: float = 0.0
    window_s: float = 1.0
    drift: float = 0.0
    warmup: float = 0.0
    bimodal: float = 0.0
    bimodal_windows: int = 8
    outliers: float = 0.0


def launch_effect(noise: Noise, seed: int, launch: int, metric: str = "decode") -> float:
    """The factor that one engine start has on a metric, whatever runs inside it."""
    random = Random(f"{seed}/{launch}/{metric}")  # noqa: S311 - reproducible noise
    sd = noise.prefill_launch_sd if metric == "prefill" else noise.launch_sd
    effect = math.exp(random.gauss(0, 1) * sd)
    unlucky = metric == "decode" and random.random() < noise.outliers
    return effect * (random.uniform(0.85, 0.95) if unlucky else 1)


def window_effect(noise: Noise, seed: int, launch: int, window: int) -> float:
    """The factor of one window inside a launch, to be multiplied with the launch's own."""
    effect = math.exp(Random(f"{seed}/{launch}/w{window}").gauss(0, 1) * noise.window_sd)  # noqa: S311
    effect *= (1 - noise.drift) ** window * (1 - noise.warmup * math.exp(-window / 2))
    return effect * (1 - noise.bimodal if window // noise.bimodal_windows % 2 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All that a simulated engine needs.

    `speed` multiplies decode and prefill and divides `start_s`: what is measured is the surface times it.
    `children` are processes that stay when only their parent is killed. Faults: `die_at_start` (a cause that
    the surface knows, or a signal), `replay` (a log file to print) with `exit_code`, `die_after_requests`,
    `stall_after_tokens`, `hang_health`, `never_generates`, `ignore_term`, `spam_lines_s`, `grandchild` (deaf,
    in a session of its own), `stop_s` (how long it takes to end); only in the launches of `only_launches` (from 0)
    and for the values of `when`.
    """

    surface: Surface = field(default_factory=Surface)
    noise: Noise = field(default_factory=Noise)
    seed: int = 0
    speed: float = 1.0
    start_s: float = 0.0
    tick_s: float = 0.002
    children: int = 0
    markers: Mapping[str, str] = field(default_factory=lambda: dict(MARKERS))
    faults: Mapping[str, Any] = field(default_factory=dict)
    lies: tuple[str, ...] = ()

    def faults_for(self, launch: int, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The faults of one launch of one configuration."""
        launches, when = self.faults.get("only_launches"), self.faults.get("when", {})
        hit = launches is None or launch in launches
        return self.faults if hit and all(values.get(key) == want for key, want in when.items()) else {}


def write_simulation(simulation: Simulation, path: Path) -> None:
    path.write_text(json.dumps(asdict(simulation)), encoding="utf-8")


def read_simulation(path: Path) -> Simulation:
    data = json.loads(path.read_text(encoding="utf-8"))
    made = {
        "surface": surface_from(data["surface"]),
        "noise": Noise(**data["noise"]),
        "lies": tuple(data["lies"]),
    }
    return Simulation(**{**data, **made})
