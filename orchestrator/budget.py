"""Budget: launches and time of a study, counted once over all its runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from trackers.records import TrialRecord

from .clock import Clock
from .window import Window

__all__ = ["Budget"]


class Budget:
    """What is left, told by several threads; a launch is taken before it starts.

    Args:
        launches: At most this many engine starts over all runs; None without a limit.
        time_s: At most this much time over all runs; None without a limit.
        before: Records of earlier runs of the same plan: their launches and time are spent already.
        window: Of this run; nothing starts that would end past it.
        launch_s: What a launch with its windows takes, as far as it is known.
    """

    def __init__(
        self,
        *,
        launches: int | None,
        time_s: float | None,
        before: Iterable[TrialRecord],
        clock: Clock,
        window: Window | None = None,
        launch_s: float = 0.0,
    ) -> None:
        records = list(before)
        self.launches, self._time_s, self._clock = launches, time_s, clock
        self.window, self._launch_s = window or Window(clock), launch_s
        self.used = sum(len(record.launches) for record in records)
        self._used_s = sum(record.duration_s for record in records)
        self._started = clock.monotonic()
        self._lock = threading.Lock()

    def spent(self) -> str | None:
        """Why nothing more may start, in words; None while something is left."""
        if self.launches is not None and self.used >= self.launches:
            return f"the budget of {self.launches} launches is used"
        if self._time_s is not None and self.elapsed_s() >= self._time_s:
            return f"the budget of {self._time_s / 60:.0f} minutes is used"
        left = self.window.left_s()
        if 0 < left <= self._launch_s:
            return f"{left / 60:.0f} minutes are left of the window, a launch takes {self._launch_s / 60:.0f}"
        return self.window.ended or None

    def take(self) -> bool:
        """Reserve one launch; False when nothing is left."""
        with self._lock:
            if self.spent() is not None:
                return False
            self.used += 1
            return True

    def settle(self, reserved: int, launched: int) -> None:
        """After a trial: it took `launched` starts where `reserved` were taken for it."""
        with self._lock:
            self.used += launched - reserved

    def elapsed_s(self) -> float:
        return self._used_s + self._clock.monotonic() - self._started
