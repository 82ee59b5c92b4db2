"""A call to a worker is bounded, and whatever becomes of the worker is told by its name."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from orchestrator import engine_actor
from orchestrator.engine_actor import RaySlots, _RaySlot
from orchestrator.errors import EngineFailed, Interrupted, SlotLost
from orchestrator.plan import Slots


class Worker:
    """Answers each method with a future of the test's; a method that is not set never answers."""

    def __init__(self, **answers: Future[Any]) -> None:
        self.answers, self.called = answers, list[str]()

    def __getattr__(self, method: str) -> Any:
        def remote(*_: Any) -> Any:
            self.called.append(method)
            return SimpleNamespace(future=lambda: self.answers.get(method, Future()))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote))


def settled(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(result) if isinstance(result, BaseException) else future.set_result(result)
    return future


def slot(worker: Worker, *, aborted: bool = False) -> tuple[_RaySlot, list[Any]]:
    stop, lost = threading.Event(), list[Any]()
    if aborted:
        stop.set()
    return _RaySlot(worker, stop, lost.append), lost


def test_an_answer_is_the_worker_s() -> None:
    here, lost = slot(Worker(stop=settled("closed")))
    assert (here.stop(), lost) == ("closed", [])


def test_the_wait_for_a_turn_is_not_taken_for_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[bool, float]()
    for isolate in (False, True):
        here, _ = slot(Worker())
        monkeypatch.setattr(here, "_call", lambda *_, within_s, isolate=isolate: given.update({isolate: within_s}))
        here.launch(SimpleNamespace(start_timeout_s=300.0, isolate=isolate))  # type: ignore[arg-type]
    assert given[True] >= given[False] + 1800.0, "another's first start may take that long"


def test_a_worker_that_does_not_answer_in_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_actor, "_STOP_TIMEOUT_S", 0.05)
    worker = Worker()
    here, lost = slot(worker)
    with pytest.raises(SlotLost, match="did not answer stop"):
        here.stop()
    assert lost == [worker]


def test_a_worker_that_died_is_lost_and_one_that_failed_says_why() -> None:
    worker = Worker(stop=settled(ray.exceptions.RayActorError()))
    here, lost = slot(worker)
    with pytest.raises(SlotLost, match="died"):
        here.stop()
    assert lost == [worker]
    for cause, raised in ((EngineFailed("it is gone", ""), EngineFailed), (ValueError("odd"), SlotLost)):
        error = ray.exceptions.RayTaskError("stop", "", cause)
        here, lost = slot(Worker(stop=settled(error.as_instanceof_cause())))
        with pytest.raises(raised):
            here.stop()
        assert lost == []


def test_a_stop_wakes_who_waits_and_ends_the_engine_all_the_same() -> None:
    worker = Worker(stop=settled(None))
    here, lost = slot(worker)
    threading.Timer(0.1, here._aborted.set).start()
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        here.check_gates(())
    assert time.monotonic() - begun < 60
    assert here.stop() is None
    assert worker.called == ["check_gates", "abort", "stop"]
    assert lost == []


class Placed:
    """A worker that Ray placed; asked for its node it answers with the test's, or raises it."""

    def __init__(self, node: Any) -> None:
        self.node = SimpleNamespace(remote=lambda: node)
        ready = SimpleNamespace(future=lambda: settled("idle"))
        self.status = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: ready))


def test_a_worker_whose_node_hangs_as_it_is_placed_is_ended_and_the_next_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [{"Alive": True, "NodeID": name, "Resources": {}, "Labels": {}} for name in ("sick", "well")]
    answers, workers, killed, asked = [ray.exceptions.GetTimeoutError(), "well"], list[Any](), list[Any](), list[str]()

    def remote(**options: Any) -> Any:
        asked.append(options["label_selector"]["ray.io/node-id"])
        workers.append(Placed(answers[len(workers)]))
        return lambda _: SimpleNamespace(remote=lambda _: workers[-1])

    def get(answer: Any, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    for name, fake in (("nodes", lambda: told), ("remote", remote), ("get", get), ("kill", killed.append)):
        monkeypatch.setattr(ray, name, fake)
    slots = RaySlots(Slots(count=2, nodes=2), address=None, directory=tmp_path, say=lambda _: None)
    assert slots._make("engine") is workers[1]
    assert (asked, killed, slots._on) == (["sick", "well"], workers[:1], {workers[1]: "well"})
    for _ in range(2):  # as it measures, and again as it is stopped
        slots._lose(workers[1])
    assert slots._lost_on == ["well"]
