"""Reproduce: one trial launched again as it was, and whether its number lies within the interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from search_spaces.configuration import Configuration, Scalar
from trackers.records import Frozen, TrialRecord

from .candidates import Target, candidates, noise_of
from .errors import Interrupted, PlanError
from .kept_plan import keep_plan
from .launch_noise import LaunchNoise, mean_log
from .local_slot import LocalSlot
from .plan import TuningPlan
from .prepare import missing_environments
from .session import Result, journal_directory, tune_plan
from .slots import LocalSlots, Slots
from .study import Bench, Study, attempt
from .tune import Outcome, conclude

__all__ = ["Again", "Reproduced", "reproduce", "slots_of"]


class Again(Frozen):
    """One workload's number now over then: `low` to `high` is where another launch lands 95 of 100 times."""

    workload: str
    then: float
    now: float
    ratio: float
    low: float
    high: float
    verdict: Literal["within", "outside"]


class Reproduced(Frozen):
    """`changed` names what is not as it was: flag, traffic or stack item -> (then, now)."""

    trial: str
    again: str
    state: str
    reason: str
    metric: str
    changed: dict[str, tuple[str | None, str | None]]
    numbers: tuple[Again, ...] = ()

    @property
    def verdict(self) -> Literal["within", "outside", "not measured"]:
        if not self.numbers:
            return "not measured"
        return "within" if all(one.verdict == "within" for one in self.numbers) else "outside"


def slots_of(plan: TuningPlan) -> Slots | None:
    """In-process slots for a rehearsed plan; None where engines are real, which is Ray's."""
    simulated = all(engine.simulated for engine in plan.engines)
    return LocalSlots(plan.slots.count, make=LocalSlot) if simulated else None


def reproduce(
    trial: TrialRecord,
    plan: TuningPlan,
    engine: str,
    *,
    changes: Mapping[str, Scalar] | None = None,
    address: str | None = None,
) -> tuple[Reproduced, Result]:
    """Launch a measured trial's configuration once more on its engine, with the plan's own workloads.

    Args:
        trial: Measured.
        plan: The one it came from.
        engine: Its study's name in that plan.
        changes: Knobs or flags to set otherwise.
        address: Of a Ray cluster to join.

    Raises:
        PlanError: The trial was not measured, or the plan has no such engine any more.
    """
    if trial.state != "measured":
        raise PlanError(f"Trial {trial.trial_id} is {trial.state}: it has no number.", "Name a measured one.")
    gone = {spec.name for spec in missing_environments(plan)}
    kept = [s for s in plan.engines if s.name not in gone or f"{engine} ".startswith(f"{s.name} ")]
    made: list[tuple[TrialRecord, dict[str, LaunchNoise]]] = []

    def again(studies: Sequence[Study], bench: Bench) -> Outcome:
        study = next((one for one in studies if one.engine == engine), None)
        if study is None:
            known = ", ".join(one.engine for one in studies)
            raise PlanError(f"The plan has no engine {engine!r} any more.", f"It has {known}.")
        configuration = _changed(trial.configuration, study, changes or {})
        record = attempt(study, bench, configuration, "reproduce")
        if record.state in ("unsettled", "client_bound"):
            # The machine was busy, which says nothing of the number: once more.
            record = attempt(study, bench, configuration, "reproduce")
        metric, precision, key = plan.objective.metric, plan.precision, trial.configuration.key
        noises = {n: bench.memory.noise(n, metric, precision, but=key) for n in plan.workload_names}
        made.append((record, noises))
        return conclude(studies, plan, bench.memory)

    try:
        result = tune_plan(
            plan.model_copy(update={"engines": tuple(kept)}),
            address=address,
            slots=slots_of(plan),
            work=again,
        )
    finally:
        keep_plan(plan, journal_directory(plan))
    if not made:
        raise Interrupted("Stopped before it was measured.", "The same command starts it again.")
    return _judged(trial, *made[0], plan), result


def _changed(configuration: Configuration, study: Study, changes: Mapping[str, Scalar]) -> Configuration:
    """A knob of the space takes the value itself; anything else is a flag of the engine."""
    knobs = {knob.name for knob in study.space.knobs}
    values = {name if name in knobs or "." in name else f"serve.{name}": v for name, v in changes.items()}
    return Configuration(values={**configuration.values, **values})


def _judged(then: TrialRecord, now: TrialRecord, noises: Mapping[str, LaunchNoise], plan: TuningPlan) -> Reproduced:
    metric, rule, numbers = plan.objective.metric, plan.precision.rule(), []
    for workload in plan.workload_names:
        target = Target(name=workload, metric=metric, workloads=(workload,))
        sides = [candidates([one], target, rule, in_turn=one.role == "in_turn") for one in (then, now)]
        if not all(sides):
            continue
        old, new = (side[0].evidence for side in sides)
        own = noise_of([side[0] for side in sides], noises[workload].sd, noises[workload].dof)
        # One interval each, so widened that all of them hold together.
        half = own.t(1 - 0.05 / len(plan.workloads)) * own.sd * math.sqrt(1 / len(old) + 1 / len(new))
        before, after = (math.exp(mean_log(values)) for values in (old, new))
        inside = abs(math.log(after / before)) <= half
        numbers.append(
            Again(
                workload=workload,
                then=before,
                now=after,
                ratio=after / before,
                low=math.exp(-half),
                high=math.exp(half),
                verdict="within" if inside else "outside",
            )
        )
    return Reproduced(
        trial=then.trial_id,
        again=now.trial_id,
        state=now.state,
        reason=now.reason,
        metric=metric,
        changed={**_flags_moved(then, now), **_traffic_moved(then, now), **then.fingerprint.diff(now.fingerprint)},
        numbers=tuple(numbers),
    )


def _flags_moved(then: TrialRecord, now: TrialRecord) -> dict[str, tuple[str | None, str | None]]:
    """Flags that were launched otherwise than then."""
    old, new = (_flags(record.launches[-1].argv) if record.launches else {} for record in (then, now))
    names = sorted(old.keys() | new.keys())
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _traffic_moved(then: TrialRecord, now: TrialRecord) -> dict[str, tuple[str | None, str | None]]:
    """Workloads whose content is not what it was: their numbers are of something else."""
    old, new = ({ref.name: ref.sha256[:12] for ref in record.workloads} for record in (then, now))
    return {f"workload {n}": (old.get(n), new.get(n)) for n in sorted(old.keys() | new) if old.get(n) != new.get(n)}


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Flag -> its value, joined; `--no-x` and `--x` under one name."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            head, _, text = word.partition("=")
            off = head.startswith("--no-")
            name = f"--{head[5:]}" if off else head
            found[name] = text or ("off" if off else "on")
        elif name:
            found[name] = word if found[name] == "on" else f"{found[name]} {word}"
    return found
