"""Commands that set up: init and doctor."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .doctor import examine
from .errors import PlanError
from .init_plan import init_plan

__all__ = ["doctor", "init"]


@click.command()
@click.argument("serve_line", required=False)
@click.option("-e", "--engine", "engines", multiple=True, help="An engine, such as vllm==0.32.0; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write here; never over a file.")
def init(serve_line: str | None, engines: tuple[str, ...], output: Path | None) -> None:
    """Write a plan from the `vllm serve` line you run today.

    \b
    Example:  repeak init "vllm serve Qwen/Qwen3-8B --max-num-seqs 64" -e vllm==0.32.0 -o plan.yaml
    """  # noqa: D301
    text = init_plan(serve_line or "", engines=engines)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise PlanError(f"{output} exists already.", "Name another file, or remove this one.")
    output.write_text(text, encoding="utf-8")
    click.echo(f"wrote {output}: edit it, then `repeak plan {output}`", err=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(*, as_json: bool) -> int:
    """Check the installation, the host and the stores, and say how to fix what is missing.

    \b
    Example:  repeak doctor
    """  # noqa: D301
    findings = examine()
    if as_json:
        click.echo(json.dumps([finding.model_dump() for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(f"{finding.state:8} {finding.name:15} {finding.detail}")
            if finding.fix:
                click.echo(f"{'':24} {finding.fix}")
    return 1 if any(finding.state == "broken" for finding in findings) else 0
