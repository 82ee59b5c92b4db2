"""Commands that look: show and ui."""

from __future__ import annotations

import click

__all__ = ["show", "ui"]


@click.command()
def show() -> None:
    """Later."""


@click.command()
def ui() -> None:
    """Later."""
