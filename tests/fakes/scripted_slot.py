"""A slot that answers from a script: for the loop's own logic, where no engine is the point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.errors import EngineFailed, RepeakError
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.workload import Workload
from trackers.records import Check, Failure, Launch, Measurement

Value = Callable[[LaunchOrder, Workload, int], float | RepeakError | Check]


class ScriptedSlot:
    """`values` gives each window's decode_tok_s, an error to raise, or a check that fails it."""

    def __init__(self, values: Value, failures: Callable[[LaunchOrder], Failure | None] = lambda _: None) -> None:
        self._values, self._failures = values, failures
        self.order: LaunchOrder | None = None
        self.launched: list[LaunchOrder] = []
        self.asked: list[str] = []
        self.preflown: list[LaunchOrder] = []
        self._crash: Failure | None = None

    def preflight(self, order: LaunchOrder) -> Failure | None:
        self.preflown.append(order)
        return None

    def launch(self, order: LaunchOrder) -> LaunchReport:
        self.order, self._crash = order, None
        self.launched.append(order)
        return LaunchReport(launch=_as_launched(order, self._failures(order)))

    def measure(self, workload: Workload, window: int) -> Measurement:
        assert self.order is not None
        value = self._values(self.order, workload, window)
        if isinstance(value, EngineFailed):
            self._crash = Failure(cause="crashed_under_load", kind="infeasible", message=value.message)
        if isinstance(value, RepeakError):
            raise value
        bad = (value,) if isinstance(value, Check) else ()
        return Measurement(
            workload=workload.ref,
            launch=self.order.launch,
            window=window,
            started_at=float(window),
            duration_s=1.0,
            completed=1,
            failed=0,
            total_input_tokens=10,
            total_output_tokens=10,
            metrics={} if bad else {"decode_tok_s": float(value)},  # type: ignore[arg-type]
            checks=bad,
        )

    def check_gates(self, names: Sequence[str]) -> tuple[Check, ...]:
        self.asked += names
        return ()

    def stop(self) -> Launch | None:
        order, self.order = self.order, None
        if order is None:
            return None
        return _as_launched(order, self._crash or self._failures(order))

    def status(self) -> str:
        return "scripted"

    def abort(self) -> None: ...


def _as_launched(order: LaunchOrder, failure: Failure | None) -> Launch:
    argv, ready = ("python", "serve", order.model, *order.args), None if failure else 1.0
    return Launch(launch=order.launch, started_at=0.0, ready_s=ready, argv=argv, failure=failure)


class OneSlot:
    """A pool of one scripted slot."""

    count = 1

    def __init__(self, slot: ScriptedSlot) -> None:
        self.slot, self.leases = slot, 0

    @contextmanager
    def lease(self, engine: str) -> Iterator[ScriptedSlot]:
        self.leases += 1
        yield self.slot

    def abort(self) -> None: ...

    def kill(self) -> None: ...

    def status(self) -> dict[str, str]:
        return {}

    def close(self) -> None: ...
