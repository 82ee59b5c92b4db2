"""Window: the time a run was given, to a moment on the wall clock and for a length, whatever is done to clocks."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo

from .clock import Clock

__all__ = ["HOUR", "Window", "moment"]

HOUR = r"([01]\d|2[0-3]):[0-5]\d"
_LOOK_S = 5.0


class Window:
    """What is left of the time given, the shorter of both counting.

    A clock set back does not lengthen it, as its length runs on the other clock; one set forward, or a machine
    that slept, ends it where the wall clock says so.
    """

    def __init__(self, clock: Clock, *, until: float | None = None, length_s: float | None = None) -> None:
        self._clock, self._until = clock, math.inf if until is None else until
        given = min(self._until - clock.time(), math.inf if length_s is None else length_s)
        self._end = clock.monotonic() + given
        self._stopped = False

    @property
    def ended(self) -> str:
        """Why nothing more may start; empty while something may."""
        stopped = "it was asked to stop" if self._stopped else ""
        return "the window of time has ended" if self.left_s() <= 0 else stopped

    def stop(self) -> None:
        """Nothing more starts; what runs goes on to its end."""
        self._stopped = True

    def left_s(self) -> float:
        """Infinite where no end was given, at or under zero where it is over."""
        return min(self._end - self._clock.monotonic(), self._until - self._clock.time())

    @contextmanager
    def closing(self, abort: Callable[[], None]) -> Iterator[None]:
        """Calls `abort`, in a thread, if the window ends while the block runs."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(min(_LOOK_S, max(0.0, self.left_s()))):
                if self.left_s() <= 0:
                    abort()
                    return

        if math.isfinite(self.left_s()):
            threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()


def moment(text: str, now_s: float, zone: tzinfo | None = None) -> float:
    """The next time that a clock on the wall shows HH:MM, in seconds since the epoch.

    Where the clocks go back it is the first of both; a time that is skipped counts early. The zone is the
    machine's own where none is given.

    Raises:
        ValueError: It is no such time.
    """
    if not re.fullmatch(HOUR, text):
        raise ValueError(f"{text!r} is no time of day; write it like 06:00")
    hour, minute = map(int, text.split(":"))
    today = datetime.fromtimestamp(now_s, zone).replace(hour=hour, minute=minute, second=0, microsecond=0)
    days = (today, today + timedelta(days=1))
    return min(at for day in days for fold in (0, 1) if (at := day.replace(fold=fold).timestamp()) > now_s)
