"""How often `retune --max-regression 3%` fails where nothing was lost, and where a tenth was: the product's own loop.

Run `python benchmarks/regression_rate.py [seeds]`. For each seed the old engine is tuned, then the peak is
re-found on the new one, launch by launch, through the same study, journal and verdict as a real run; only the
engine is a surface, with 1.5 % of launch noise and 0.2 % between windows. Seeds differ in surface and noise.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.budget import Budget
from orchestrator.clock import SystemClock
from orchestrator.memory import Memory
from orchestrator.plan import TuningPlan
from orchestrator.prepare import prepare_studies
from orchestrator.progress import PlainProgress
from orchestrator.refind import refind
from orchestrator.rehearsal import rehearsed
from orchestrator.retune_view import FAST
from orchestrator.simulated_moves import make_surface
from orchestrator.simulated_surface import Surface, Traffic
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.study import Bench, Study
from orchestrator.tune import run_studies
from orchestrator.workload import Workload
from trackers.journal import Journal
from trackers.records import Check, Failure, Launch, Measurement

LAUNCH_SD, WINDOW_SD, MOST = 0.015, 0.002, 0.03
TRAFFIC = Traffic(name="generate", input_tokens=256, output_tokens=256)
PLAN = {
    "name": "rate",
    "model": {"id": "org/model"},
    "engines": ["vllm==0.26.0", "vllm==0.27.1"],
    "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 256, "output_tokens": 256}],
    "space": {
        "drafter": {"none": {}, "ngram": {"k": [2, 4, 8]}, "mtp": {"k": [1, 2, 3, 4, 5, 6, 8]}},
        "max_num_batched_tokens": [4096, 8192, 16384],
        "max_num_seqs": [4, 8, 16],
    },
    "precision": {"relative": "1%", "min_windows": 3, "max_windows": 5, "launch_noise": "2%"},
    "search": {"launches": 20},
    "finalists": {"count": 2, "launches": 3},
    "upgrades": {"regression": MOST},
}


class SurfaceSlot:
    """An engine that is only its surface; every launch has an effect of its own."""

    def __init__(self, surfaces: dict[str, Surface], seed: int) -> None:
        self.surfaces, self.random = surfaces, random.Random(seed)
        self.order: LaunchOrder | None = None
        self.effect, self.launches = 1.0, 0

    def launch(self, order: LaunchOrder) -> LaunchReport:
        values, surface = self.values(order), self.surfaces[order.environment.key]
        why = surface.failure(values)
        failure = Failure(cause=why, kind="infeasible", message=why) if why else None
        self.order, self.launches = order, self.launches + 1
        self.effect = float(surface.decode_tok_s(values, TRAFFIC)) * (1 + self.random.gauss(0, LAUNCH_SD))
        ready = None if why else 1.0
        return LaunchReport(launch=Launch(launch=order.launch, started_at=0.0, ready_s=ready, failure=failure))

    def values(self, order: LaunchOrder) -> dict[str, object]:
        flags = dict(zip(order.args, order.args[1:], strict=False))
        drafting = json.loads(flags.get("--speculative-config", "{}"))
        settings = {name: int(text) for name, text in order.settings.items()}
        k = drafting.get("num_speculative_tokens")
        return {**settings, "drafter": order.drafter, **({"k": k} if k else {})}

    def measure(self, workload: Workload, window: int) -> Measurement:
        assert self.order is not None
        return Measurement(
            workload=workload.ref,
            launch=self.order.launch,
            window=window,
            started_at=float(window),
            duration_s=1.0,
            completed=1,
            failed=0,
            total_input_tokens=256,
            total_output_tokens=256,
            metrics={"decode_tok_s": self.effect * (1 + self.random.gauss(0, WINDOW_SD))},
        )

    def preflight(self, _: LaunchOrder) -> Failure | None:
        return None

    def check_gates(self, _: object) -> tuple[Check, ...]:
        return ()

    def stop(self) -> Launch | None:
        order, self.order = self.order, None
        return order and Launch(launch=order.launch, started_at=0.0, ready_s=1.0)

    def status(self) -> str:
        return ""

    def abort(self) -> None: ...


class OneSlot:
    count = 1

    def __init__(self, slot: SurfaceSlot) -> None:
        self.slot = slot

    @contextmanager
    def lease(self, _: str) -> Iterator[SurfaceSlot]:
        yield self.slot

    def abort(self) -> None: ...

    def kill(self) -> None: ...

    def status(self) -> dict[str, str]:
        return {}

    def close(self) -> None: ...


def studies_of(plan: TuningPlan, folder: Path) -> list[Study]:
    """Old and new, prepared once; their environments are told apart by key."""
    found = prepare_studies(rehearsed(plan), logs=folder, memory=None, progress=PlainProgress(lambda _: None))
    return [
        replace(study, pad=replace(study.pad, environment=study.pad.environment.model_copy(update={"key": key})))
        for study, key in zip(found, ("old", "new"), strict=True)
    ]


def night(plan: TuningPlan, studies: list[Study], seed: int, factor: float) -> tuple[str, str, int]:
    """Regression, verdict and launches on the new engine of one tune and one retune."""
    old, _ = make_surface("null", seed)
    surfaces = {"old": old, "new": replace(old, version="0.27.1", base_tok_s=old.base_tok_s * factor)}
    slot = SurfaceSlot(surfaces, seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place, Journal(Path(place)) as journal:
        memory, clock = Memory(journal, None, print), SystemClock()
        budget = Budget(launches=None, time_s=None, before=(), clock=clock)
        bench = Bench(
            plan=plan,
            slots=OneSlot(slot),
            memory=memory,
            budget=budget,
            clock=clock,
            progress=PlainProgress(lambda _: None),
        )
        run_studies(studies[:1], bench)
        before = slot.launches
        (advice,) = refind(FAST)(studies, bench).advice
    return advice.regression, advice.verdict, slot.launches - before


def main(seeds: int = 100) -> None:
    plan = TuningPlan.model_validate(PLAN)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REPEAK_HOME"] = folder
        studies = studies_of(plan, Path(folder))
        print("| truth | seeds | exit code 5 | cannot tell | ruled out | launches (mean, most) | s each |")
        print("|---|---|---|---|---|---|---|")
        for name, factor in (("nothing lost", 1.0), ("10 % lost", 0.9)):
            begun = time.monotonic()
            found = [night(plan, studies, seed, factor) for seed in range(seeds)]
            told, launches = [one[0] for one in found], [one[2] for one in found]
            counts = " | ".join(str(told.count(word)) for word in ("shown", "cannot tell", "ruled out"))
            each = (time.monotonic() - begun) / seeds
            print(
                f"| {name} | {seeds} | {counts} | {sum(launches) / seeds:.1f}, {max(launches)} | {each:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:2]))
