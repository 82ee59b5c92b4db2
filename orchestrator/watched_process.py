"""A process tree under a watchdog, seen from its owner: it ends when told, and when the owner dies."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from .clock import Clock
from .janitor import remove_holders
from .process_tree import COOKIE, Process, cookie_holders, running
from .watchdog import KILL_S, removed

__all__ = ["WatchedProcess"]

WATCHDOG = Path(__file__).with_name("watchdog.py")


class WatchedProcess:
    """One program started by its own watchdog; `events` is what the watchdog reported, by name.

    Args:
        spec: What watchdog.py reads: argv, env, log, limits, owner; `stdin`, `stdout`: file descriptors to give it;
            `remove`: the command that removes what the tree left outside itself, `scratch`: a directory to remove.
        cookie: What every process of the tree carries in its environment.
        errors: Where the watchdog's own errors go.
    """

    def __init__(self, spec: dict[str, Any], cookie: str, errors: Path) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.cookie, self._spec = cookie, spec
        self.lost = self.asked = False
        self._buffer, self._lock = b"", threading.Lock()
        heard, control = os.pipe()
        reports, told = os.pipe()
        self._control, self._reports = os.fdopen(control, "wb"), reports
        os.set_blocking(reports, False)
        env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        try:
            with errors.open("ab") as stderr:
                subprocess.run(
                    [sys.executable, "-I", "-S", str(WATCHDOG)],
                    stdin=heard,
                    stdout=told,
                    stderr=stderr,
                    env={**env, COOKIE: cookie},
                    start_new_session=True,
                    pass_fds=[spec[name] for name in ("stdin", "stdout") if name in spec],
                    check=True,
                    timeout=60,
                )
        finally:
            os.close(heard)
            os.close(told)
        self._write(json.dumps(spec))

    @property
    def dead(self) -> bool:
        """Whether the first process ended, could not start, or is being ended for its log."""
        if {"failed", "exited", "log_limit"} & self.events.keys():
            return True
        engine = self.process("engine")
        return self.lost and (engine is None or not running(engine))

    @property
    def root_pid(self) -> int:
        """What the whole tree is below: the watchdog, or the first process where the watchdog was killed."""
        root = self.process("engine" if self.lost else "watchdog")
        return root.pid if root else 0

    def process(self, name: Literal["engine", "watchdog"]) -> Process | None:
        """The first process, or its watchdog; None until they were reported."""
        found = self.events.get("started", {}).get(name)
        return Process(*found) if found else None

    def hear(self, seconds: float, source: socket.socket | int | None = None) -> bool:
        """Take the watchdog's reports for up to so many seconds; True when the source can be read."""
        poll = select.poll()  # not select: a driver may hold more than 1024 files
        if not self.lost:
            poll.register(self._reports, select.POLLIN)
        if source is not None:
            poll.register(source, select.POLLIN)
        ready = [number for number, _ in poll.poll(seconds * 1000)]
        with self._lock:
            if self._reports in ready and not self.lost:
                self._take()
        return source is not None and (source if isinstance(source, int) else source.fileno()) in ready

    def tell(self, word: Literal["stop", "end"]) -> None:
        """Ask for the polite ladder, or the short one."""
        self.asked = True
        self._write(word)

    def end(self, clock: Clock) -> tuple[int, tuple[int, ...]]:
        """Have the whole tree ended and confirm it; how many needed a KILL, and the pids that are left.

        Where the watchdog does not answer, because it was killed itself, this does its work.
        """
        tree_grace_s = max(self._spec["tree_grace_s"], self._spec["orphan_grace_s"])
        patience_s = self._spec["stop_grace_s"] + 2 * tree_grace_s + KILL_S + 10
        self.tell("stop")
        until = clock.monotonic() + patience_s
        while not self.lost and clock.monotonic() < until:
            self.hear(0.25)
        killed = int(self.events.get("gone", {}).get("killed", 0))
        if cookie_holders(self.cookie):
            killed += remove_holders(self.cookie, tree_grace_s)["killed"]
        spec, gone = self._spec, self.events.get("gone")
        outside = gone["left"] if gone else not removed(spec.get("remove", []), spec["env"], spec.get("scratch", ""))
        with suppress(OSError):
            self._control.close()
        with self._lock:
            self.lost = True
            os.close(self._reports)
        left = tuple(who.pid for who in cookie_holders(self.cookie))
        # Nobody can say that a container is gone: its tool's own process stands for it.
        return killed, left or ((self.root_pid,) if outside else ())

    def _take(self) -> None:
        with suppress(BlockingIOError):  # another thread was quicker
            chunk = os.read(self._reports, 65536)
            self.lost = not chunk
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self.events[event.pop("event")] = event

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # it may be gone, or closed
            self._control.write(line.encode() + b"\n")
            self._control.flush()
