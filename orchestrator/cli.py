"""The command line: every verb in the order of a user's day; the only place that exits."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from trackers.problems import TrackerProblem

from .errors import RepeakError

__all__ = ["cli", "main"]


_VERBS = {
    "init": "cli_setup:init",
    "doctor": "cli_setup:doctor",
    "plan": "cli_study:plan",
    "tune": "cli_study:tune",
    "retune": "cli_retune:retune",
    "show": "cli_look:show",
    "ui": "cli_look:ui",
    "compare": "cli_compare:compare_command",
    "attribute": "cli_compare:attribute",
    "report": "cli_compare:report",
    "audit": "cli_audit:audit",
    "measure": "cli_audit:measure",
    "export": "cli_export:export_command",
    "reproduce": "cli_export:reproduce_command",
    "import": "cli_export:import_command",
    "check": "cli_keep:check",
    "schedule": "cli_keep:schedule",
    "sync": "cli_keep:sync_command",
    "clean": "cli_keep:clean",
}


class Verbs(click.Group):
    """Each verb is imported when it is asked for: what they all need together takes seconds."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module, _, name = _VERBS.get(cmd_name, "").partition(":")
        found = getattr(import_module(f".{module}", __package__), name) if module else None
        return found if isinstance(found, click.Command) else None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="repeak")
def cli() -> None:
    """Tune vLLM serving, and find the peak again whenever the engine moves.

    \b
    A first day:   repeak init "vllm serve MODEL ..." > plan.yaml
                   repeak plan plan.yaml      what would run, how long; launches nothing
                   repeak tune plan.yaml      measure
                   repeak ui                  look
    """  # noqa: D301 - \b is click's mark for text to leave alone


def main(argv: list[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 to be fixed by the user, 2 usage; see the README for the rest."""
    try:
        code = cli.main(args=argv, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (RepeakError, TrackerProblem) as error:
        click.echo(f"repeak: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
        sys.exit(getattr(error, "exit_code", 1))
    sys.exit(code if isinstance(code, int) else 0)
