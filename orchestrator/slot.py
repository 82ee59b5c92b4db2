"""EngineSlot: the one small protocol through which the loop sees an engine, and the orders that cross it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import Field

from trackers.records import Check, Failure, Frozen, Launch, Measurement

from .engine_environment import EngineEnvironment
from .workload import Workload

__all__ = ["EngineSlot", "LaunchOrder", "LaunchReport"]


class LaunchOrder(Frozen):
    """All that a slot needs to start one engine; plain data, so that it crosses to another process.

    `args` follow `vllm serve`; `env` holds what this configuration and the plan set, not the machine's own.
    `settings` are the requested values that the engine's own echo is held against.
    """

    environment: EngineEnvironment
    model: str
    args: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    run_dir: Path
    run_id: str
    trial_id: str
    launch: int
    start_timeout_s: float
    drafter: str = "none"
    settings: dict[str, str] = Field(default_factory=dict)
    prefix_caching: bool | None = None
    isolate: bool = False


class LaunchReport(Frozen):
    """What came of a launch: the record of it, and the URL and model name where it is ready."""

    launch: Launch
    base_url: str | None = None
    model: str | None = None
    live: dict[str, str] = Field(default_factory=dict)


class EngineSlot(Protocol):
    """At most one engine; every call is bounded and returns or raises a RepeakError."""

    def preflight(self, order: LaunchOrder) -> Failure | None:
        """Why the engine's own configuration refuses the order; None also where it cannot be asked."""
        ...

    def launch(self, order: LaunchOrder) -> LaunchReport:
        """Start an engine and prove it ours; a failure to start is in the report, not raised."""
        ...

    def measure(self, workload: Workload, window: int) -> Measurement:
        """One window against the running engine. Raises EngineFailed when it died, MeasurementFailed."""
        ...

    def check_gates(self, names: Sequence[str]) -> tuple[Check, ...]:
        """Ask the running engine for each capability; the checks stand in the closed launch as well."""
        ...

    def stop(self) -> Launch | None:
        """End the engine and confirm that nothing of it is left; the closed record, None without an engine."""
        ...

    def status(self) -> str:
        """What the slot does right now, for the screen."""
        ...

    def abort(self) -> None:
        """From another thread: make a running call end soon, with the engine gone."""
        ...
