"""How much the client itself took: the delays of its event loop and of the scheduler, measured as it runs."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ClientWatch", "share_of_result"]


class ClientWatch(selectors.DefaultSelector):
    """A selector that counts what the loop does between two waits; two clock readings a turn.

    An event that arrives while the loop is busy waits for the rest of that turn: over a window, the mean wait
    of an event at any moment is the sum of squared busy times over twice the window.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start()

    def start(self) -> None:
        self.began_ns = self._since_ns = time.monotonic_ns()
        self._busy_ns = self._squares = self._longest_ns = 0
        self._cpu = time.thread_time()
        self._queued = _run_queue()

    def woken_ns(self) -> int:
        """When the loop last woke: what it reads in this turn had arrived by then."""
        return self._since_ns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        busy = time.monotonic_ns() - self._since_ns
        self._busy_ns += busy
        self._squares += busy * busy
        self._longest_ns = max(self._longest_ns, busy)
        ready = super().select(timeout)
        self._since_ns = time.monotonic_ns()
        return ready

    def read(self, late_ns: Sequence[int], turnaround_ns: Sequence[int]) -> dict[str, float]:
        """Shares of the time since `start`, and delays in ms.

        Args:
            late_ns: How late each request of an open loop was sent.
            turnaround_ns: From an answer's end to the next request of the same slot, in a closed loop.
        """
        elapsed = max(1, time.monotonic_ns() - self.began_ns)
        delay, turns = (now - then for now, then in zip(_run_queue(), self._queued, strict=True))
        return {
            "cpu_share": (time.thread_time() - self._cpu) / (elapsed / 1e9),
            "busy_share": self._busy_ns / elapsed,
            "lag_mean_ms": (self._squares / (2 * elapsed) + delay / max(1, turns)) / 1e6,
            "lag_max_ms": self._longest_ns / 1e6,
            "send_lateness_mean_ms": sum(late_ns) / max(1, len(late_ns)) / 1e6,
            "send_lateness_max_ms": max(late_ns, default=0) / 1e6,
            "turnaround_mean_ms": sum(turnaround_ns) / max(1, len(turnaround_ns)) / 1e6,
        }


def _run_queue(path: Path = Path("/proc/thread-self/schedstat")) -> tuple[int, int]:
    """Nanoseconds this thread was ready but not running, and how often it ran; zeros where it is not told."""
    try:
        _, delay, turns = map(int, path.read_text().split())
    except (OSError, ValueError):
        return 0, 0
    return delay, turns


def share_of_result(client: dict[str, float], metrics: dict[str, float]) -> float:
    """The largest part that a client's delay has in the number it touches, as a fraction."""
    lag, late, turn = (client[name] for name in ("lag_mean_ms", "send_lateness_mean_ms", "turnaround_mean_ms"))
    first, whole = metrics["median_ttft_ms"], metrics["median_e2el_ms"]
    return max(lag / max(first, 1e-6), (lag + late + turn) / max(whole, 1e-6))
