"""The pool of slots: never more workers than slots, also while some are being made."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from orchestrator.slots import SlotPool


def test_a_worker_that_is_being_made_has_its_slot_already() -> None:
    alive, most, both = set[str](), list[int](), threading.Barrier(2, timeout=60)

    def make(engine: str) -> str:
        if engine != "a":
            both.wait()  # the other has chosen whom to drop, too
        alive.add(engine)
        most.append(len(alive))
        return engine

    pool = SlotPool(2, make=make, drop=alive.remove)
    with pool.lease("a"):
        pass

    def use(engine: str) -> None:
        with pool.lease(engine):
            both.wait()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(use, ("b", "c")))
    assert max(most) == 2
    assert alive == {"b", "c"}
