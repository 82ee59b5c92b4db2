"""Progress on stderr: what runs now, what is done and left, the best so far; plain lines without a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

__all__ = ["PlainProgress", "Progress", "TerminalProgress", "make_progress"]


class Progress(Protocol):
    def line(self, text: str) -> None:
        """Something happened that stays on the screen."""
        ...

    def now(self, who: str, text: str) -> None:
        """What `who` (an engine, a build) does right now; empty text when it is done."""
        ...

    def totals(self, text: str) -> None:
        """Launches and trials done and left, estimated end, best so far."""
        ...

    def close(self) -> None: ...


class PlainProgress:
    """One line per event, for logs and pipes; what runs now is told only when it changes."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
        self._last: dict[str, str] = {}

    def line(self, text: str) -> None:
        self._write(text)

    def now(self, who: str, text: str) -> None:
        # Log lines of a starting engine would flood a file: only a new stage is worth a line.
        stage = text.split("|", 1)[0].strip()
        if stage and self._last.get(who) != stage:
            self._last[who] = stage
            self._write(f"  {who}: {stage}")

    def totals(self, text: str) -> None:
        self._write(f"  {text}")

    def close(self) -> None:
        pass


class TerminalProgress:
    """A few live lines under the scrolling events."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._now: dict[str, tuple[str, float]] = {}
        self._totals = ""
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def line(self, text: str) -> None:
        self._console.print(Text(text))

    def now(self, who: str, text: str) -> None:
        with self._lock:
            if not text:
                self._now.pop(who, None)
            else:
                stage = text.split("|", 1)[0]
                before = self._now.get(who)
                since = before[1] if before and before[0].split("|", 1)[0] == stage else time.monotonic()
                self._now[who] = (text, since)

    def totals(self, text: str) -> None:
        self._totals = text

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Group:
        with self._lock:
            rows = [
                Text(f"{who}: {text} ({time.monotonic() - since:.0f} s)", overflow="ellipsis", no_wrap=True)
                for who, (text, since) in self._now.items()
            ]
        return Group(*rows, Text(self._totals, style="dim", overflow="ellipsis", no_wrap=True))


def make_progress() -> Progress:
    console = Console(stderr=True)
    return TerminalProgress(console) if console.is_terminal else PlainProgress()
