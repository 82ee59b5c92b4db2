"""One simulated machine in process: launches answered from a surface with noise at both levels, as records."""

from __future__ import annotations

import math
import zlib
from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from orchestrator.candidates import Target, candidates, noise_of
from orchestrator.peak import contenders, declare_peak, finalist_order
from orchestrator.refusal import known_failure
from orchestrator.searcher import Searcher
from orchestrator.simulated_moves import AXES, DEPTHS, make_surface, peak, regret
from orchestrator.simulated_spec import Noise, launch_effect
from orchestrator.simulated_surface import Surface, Traffic
from orchestrator.stability import StabilityRule
from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.feasibility import infeasible
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace
from search_spaces.values import Values
from trackers.records import Acceptance, Failure, Launch, Measurement, Role, StackFingerprint, TrialRecord, WorkloadRef

LOAD = WorkloadRef(name="load", sha256="0" * 64)
TARGET = Target(name="load", metric="output_throughput", workloads=("load",))
RULE = StabilityRule(precision=0.01, min_windows=1, max_windows=1)
DELTA, PRIOR, OLD, NEW = 0.01, 0.02, "0.26.0", "0.27.1"
TRAFFIC = (
    Traffic(streams=1),
    Traffic(streams=4, input_tokens=2048, shared=0.15),
    Traffic(streams=8, input_tokens=6144, output_tokens=512, shared=0.5),
)


def _space() -> SearchSpace:
    """9 750 configurations: 39 of drafter and k, five budgets, widths and utilisations, caching on and off."""
    drafters = {d: None if d == "none" else Values(low=min(ks), high=max(ks)) for d, ks in DEPTHS.items()}
    needs = {
        "max_num_batched_tokens": ("activation",),
        "max_num_seqs": ("activation", "kv"),
        "gpu_memory_utilization": ("device",),
    }
    others = [
        Knob(name=name, choices=tuple(values), flag="--" + name.replace("_", "-"), needs=needs.get(name, ()))
        for name, values in AXES.items()
    ]
    return SearchSpace(knobs=(*drafter_knobs(drafters), *others))


SPACE = _space()


class World:
    """One engine version on one machine; every launch, failed or not, is a record."""

    def __init__(self, surface: Surface, traffic: Traffic, noise: Noise, seed: int, version: str) -> None:
        self.surface, self.traffic, self.noise, self.seed, self.version = surface, traffic, noise, seed, version
        self.records: list[TrialRecord] = []
        self._random = np.random.default_rng(seed)
        self._stack = StackFingerprint(items={"vllm": version})
        self._static: dict[str, bool] = {}

    def impossible(self, one: Configuration) -> bool:
        """By arithmetic alone."""
        if one.key not in self._static:
            found = infeasible(one, serve={}, version=self.version, space=SPACE)
            self._static[one.key] = found is not None
        return self._static[one.key]

    def refuses(self, one: Configuration) -> bool:
        """The two aids that every method gets: arithmetic, and what a failure of this stack rules out."""
        failed = [record for record in self.records if not record.windows]
        return self.impossible(one) or known_failure(one, SPACE, failed) is not None

    def launch(self, one: Configuration, role: Role = "search") -> TrialRecord:
        number, values = len(self.records), dict(one.values)
        cause = self.surface.failure(values)
        failure = Failure(cause=cause, kind="infeasible", message=cause) if cause else None
        record = TrialRecord(
            trial_id=f"{self.version}-{number}",
            study=self.version,
            number=number,
            role=role,
            state="engine_failed" if cause else "measured",
            reason=cause or "",
            configuration=one,
            fingerprint=self._stack,
            workloads=(LOAD,),
            launches=(Launch(launch=0, started_at=number, ready_s=None if cause else 1.0, failure=failure),),
            windows=() if cause else (self._window(values, number),),
            started_at=number,
            duration_s=1.0,
        )
        self.records.append(record)
        return record

    def _window(self, values: dict[str, Any], number: int) -> Measurement:
        speed = float(self.surface.score(values, self.traffic)) * launch_effect(self.noise, self.seed, number)
        speed *= math.exp(self._random.normal(0, self.noise.window_sd / 2))
        drafter, k = self.surface.drafter(values)
        accepted = self._random.binomial(2000, drafter.positions(k, "generate")) if k else []
        counts = Acceptance(
            drafts=2000,
            draft_tokens=2000 * k,
            accepted_tokens=int(sum(accepted)),
            accepted_per_position=tuple(int(each) for each in accepted),
        )
        return Measurement(
            workload=LOAD,
            launch=0,
            window=0,
            started_at=number,
            duration_s=1,
            completed=4,
            failed=0,
            total_input_tokens=1,
            total_output_tokens=1,
            metrics={"output_throughput": speed},
            acceptance=counts if k else None,
        )


