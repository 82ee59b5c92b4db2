"""Run one trial: launch, measure windows until the rule settles, stop, and say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from search_spaces.configuration import Configuration
from search_spaces.drafters import speculative_config
from trackers.entries import TrialStarted
from trackers.records import (
    Estimate,
    Failure,
    Launch,
    Measurement,
    Role,
    StackFingerprint,
    TrialRecord,
    TrialState,
)

from .clock import Clock
from .errors import EngineFailed, Interrupted, MeasurementFailed, SlotLost
from .gates import LAUNCH_PROOFS, is_gate
from .launch_noise import LaunchNoise
from .slot import EngineSlot, LaunchOrder
from .stability import StabilityRule, estimate, judge_launches, judge_windows, launch_values
from .workload import Workload

__all__ = ["Remember", "TrialPlan", "run_trial"]

_UNSCORED = 6

Noise = Callable[[str, str], LaunchNoise]
"""(workload, metric) -> the launch noise known for it on this machine and model."""


class Remember(Protocol):
    """Where each finding goes before anything else hears of it."""

    def launch(self, trial_id: str, launch: Launch) -> None: ...

    def window(self, trial_id: str, window: Measurement) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What is to be measured, and how long to go on: everything `run_trial` holds fixed."""

    trial_id: str
    study: str
    number: int
    role: Role
    configuration: Configuration
    fingerprint: StackFingerprint
    workloads: Sequence[Workload]
    metric: str
    rule: StabilityRule
    noise: Noise
    order: Callable[[int], LaunchOrder]
    gates: Sequence[str] = ()
    beside: str = ""
    ran_before: bool = False  # this configuration, on this stack: then its engine is not asked about it first
    say: Callable[[str], None] = field(default=lambda _: None)

    def start(self, at: float) -> TrialStarted:
        """The note of it that is on disk before the engine starts."""
        return TrialStarted(
            trial_id=self.trial_id,
            study=self.study,
            number=self.number,
            role=self.role,
            configuration=self.configuration,
            fingerprint=self.fingerprint,
            workloads=tuple(workload.ref for workload in self.workloads),
            started_at=at,
            beside=self.beside,
        )


@dataclass(slots=True)
class _Run:
    """The trial so far: the only state that changes while it runs."""

    launches: list[Launch] = field(default_factory=list)
    windows: list[Measurement] = field(default_factory=list)
    live: dict[str, str] = field(default_factory=dict)
    unscored: int = 0


def run_trial(plan: TrialPlan, slot: EngineSlot, remember: Remember, *, clock: Clock) -> TrialRecord:
    """Measure one configuration until its numbers settle.

    The engine is stopped, and confirmed gone, before the record is made; a transient failure to start is
    tried once more. SlotLost is turned into a record of state `lost` (its finished windows kept).
    """
    run = _Run()
    started, began = clock.time(), clock.monotonic()
    verdict: tuple[TrialState, str] | None = None
    try:
        verdict = _refused(plan, slot) or _launches(plan, slot, remember, run)
    except Interrupted as stop:
        verdict = ("interrupted", stop.message)
    except SlotLost as lost:
        verdict = ("lost", lost.message)
    estimates = _estimates(plan, run)
    state, reason = verdict or _judge(plan, run, estimates)
    items = {**plan.fingerprint.items, **run.live}
    return TrialRecord(
        trial_id=plan.trial_id,
        study=plan.study,
        number=plan.number,
        role=plan.role,
        state=state,
        reason=reason,
        configuration=plan.configuration,
        fingerprint=StackFingerprint(items=items),
        workloads=tuple(workload.ref for workload in plan.workloads),
        launches=tuple(run.launches),
        windows=tuple(run.windows),
        estimates=estimates if state == "measured" else {},
        started_at=started,
        duration_s=clock.monotonic() - began,
        beside=plan.beside,
    )


def _refused(plan: TrialPlan, slot: EngineSlot) -> tuple[TrialState, str] | None:
    """What the engine itself says against the configuration, before a launch is paid for."""
    if plan.ran_before:
        return None
    plan.say("preflight")
    failure = slot.preflight(plan.order(0))
    return ("refused", f"{failure.cause}: {failure.message}") if failure else None


def _launches(plan: TrialPlan, slot: EngineSlot, remember: Remember, run: _Run) -> tuple[TrialState, str] | None:
    """Launch until enough launches agree; the state where it is already decided, else None."""
    retried = False
    while True:
        number = len(run.launches)
        plan.say(f"launch {number + 1}: starting")
        report = slot.launch(plan.order(number))
        failure = report.launch.failure
        # On record while it runs, so that a run that dies now has still used this launch.
        remember.launch(plan.trial_id, report.launch)
        try:
            if failure is None:
                run.live.update(report.live)
                failure = _measure(plan, slot, remember, run, number)
                if failure is None:
                    plan.say(f"launch {number + 1}: proofs and gates")
                    slot.check_gates((*_proofs(plan), *plan.gates))
        finally:
            closed = report.launch
            try:
                closed = slot.stop() or closed
            finally:
                # Where its worker died the launch ends as it began: it was paid for all the same. One that could not
                # be measured to its end is no replicate, though its engine lived.
                closed = closed.model_copy(update={"failure": closed.failure or failure})
                run.launches.append(closed)
                remember.launch(plan.trial_id, closed)
        failure = closed.failure
        if failure is not None:
            if failure.kind == "transient" and not retried:
                retried = True
                continue
            return "engine_failed", f"{failure.cause}: {failure.message}"
        if any(window.disproved for window in run.windows) or any(
            check.passed is False and not is_gate(check) for check in closed.checks
        ):
            return None
        if _settled(plan, run):
            return None


