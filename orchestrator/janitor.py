"""Remembers which engines run on this machine, and removes those whose owner died without ending them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trackers.records import Frozen

from .clock import Clock
from .process_tree import Process, cookie_holders, identify, running
from .watchdog import end_tree, removed

__all__ = ["Running", "Stray", "forget", "here", "register", "remove_holders", "sweep", "wait_memory_back"]

GRACE_S = 5.0
POLL_S = 0.5


class Running(Frozen):
    """One engine as its owner registered it; `engine` and `watchdog` are absent until it started."""

    cookie: str
    run: str
    place: str
    owner: Process
    watchdog: Process | None = None
    engine: Process | None = None
    remove: tuple[str, ...] = ()
    scratch: str = ""


@dataclass(frozen=True)
class Stray:
    """An engine that outlived its owner: what was ended, and what would not end within the bound."""

    cookie: str
    run: str
    removed: tuple[int, ...]
    left: int
    seconds: float


def here() -> str:
    """This machine and process namespace: outside of it the pids in an entry mean other processes."""
    return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"


def register(
    directory: Path,
    cookie: str,
    run: str,
    watchdog: Process | None = None,
    engine: Process | None = None,
    *,
    remove: Sequence[str] = (),
    scratch: str = "",
) -> None:
    """Write the entry of an engine that this process owns, whole or not at all, over an earlier one of it.

    `remove` is the command that removes what of it no signal reaches: its container; `scratch` its own directory.
    """
    owner = identify(os.getpid()) or Process(os.getpid(), 0)
    more = {"watchdog": watchdog, "engine": engine, "remove": tuple(remove), "scratch": scratch}
    entry = Running.model_validate({"cookie": cookie, "run": run, "place": here(), "owner": owner, **more})
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f"{cookie}.{os.getpid()}.part"
    draft.write_text(entry.model_dump_json())
    draft.replace(directory / f"{cookie}.json")


def forget(directory: Path, cookie: str) -> None:
    (directory / f"{cookie}.json").unlink(missing_ok=True)


def sweep(directory: Path, *, patience_s: float = 15.0, grace_s: float = GRACE_S) -> list[Stray]:
    """End every registered engine whose owner is dead, by the cookie its processes carry, never by name.

    A watchdog that is still at work has `patience_s` to finish by itself; a stray then has `grace_s` to heed
    its TERM. Entries of other machines and of living owners are left alone.
    """
    strays = []
    for path in sorted(directory.glob("*.json")):
        entry = read(path)
        if entry is None or entry.place != here() or running(entry.owner):
            continue
        begun = time.monotonic()
        while entry.watchdog and running(entry.watchdog) and time.monotonic() - begun < patience_s:
            time.sleep(0.1)
        holders = cookie_holders(entry.cookie)
        left = remove_holders(entry.cookie, grace_s)["left"]
        left += not removed(list(entry.remove), os.environ, entry.scratch)
        if holders:
            pids = tuple(who.pid for who in holders)
            strays.append(Stray(entry.cookie, entry.run, pids, left, time.monotonic() - begun))
        if not left:
            forget(directory, entry.cookie)
    return strays


def read(path: Path) -> Running | None:
    """The entry; None when another run removed it meanwhile or it is not one."""
    with suppress(OSError, ValidationError):
        return Running.model_validate_json(path.read_bytes())
    return None


def remove_holders(cookie: str, grace_s: float) -> dict[str, int]:
    """End all processes that carry the cookie: TERM, then KILL; counts as `end_tree` gives them."""
    return end_tree(lambda: cookie_holders(cookie), None, grace_s=0, tree_grace_s=grace_s, pause=time.sleep)


def wait_memory_back(
    before_free_bytes: int,
    read_free: Callable[[], int],
    clock: Clock,
    timeout_s: float,
    slack_bytes: int = 256 << 20,
) -> bool:
    """Wait until as much memory is free as before the engine, less a slack; False when time runs out."""
    deadline = clock.monotonic() + timeout_s
    while read_free() < before_free_bytes - slack_bytes:
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(POLL_S)
    return True