def score(record: TrialRecord) -> float | None:
    """Log of what a launch read; None where it did not start."""
    return math.log(record.windows[0].metrics["output_throughput"]) if record.windows else None


def hashed(*parts: object) -> int:
    return zlib.crc32("/".join(map(str, parts)).encode())


class Case:
    """A version move with a seed: its two surfaces, the study of the old one, its peak, the truth of the new."""

    def __init__(self, move: str, seed: int) -> None:
        self.move, self.seed = move, seed
        self.surfaces, self.traffic = make_surface(move, seed), TRAFFIC[seed % 3]
        self.noise = Noise(
            launch_sd=(0.01, 0.015, 0.03)[seed // 3 % 3], window_sd=(0.001, 0.002, 0.01)[seed % 3], outliers=0.03
        )
        self.top = peak(self.surfaces[1], self.traffic)[1]

    def world(self, side: str, repeat: int = 0) -> World:
        more = [repeat] if repeat else []
        surface, version = (self.surfaces[0], OLD) if side == "old" else (self.surfaces[1], NEW)
        return World(surface, self.traffic, self.noise, hashed(self.move, self.seed, side, *more), version)

    def regret(self, one: Configuration) -> float:
        """What it truly loses on the new stack, as a share of the peak."""
        return regret(self.surfaces[1], self.traffic, one.values, self.top)

    @cached_property
    def old(self) -> list[TrialRecord]:
        return old_study(self.world("old"), self.seed)

    @cached_property
    def old_peak(self) -> Configuration:
        """As the product declares it from its own noisy records: the incumbent is itself imperfect."""
        field = candidates(self.old, TARGET, RULE)
        found = declare_peak(field, TARGET, noise_of(field, PRIOR), DELTA, defaults=SPACE.defaults.values)
        assert found is not None
        return found.configuration


def searched(world: World, launches: int, sampler: str, seed: int, queue: list[Configuration]) -> None:
    """Optuna through the product's own searcher; what is refused costs no launch."""
    searcher = Searcher(SPACE, sampler=sampler, seed=seed, queue=queue)
    while len(world.records) < launches:
        choice = searcher.ask()
        if choice is None:
            return
        found = None if world.refuses(choice) else score(world.launch(choice))
        searcher.tell(choice, None if found is None else [found])


def old_study(world: World, seed: int) -> list[TrialRecord]:
    """52 launches at most: 36 searched, 13 one knob away from the best, finalists afresh."""
    searched(world, 36, "tpe", seed, list(SPACE.opening()))
    for _ in range(13):
        best = max((one for one in world.records if one.windows), key=_reading).configuration
        done = {one.configuration for one in world.records}
        near = [one for one in SPACE.neighbours(best) if one not in done and not world.refuses(one)]
        if not near:
            break
        world.launch(near[Random(seed + len(world.records)).randrange(len(near))])
    field = candidates(world.records, TARGET, RULE)
    for one in finalist_order(contenders([(TARGET, field)], DELTA, 3), 3):
        if not world.refuses(one):
            world.launch(one, "finalist")
    return world.records


def _reading(record: TrialRecord) -> float:
    found = score(record)
    return -math.inf if found is None else found


def best_reading(records: list[TrialRecord], otherwise: Configuration | None) -> Configuration | None:
    """What a tool without relaunches declares: the configuration of the largest number."""
    measured = [one for one in records if one.windows]
    return max(measured, key=_reading).configuration if measured else otherwise
