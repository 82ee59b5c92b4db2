"""The command line: every verb in the order of a user's day; the only place that exits."""

from __future__ import annotations

import sys

import click

from trackers.problems import TrackerProblem

from .cli_audit import audit, measure
from .cli_compare import attribute, compare_command, report
from .cli_export import export_command, import_command, reproduce_command
from .cli_keep import check, clean, schedule, sync_command
from .cli_look import show, ui
from .cli_retune import retune
from .cli_setup import doctor, init
from .cli_study import plan, tune
from .errors import RepeakError

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="repeak")
def cli() -> None:
    """Tune vLLM serving, and find the peak again whenever the engine moves.

    \b
    A first day:   repeak init "vllm serve MODEL ..." > plan.yaml
                   repeak plan plan.yaml      what would run, how long; launches nothing
                   repeak tune plan.yaml      measure
                   repeak ui                  look
    """  # noqa: D301 - \b is click's mark for text to leave alone


_LOOK = (show, ui, compare_command, attribute, report, audit, measure)
_USE = (export_command, reproduce_command, import_command)
_KEEP = (check, schedule, sync_command, clean)
for command in (init, doctor, plan, tune, retune, *_LOOK, *_USE, *_KEEP):
    cli.add_command(command)


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
