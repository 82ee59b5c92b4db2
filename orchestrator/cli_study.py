"""Commands that study: plan and tune."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from .errors import Interrupted, PlanError
from .home import home
from .local_slot import LocalSlot
from .machine_lock import machine_held
from .plan_file import load_plan, plan_schema
from .preview import preview, preview_text
from .rehearsal import rehearsed
from .session import tune_plan
from .slots import LocalSlots

__all__ = ["plan", "tune"]

_PLAN = click.Path(path_type=Path)


@click.command()
@click.argument("plan_path", metavar="PLAN", type=_PLAN, required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of a plan, for editors.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def plan(plan_path: Path | None, *, schema: bool, as_json: bool) -> None:
    """Show what a plan would run: environments, commands, launches and time. Launches nothing.

    \b
    Example:  repeak plan plan.yaml
              repeak plan --schema > plan.schema.json
    """  # noqa: D301
    if schema:
        click.echo(json.dumps(plan_schema(), indent=1))
        return
    if plan_path is None:
        raise click.UsageError("Name a plan, or ask for --schema.")
    shown = preview(load_plan(plan_path))
    click.echo(json.dumps(shown, indent=1) if as_json else preview_text(shown), nl=as_json)


@click.command()
@click.argument("plan_path", metavar="PLAN", type=_PLAN)
@click.option("--address", help="Join this Ray cluster instead of starting a local one.")
@click.option("--rehearse", is_flag=True, help="On the simulated engine: what a study does, in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for machines.")
def tune(plan_path: Path, *, address: str | None, rehearse: bool, as_json: bool) -> int:
    """Search each engine of a plan, confirm the best, and say whether the peak moved. Resumes by itself.

    \b
    Example:  repeak tune examples/quickstart-cpu.yaml
    """  # noqa: D301
    if not plan_path.exists():
        raise PlanError(f"There is no plan {plan_path}.", 'Write one: repeak init "vllm serve ..." -o plan.yaml')
    wanted = load_plan(plan_path)
    if rehearse:
        slots = LocalSlots(wanted.slots.count, make=LocalSlot)
        result = tune_plan(rehearsed(wanted), slots=slots)
    elif address:
        result = tune_plan(wanted, address=address)
    else:
        with machine_held(home(), " ".join(["repeak", *sys.argv[1:]]), partial(click.echo, err=True)):
            result = tune_plan(wanted)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=1))
    else:
        click.echo(result.text())
    if result.interrupted:
        raise Interrupted("Stopped; everything measured is kept.", f"repeak tune {plan_path} goes on from here.")
    return result.exit_code
