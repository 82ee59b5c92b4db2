"""Wishes to stop: Ctrl-C once ends the current launches, twice everything; SIGUSR1 lets the current ones end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["INTERRUPTED", "stop_on_last", "stop_on_signals"]

INTERRUPTED = 130
_LAST_WAIT_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_last(last: Callable[[], None]) -> Iterator[None]:
    """SIGUSR1 as the wish that nothing more starts, while the block runs; only a main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is given
        sys.stderr.write("\nstopping after the current launch\n")
        last()

    before = signal.signal(signal.SIGUSR1, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def stop_on_signals(abort: Callable[[], None], kill: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM as wishes to stop, for as long as the block runs.

    Args:
        abort: Called on the first one, in a thread: make running work end soon.
        kill: Called on the second: end every engine now; the process exits with 130 right after.
    """
    count = 0

    def heard(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is given
        nonlocal count
        count += 1
        if count == 1:
            sys.stderr.write("\nstopping: the current launch is abandoned (again to stop at once)\n")
            threading.Thread(target=abort, daemon=True).start()
        elif count == 2:
            # Not from this frame: it may hold a lock that kill needs.
            threading.Thread(target=_end_now, args=(kill,), daemon=True).start()

    before = {number: signal.signal(number, heard) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_now(kill: Callable[[], None]) -> None:
    worker = threading.Thread(target=kill, daemon=True)
    worker.start()
    worker.join(_LAST_WAIT_S)
    os._exit(INTERRUPTED)
