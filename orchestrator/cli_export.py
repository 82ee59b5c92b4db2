"""Commands that use and keep what was found: export, reproduce and import."""

from __future__ import annotations

import re
from pathlib import Path

import click

from search_spaces.configuration import Scalar

from .compare import peaks_of
from .errors import Interrupted, PlanError
from .export import FORMATS, as_line, export, k_schedule, serving
from .home import home
from .imports import import_results
from .kept_plan import find_any_plan, kept_plan
from .library import Shelf, find_plan, find_trial, plan_names, shelves
from .reproduce import Reproduced, reproduce
from .serve_line import parse_serve_line

__all__ = ["export_command", "import_command", "reproduce_command"]


@click.command("export")
@click.argument("plan_name", metavar="PLAN")
@click.option("--as", "kind", type=click.Choice(FORMATS), default="serve", show_default=True)
@click.option("--engine", help="Whose peak.  [default: the plan's last]")
@click.option("--target", help="Of which target (a workload, or the joined one).  [default: the first]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here.")
def export_command(plan_name: str, *, kind: str, engine: str | None, target: str | None, output: Path | None) -> None:
    """Give a peak as a serve line, vLLM's YAML, a compose service, a systemd unit, or k by batch size.

    \b
    Example:  repeak export quickstart-cpu
              repeak export plan.yaml --as yaml -o serve.yaml && vllm serve --config serve.yaml
    """  # noqa: D301
    name = find_plan(plan_name)
    if name is None:
        known = ", ".join(plan_names()) or "none yet"
        raise PlanError(f"No plan {plan_name!r} ran here.", f"`repeak tune PLAN` first. There are: {known}.")
    shelf, wanted = _with_peak(name, engine, target)
    plan, peak = kept_plan(name), peaks_of(shelf)[wanted]
    if not peak.confirmed:
        click.echo("unconfirmed: no fresh launch speaks for this peak; `repeak tune` goes on", err=True)
    text = (
        "# " + (one := k_schedule(shelf, peak, plan)).title + "\n" + as_line(one)
        if kind == "schedule"
        else export(serving(shelf, peak, plan), kind)
    )
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"wrote {output}", err=True)


def _with_peak(name: str, engine: str | None, target: str | None) -> tuple[Shelf, str]:
    """The latest study of that engine, and the target, that have a peak."""
    have = {s.opened.facts.get("engine", s.opened.study): s for s in shelves(name) if peaks_of(s)}
    if not have or (engine and engine not in have):
        known = ", ".join(have) or "none yet: `repeak tune` goes on"
        raise PlanError(f"{name} has no peak{f' on {engine}' if engine else ''}.", f"Peaks: {known}.")
    shelf = have[engine or list(have)[-1]]
    targets = list(peaks_of(shelf))
    if target and target not in targets:
        raise PlanError(f"{name} has no peak of {target!r}.", f"Peaks: {', '.join(targets)}.")
    if target is None and len(targets) > 1:
        click.echo(f"of {targets[0]}; others: {', '.join(targets[1:])} (--target)", err=True)
    return shelf, target or targets[0]


@click.command("reproduce")
@click.argument("trial")
@click.option("--plan", "plan_name", help="Another plan than the one kept with the trial (a name or file).")
@click.option("--set", "sets", multiple=True, help="A knob or flag to change, NAME=VALUE; repeatable.")
@click.option("--address", help="Join this Ray cluster instead of starting a local one.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def reproduce_command(
    trial: str, *, plan_name: str | None, sets: tuple[str, ...], address: str | None, as_json: bool
) -> int:
    """Launch a trial again, in its environment, and say whether its number is within the interval.

    \b
    Example:  repeak reproduce 3f9a1c2b4d5e-0003
              repeak reproduce 3f9a1c2b4d5e-0003 --set enforce_eager=false
    """  # noqa: D301
    shelf, record = find_trial(trial)
    if record.state == "imported":
        raise PlanError(f"Trial {record.trial_id} belongs to no study here.", "Only our own are launched again.")
    plan = find_any_plan(plan_name or shelf.opened.plan)
    found, result = reproduce(
        record, plan, shelf.opened.facts.get("engine", ""), changes=dict(map(_setting, sets)), address=address
    )
    click.echo(found.model_dump_json(indent=1) if as_json else _text(found))
    if result.interrupted:
        raise Interrupted("Stopped.", "The same command starts it again.")
    return 0 if found.numbers else 4


def _setting(text: str) -> tuple[str, Scalar]:
    """A flag's value is read as a serve line's would be."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise PlanError(f"--set {text!r} is not NAME=VALUE.", "Write it like max_num_seqs=16.")
    name = name.replace("-", "_")
    args = parse_serve_line(f"vllm serve x --{name}={_shell(value)}").args
    found = args.get(name, value)
    return name, found if isinstance(found, bool | int | float | str) else value


def _shell(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def _text(found: Reproduced) -> str:
    lines = [f"{found.verdict}  {found.trial}, launched again as {found.again}"]
    for one in found.numbers:
        bounds = f"{one.low:.3f} to {one.high:.3f} is launch noise"
        lines.append(
            f"  {one.workload}/{found.metric}: {one.then:.4g}, now {one.now:.4g}: "
            f"{one.ratio:.3f}x, {one.verdict} ({bounds})"
        )
    if not found.numbers:
        lines.append(f"  {found.state}: {found.reason}")
    lines += [f"  changed: {name}: {old} -> {new}" for name, (old, new) in found.changed.items()]
    if not found.changed:
        lines.append("  same flags, same stack")
    return "\n".join(lines)


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--plan", default="imported", show_default=True, help="Under which name to keep them.")
@click.option("--vllm", "version", default="unknown", help="The version that was measured: a result says none.")
@click.option("--machine", default="elsewhere", show_default=True, help="Where it was measured.")
def import_command(path: Path, *, plan: str, version: str, machine: str) -> None:
    """Bring results of `vllm bench serve` and `vllm bench sweep` into the journal. They are never a peak.

    \b
    Example:  repeak import results/ --vllm 0.26.0 --machine "NVIDIA H200"
    """  # noqa: D301
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}", plan):
        raise PlanError(f"{plan!r} cannot name a plan.", "Letters, digits, spaces, dots and dashes.")
    records = import_results(path, home() / "journals" / plan, plan=plan, version=version, machine=machine)
    click.echo(f"{len(records)} results are in {plan}: `repeak show {plan}`; `repeak sync` sends them to MLflow")
