"""Starts one engine and ends its whole process tree, whatever becomes of the process that asked for it.

Run as a script by `WatchedProcess`; standard library only, so that it starts in milliseconds.
It leaves its parent by a second fork and a session of its own, becomes the subreaper of all it starts,
and speaks JSON lines on standard output: `started` or `failed`, `log_limit`, `exited`, `gone`.
Standard input is the specification in one line, then `stop` (the polite ladder) or `end` (the short one);
its end means that the owner is gone, which is the short ladder too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Process", "descendants_of", "end_tree", "process_table", "read_process", "removed", "send"]

PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.5
TRACKER_S = 5.0
SCRATCH = "repeak-" + 12 * "[0-9a-f]"
KILL_S = 30.0  # a process in an uninterruptible device call can outlive its SIGKILL by seconds


class Process(NamedTuple):
    """One process, exactly: a pid is reused, a pid with its start time (clock ticks since boot) is not."""

    pid: int
    start: int


class Row(NamedTuple):
    who: Process
    parent: int
    alive: bool


def read_process(pid: int) -> Row | None:
    """The process that has this pid now, from /proc; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, *fields = text.rpartition(")")[2].split()
    # A leader whose main thread ended shows as a zombie while its other threads still run.
    alive = state not in "ZX" or int(fields[15]) > 1
    return Row(Process(pid, int(fields[17])), int(parent), alive)


