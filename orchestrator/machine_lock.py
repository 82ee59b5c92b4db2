"""One run at a time on a machine: who holds it is told, and what a dead process left is taken over."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from .errors import LockHeld

__all__ = ["machine_held"]


@contextmanager
def machine_held(
    folder: Path, command: str, say: Callable[[str], None], now: Callable[[], float] = time.time
) -> Iterator[None]:
    """Holds this machine for the block; the kernel lets go of it with the process.

    The lock is in `folder`, this user's data directory, which several machines may share; `command` is what runs,
    for whoever finds it held; `say` is told where a dead run's lock was taken over.

    Raises:
        LockHeld: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / f"{socket.gethostname()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who, pid = _holder(file)
            hint = f"Wait for it; `kill -USR1 {pid}` ends it after its current launch, `kill -INT {pid}` at once."
            raise LockHeld(f"Another run is using this machine: {who}.", hint) from error
        if os.fstat(file).st_size:
            say(f"took over the lock of {_holder(file)[0]}, which died")
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({"pid": os.getpid(), "command": command, "since": now()}).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _holder(file: int) -> tuple[str, str]:
    try:
        held = json.loads(os.pread(file, 10_000, 0))
        since = datetime.fromtimestamp(held["since"]).astimezone().isoformat(" ", "minutes")
        return f"process {held['pid']} ({held['command']}), since {since}", str(held["pid"])
    except (ValueError, KeyError, TypeError):
        return "a process that has not said who it is", "PID"