def _proofs(plan: TrialPlan) -> tuple[str, ...]:
    """Of every launch; what is accepted by lot, not by the model, cannot repeat."""
    drafting = speculative_config(plan.configuration.values)
    return () if drafting.get("rejection_sample_method") == "synthetic" else LAUNCH_PROOFS


def _measure(plan: TrialPlan, slot: EngineSlot, remember: Remember, run: _Run, launch: int) -> Failure | None:
    """Windows in rounds over the workloads, so that a drifting host spreads over all of them.

    A failure stands for the window that could not be taken; the slot's own word on it comes with `stop`.
    """
    series: dict[str, list[float]] = {workload.name: [] for workload in plan.workloads}
    settled: set[str] = set()
    window = 0
    while len(settled) < len(series):
        for workload in plan.workloads:
            if workload.name in settled:
                continue
            plan.say(f"launch {launch + 1}: {workload.name} window {window + 1}")
            try:
                measured = slot.measure(workload, window)
            except EngineFailed as error:
                return Failure(cause="crashed_under_load", kind="transient", message=error.message)
            except MeasurementFailed as error:
                return Failure(cause="not_measurable", kind="transient", message=error.message)
            measured = measured.model_copy(update={"launch": launch})
            remember.window(plan.trial_id, measured)
            if _client_bound(measured) and run.unscored < _UNSCORED:
                # Our own client was starved, which says nothing of the engine: never scored, taken again.
                run.unscored += 1
                continue
            run.windows.append(measured)
            if measured.disproved or plan.metric not in measured.metrics:
                settled.update(series)
                break
            series[workload.name].append(measured.metrics[plan.metric])
            if judge_windows(series[workload.name], plan.rule).decision == "settled":
                settled.add(workload.name)
        window += 1
    return None


def _client_bound(window: Measurement) -> bool:
    return {check.name for check in window.disproved} == {"client_bound"}


def _series(run: _Run, workload: str, metric: str) -> list[tuple[float, ...]]:
    """The windows' values by launch, launches that failed left out."""
    good = {launch.launch for launch in run.launches if launch.failure is None}
    by_launch = launch_values(run.windows, workload, metric)
    return [values for launch, values in by_launch.items() if launch in good]


def _estimates(plan: TrialPlan, run: _Run) -> dict[str, Estimate]:
    """`workload/metric` -> its estimate over launches, for every metric that every launch gave."""
    found: dict[str, Estimate] = {}
    for workload in plan.workloads:
        names = {name for window in run.windows if window.workload.name == workload.name for name in window.metrics}
        for metric in sorted(names):
            series = _series(run, workload.name, metric)
            if series and all(value > 0 for values in series for value in values):
                noise = plan.noise(workload.name, metric)
                found[f"{workload.name}/{metric}"] = estimate(series, plan.rule, noise)
    return found


def _settled(plan: TrialPlan, run: _Run) -> bool:
    """Whether every workload has launches enough, and they agree."""
    for workload in plan.workloads:
        series = _series(run, workload.name, plan.metric)
        noise = plan.noise(workload.name, plan.metric)
        if series and judge_launches(series, plan.rule, noise) == "repeat":
            return False
    return True


def _judge(plan: TrialPlan, run: _Run, estimates: dict[str, Estimate]) -> tuple[TrialState, str]:
    """The state of a trial whose launches all ran, with the reason in words."""
    checks = [check for launch in run.launches for check in launch.checks if check.passed is False]
    failed = [check for check in checks if not is_gate(check)]
    failed += [check for window in run.windows for check in window.disproved]
    if failed:
        names = sorted({check.name for check in failed})
        state: TrialState = "client_bound" if names == ["client_bound"] else "disproved"
        return state, "; ".join(f"{check.name}: {check.detail}" for check in failed[:3])
    keys = [f"{workload.name}/{plan.metric}" for workload in plan.workloads]
    missing = [key for key in keys if key not in estimates]
    if missing:
        return "disproved", f"no {plan.metric} was measured for {', '.join(missing)}"
    endings = {key: estimates[key].ending for key in keys}
    bad = [f"{key} {ending}" for key, ending in endings.items() if ending in ("drifting", "bimodal")]
    if bad:
        return "unsettled", "; ".join(bad)
    gates = dict.fromkeys(f"{check.name} fails" for check in checks)
    return "measured", "; ".join([*(f"{key} {ending}" for key, ending in endings.items()), *gates])
