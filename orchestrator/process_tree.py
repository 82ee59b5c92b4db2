"""Which processes are ours, and whether a listening port is: by pid and start time, from /proc."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from .watchdog import Process, descendants_of, process_table, read_process

__all__ = [
    "COOKIE",
    "Process",
    "cookie_holders",
    "descendants",
    "end_with_parent",
    "free_port",
    "identify",
    "kernel_oom_kills",
    "listener_belongs_to",
    "running",
]

COOKIE = "REPEAK_COOKIE"
LISTENING = "0A"


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none."""
    row = read_process(pid)
    return row.who if row is not None else None


def running(who: Process) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    row = read_process(who.pid)
    return row is not None and row.who == who and row.alive


def end_with_parent(every_s: float = 1.0) -> None:
    """This process ends, as by a signal, once the one that started it is gone, whoever adopts it then."""
    parent = identify(os.getppid())

    def follow() -> None:
        while parent is not None and running(parent):
            time.sleep(every_s)
        os._exit(1)

    threading.Thread(target=follow, daemon=True, name="parent").start()


def descendants(*roots: int) -> list[Process]:
    """Every living process below these pids, themselves left out."""
    return descendants_of(roots, process_table())


def cookie_holders(cookie: str) -> list[Process]:
    """Living processes that carry this cookie in their environment, and everything below them.

    An environment that cannot be read (another user's process) is not ours.
    """
    wanted = f"{COOKIE}={cookie}".encode()
    table = process_table()
    holders = [row.who for row in table.values() if row.alive and wanted in environment(row.who.pid)]
    below = descendants_of([who.pid for who in holders], table)
    return list(dict.fromkeys(holders + below))


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def listener_belongs_to(port: int, pid: int, container: str = "") -> bool | None:
    """Whether everything that listens on 127.0.0.1:`port` belongs to `pid` or a process below it.

    What runs in a container is below its daemon: there the cookie `container` tells what is ours.

    Everything, because with SO_REUSEPORT two engines can share a port and each answers some of the requests.
    None when nothing listens there.
    """
    sockets = listening_sockets(port)
    if not sockets:
        return None
    held: set[str] = set()
    ours = descendants(pid) + (cookie_holders(container) if container else [])
    for who in [pid, *(process.pid for process in ours)]:
        held |= open_sockets(who)
    return sockets <= held


def listening_sockets(port: int) -> set[str]:
    """Inodes of the sockets that get a connection to 127.0.0.1:`port`: bound to it or to every address."""
    loopback = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"
    mapped = "0" * 16 + f"{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}" + loopback
    wanted = {f"{address}:{port:04X}" for address in (loopback, "0" * 8, "0" * 32, mapped)}
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # no IPv6 on this machine
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            inodes |= {row[9] for row in rows if row[1] in wanted and row[3] == LISTENING}
    return inodes


def open_sockets(pid: int) -> set[str]:
    """Inodes of the sockets this process holds open."""
    inodes: set[str] = set()
    with suppress(OSError):  # the process, or the file, may be gone meanwhile
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    return inodes


def free_port() -> int:
    """A port of 127.0.0.1 that nobody holds now; somebody may before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kernel_oom_kills() -> int:
    """How many processes this machine's kernel has ended for lack of memory since it started."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
