"""Commands that look: show and ui."""

from __future__ import annotations

import json
from typing import Any

import click

from trackers.mlflow_layout import experiment_name

from .clock import SystemClock
from .home import home, store_uri
from .library import Shelf, find_plan, find_trial, glances, plan_names, shelves
from .mlflow_ui import experiment_link, find_experiment, serve_ui
from .tables import history, trial_page, trials

__all__ = ["show", "ui"]

_MOST = 300  # trials of one study in a table


@click.command()
@click.argument("what", required=False)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def show(what: str | None, *, as_json: bool) -> None:
    """Show a plan's trials, one trial, or without an argument the history of peaks.

    \b
    Example:  repeak show
              repeak show quickstart-cpu
              repeak show 3f9a1c2b4d5e-0003
    """  # noqa: D301
    plan = find_plan(what) if what else None
    if what and plan is None:
        _, record = find_trial(what)
        click.echo(record.model_dump_json(indent=1) if as_json else trial_page(record), nl=as_json)
        return
    names = [plan] if plan else plan_names()
    found = {name: (shelves if as_json else glances)(name) for name in names}
    if as_json:
        click.echo(json.dumps({name: [_plain(shelf) for shelf in all_] for name, all_ in found.items()}, indent=1))
        return
    if plan is None:
        click.echo(history(found) or "No study yet: `repeak tune PLAN`.\n", nl=False)
        return
    for shelf in found[plan]:
        workloads = list(dict.fromkeys(ref.name for record in shelf.records for ref in record.workloads))
        metric = _metric(shelf)
        click.echo(f"{shelf.opened.facts.get('engine', '')}  study {shelf.opened.study}  {metric}")
        click.echo(trials(shelf.records[-_MOST:], metric, workloads))
        if (left := len(shelf.records) - _MOST) > 0:
            click.echo(f"{left} earlier trials: --json has them all; `repeak report` the best.\n")


@click.command()
@click.option("--port", type=int, default=5000, show_default=True, help="On loopback.")
@click.option("--plan", "name", help="Open this plan's experiment; the latest one otherwise.")
def ui(port: int, name: str | None) -> None:
    """Open MLflow on loopback, at the latest experiment. Ends with Ctrl-C.

    \b
    Example:  repeak ui
    """  # noqa: D301
    names = [name] if name else plan_names()[:1]
    uri = store_uri(None)
    if uri.startswith(("http://", "https://")):
        click.echo(f"The store is a server already: {uri}")
        return
    log = home() / "mlflow-ui.log"
    with serve_ui(uri, home() / "mlartifacts", log, SystemClock(), port=port) as (base, process):
        found = None
        for shelf in [shelf for plan in names for shelf in shelves(plan)][-1:]:
            found = find_experiment(base, experiment_name(shelf.opened))
        click.echo(experiment_link(base, found))
        click.echo(f"Ctrl-C ends it; its log: {log}", err=True)
        try:
            process.wait()
        except KeyboardInterrupt:
            click.echo("", err=True)


def _metric(shelf: Shelf) -> str:
    """The metric of the study's peaks; decode speed where it has none yet."""
    for peak in (shelf.closed.peak or {}).values() if shelf.closed else ():
        return str(peak["target"]["metric"])
    return "decode_tok_s"


def _plain(shelf: Shelf) -> dict[str, Any]:
    return {
        "study": shelf.opened.model_dump(mode="json"),
        "closed": shelf.closed.model_dump(mode="json") if shelf.closed else None,
        "trials": [record.model_dump(mode="json", exclude={"windows"}) for record in shelf.records],
    }
