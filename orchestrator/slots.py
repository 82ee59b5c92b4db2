"""Slots: the pool that hands out engine slots, one engine at a time each; the in-process pool stands here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from .errors import Interrupted
from .slot import EngineSlot

Worker = TypeVar("Worker")

__all__ = ["LocalSlots", "SlotPool", "Slots"]


class Slots(Protocol):
    """What the loop needs of a pool: a slot for one trial, and two ways to end everything."""

    count: int

    @contextmanager
    def lease(self, engine: str) -> Iterator[EngineSlot]:
        """A slot for one trial of this engine; waits for a free one. Raises Interrupted after `abort`."""
        ...

    def abort(self) -> None:
        """Make running trials end soon, with their engines gone (first Ctrl-C)."""
        ...

    def kill(self) -> None:
        """End every engine at once (second Ctrl-C); their watchdogs see to it."""
        ...

    def status(self) -> dict[str, str]:
        """What each slot in use does right now."""
        ...

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        ...


class SlotPool(Generic[Worker]):
    """Book-keeping that every pool shares: at most `count` workers, one engine each, reused while it fits."""

    def __init__(
        self,
        count: int,
        *,
        make: Callable[[str], Worker],
        drop: Callable[[Worker], None],
        usable: Callable[[Worker], bool] = lambda _: True,
    ) -> None:
        self.count = count
        self.aborted = threading.Event()
        self._make, self._drop, self._usable = make, drop, usable
        self._free = threading.Semaphore(count)
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Worker]] = []
        self.busy: list[tuple[str, Worker]] = []
        self._making = 0

    @contextmanager
    def lease(self, engine: str) -> Iterator[Worker]:
        while not self._free.acquire(timeout=0.5):
            self.refuse_after_abort()
        try:
            self.refuse_after_abort()
            worker = self._take(engine)
            healthy = False
            try:
                yield worker
                healthy = True
            finally:
                self._give(engine, worker, keep=healthy and self._usable(worker) and not self.aborted.is_set())
        finally:
            self._free.release()

    def refuse_after_abort(self) -> None:
        """Raises Interrupted once it was stopped."""
        if self.aborted.is_set():
            raise Interrupted("The study was stopped.", "Run the same command again to go on.")

    def workers(self) -> list[Worker]:
        with self._lock:
            return [worker for _, worker in [*self.busy, *self._idle]]

    def spare(self) -> bool:
        """Give an idle worker's place to somebody else; False where there is none."""
        with self._lock:
            idle = self._idle.pop(0) if self._idle else None
        if idle is not None:
            self._drop(idle[1])
        return idle is not None

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, worker in idle:
            self._drop(worker)

    def _take(self, engine: str) -> Worker:
        with self._lock:
            same = next((pair for pair in self._idle if pair[0] == engine), None)
            other = None
            if same is not None:
                self._idle.remove(same)
            elif self._idle and len(self._idle) + len(self.busy) + self._making >= self.count:
                other = self._idle.pop(0)
            self._making += 1
        try:
            if other is not None:
                self._drop(other[1])
            worker = same[1] if same is not None else self._make(engine)
            with self._lock:
                self.busy.append((engine, worker))
        finally:
            with self._lock:
                self._making -= 1
        return worker

    def _give(self, engine: str, worker: Worker, *, keep: bool) -> None:
        with self._lock:
            self.busy.remove((engine, worker))
            if keep:
                self._idle.append((engine, worker))
        if not keep:
            self._drop(worker)


class LocalSlots:
    """Slots in this process: for tests, rehearsals and scale runs, through the same code as Ray's."""

    def __init__(self, count: int, *, make: Callable[[str], EngineSlot]) -> None:
        self.count = count
        self._pool: SlotPool[EngineSlot] = SlotPool(count, make=make, drop=_end)

    @contextmanager
    def lease(self, engine: str) -> Iterator[EngineSlot]:
        with self._pool.lease(engine) as slot:
            yield slot

    def abort(self) -> None:
        self._pool.aborted.set()
        for slot in self._pool.workers():
            slot.abort()

    def kill(self) -> None:
        self.abort()

    def status(self) -> dict[str, str]:
        return {engine: slot.status() for engine, slot in list(self._pool.busy)}

    def close(self) -> None:
        self._pool.close()


def _end(slot: EngineSlot) -> None:
    slot.abort()
    slot.stop()
