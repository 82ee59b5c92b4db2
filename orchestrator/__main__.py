"""`python -m orchestrator` is `repeak`."""

from __future__ import annotations

from .cli import main

main()