def process_table() -> dict[int, Row]:
    """All processes by pid."""
    rows = (read_process(int(entry.name)) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {row.who.pid: row for row in rows if row is not None}


def descendants_of(pids: Iterable[int], table: dict[int, Row]) -> list[Process]:
    """Every living process below these pids, themselves left out."""
    below: dict[int, list[Row]] = {}
    for row in table.values():
        below.setdefault(row.parent, []).append(row)
    found: list[Process] = []
    queue = list(pids)
    while queue:
        children = below.pop(queue.pop(), [])
        queue += [row.who.pid for row in children]
        found += [row.who for row in children if row.alive]
    return found


def send(who: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone (its pid may already be somebody else's)."""
    handle = None
    with contextlib.suppress(AttributeError, OSError):  # kernels before 5.3 have no such handle
        handle = os.pidfd_open(who.pid)
    try:
        row = read_process(who.pid)
        if row is None or row.who != who:
            return False
        if handle is None:
            os.kill(who.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def end_tree(
    find: Callable[[], list[Process]],
    leader: Process | None,
    *,
    grace_s: float,
    tree_grace_s: float,
    pause: Callable[[float], None],
    hurried: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """The stop ladder: TERM to the leader, TERM to the whole tree, KILL until `find` finds nothing.

    A stopped process is continued so that it can act on the TERM. Python's resource trackers are killed last: once
    all that they serve are gone they take shared memory away, which would otherwise stay. Returns how many
    processes were left to `termed` and `killed`, and how many are `left` after `KILL_S` of killing.
    """

    def wait(seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            pause(0.05)

    if leader is not None and ask(leader):
        wait(grace_s, lambda: hurried() or leader not in find())
        if leader not in find():  # what it left behind may be on its way out: not the whole grace again
            wait(tree_grace_s, lambda: hurried() or not find())
    termed = [who for who in find() if ask(who)]
    wait(tree_grace_s, lambda: not find())
    killed: set[Process] = set()
    spared_until = time.monotonic() + TRACKER_S

    def kill_all() -> bool:
        left = find()
        spare = time.monotonic() < spared_until
        killed.update(who for who in left if not (spare and is_tracker(who)) and send(who, signal.SIGKILL))
        return not left

    wait(KILL_S, kill_all)
    return {"termed": len(termed), "killed": len(killed), "left": len(find())}


def is_tracker(who: Process) -> bool:
    """Whether it is what Python's multiprocessing runs to take away what dead processes leave."""
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{who.pid}/cmdline").read_bytes()
    return False


def removed(command: list[str], env: Mapping[str, str], scratch: str = "") -> bool:
    """Whether what lies outside the process tree (a container) is gone; its own command for that is run.

    The directory of what the tree made for itself alone goes with it.
    """
    if Path(scratch).match(SCRATCH):  # a path that was written down: nothing else is ever removed
        shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return not command or subprocess.run(command, env=env, capture_output=True, timeout=300).returncode == 0  # noqa: PLW1510
    return False


def ask(who: Process) -> bool:
    return send(who, signal.SIGTERM) and (send(who, signal.SIGCONT) or True)


class Keeper:
    """The watchdog's own life: one engine, from its start until nothing of it is left."""

    def __init__(self) -> None:
        self.buffer = b""
        self.wish = ""  # "", "stop" or "end"
        self.code: int | None = None
        self.engine: Process | None = None
        self.wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the engine.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.ask_for("end"))
        self.spec = self.read_spec()
        self.owner = Process(*self.spec["owner"])

    def read_spec(self) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            if not self.listen():
                raise SystemExit(0)
        line, _, self.buffer = self.buffer.partition(b"\n")
        spec: dict[str, Any] = json.loads(line)
        return spec

    def ask_for(self, wish: str) -> None:
        self.wish = "end" if "end" in (wish, self.wish) else wish

    def run(self) -> None:
        log = os.open(self.spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not self.start(log):
            return
        while self.code is None and not self.wish:
            self.pump(TICK_S)
            size = os.fstat(log).st_size
            if self.code is None and size > self.spec["log_limit_bytes"]:
                report(event="log_limit", bytes=size)
                self.ask_for("end")
        asked = self.wish
        if self.code is not None:
            report(event="exited", code=self.code, asked=False)
        begun = time.monotonic()
        short = self.spec["orphan_grace_s"]
        counts = end_tree(
            lambda: descendants_of([os.getpid()], process_table()),
            self.engine if asked == "stop" else None,
            grace_s=self.spec["stop_grace_s"],
            tree_grace_s=self.spec["tree_grace_s"] if asked == "stop" else short,
            pause=self.pump,
            hurried=lambda: self.wish == "end",
        )
        self.reap()
        counts["left"] += not removed(self.spec.get("remove", []), self.spec["env"], self.spec.get("scratch", ""))
        if asked and self.code is not None:
            report(event="exited", code=self.code, asked=True)
        report(event="gone", seconds=round(time.monotonic() - begun, 3), **counts)

    def start(self, log: int) -> bool:
        argv, env = self.spec["argv"], self.spec["env"]
        try:
            stdin, stdout = self.spec.get("stdin", subprocess.DEVNULL), self.spec.get("stdout", log)
            child = subprocess.Popen(argv, env=env, stdin=stdin, stdout=stdout, stderr=log, start_new_session=True)
        except OSError as error:
            report(event="failed", error=f"{error.strerror}: {argv[0]}")
            return False
        child.returncode = 0  # reaped by `reap`, not by Popen
        row, me = read_process(child.pid), read_process(os.getpid())
        self.engine = row.who if row else None
        report(event="started", engine=self.engine, watchdog=me.who if me else None)
        return True

    def pump(self, seconds: float) -> None:
        """Wait, hear the owner, reap what ended."""
        sources = [self.wake] if self.wish == "end" else [0, self.wake]
        ready = select.select(sources, [], [], seconds)[0]
        if self.wake in ready:
            os.read(self.wake, 4096)
        if 0 in ready and not self.listen():
            self.ask_for("end")
        for word in ("stop", "end"):
            if word.encode() + b"\n" in self.buffer:
                self.ask_for(word)
        row = read_process(self.owner.pid)
        if row is None or row.who != self.owner or not row.alive:
            self.ask_for("end")
        self.reap()

    def listen(self) -> bool:
        chunk = os.read(0, 65536)
        self.buffer += chunk
        return bool(chunk)

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self.engine is not None and pid == self.engine.pid:
                    self.code = os.waitstatus_to_exitcode(status)


def report(**event: Any) -> None:
    with contextlib.suppress(OSError):  # the owner may be gone
        os.write(1, json.dumps(event).encode() + b"\n")


def main() -> None:
    import ctypes  # noqa: PLC0415  # only the script needs it

    if os.fork():
        os._exit(0)
    os.setsid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        report(event="failed", error="this kernel has no subreaper")
        return
    Keeper().run()


if __name__ == "__main__":
    main()
