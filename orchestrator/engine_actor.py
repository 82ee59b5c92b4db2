"""Slots on Ray: one thin actor for each, placed, called within bounds, and ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trackers.records import Check, Failure, Launch, Measurement, StackFingerprint

from .cluster import start_cluster
from .engine_environment import EngineEnvironment, EnvironmentRequest
from .errors import ClusterError, EnvironmentBroken, Interrupted, RepeakError, SlotLost
from .home import home
from .janitor import sweep
from .local_slot import LocalSlot
from .node_environment import elsewhere, settle
from .placement import check_places, emptiest, nodes_of
from .plan import Slots as SlotPlan
from .process_tree import end_with_parent
from .slot import EngineSlot, LaunchOrder, LaunchReport
from .slots import SlotPool
from .workload import Workload

__all__ = ["RaySlots"]

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 420.0  # the ladder, then what carries its mark, then a container
_PREFLIGHT_TIMEOUT_S = 720.0
_CALL_MARGIN_S = 300.0  # the wait for free memory, and the end of one that did not start
_WINDOW_TIMEOUT_S = 3600.0
_BUILD_TIMEOUT_S = 9000.0
_LOOK_S = 1.0


class _EngineActor:
    """Runs in the driver's environment on the engine's node; LocalSlot does the work."""

    def __init__(self, engine: str) -> None:
        import ray  # noqa: PLC0415 - a worker process pays for it, the driver's start does not

        # Ray's own look at its parent can miss a raylet's death, and then an engine would run on for nobody.
        end_with_parent()
        # What a worker that was killed left on these GPUs is gone before anything is placed there.
        sweep(home() / "running")
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        self._slot = LocalSlot(engine, gpus=gpus)
        self._node = str(ray.get_runtime_context().get_node_id())
        self._making, self._machine = "", ""
        self._environment: EngineEnvironment | None = None

    def node(self) -> str:
        return self._node

    def settle(self, environment: EngineEnvironment, request: EnvironmentRequest, host: dict[str, str]) -> list[str]:
        """The environment on this node from now on; in which ways the node is another kind of machine."""

        def say(text: str) -> None:
            self._making = text

        self._environment, self._machine, unlike = settle(environment, request, host, say)
        self._making = ""
        return unlike

    def preflight(self, order: LaunchOrder) -> Failure | None:
        return self._slot.preflight(self._placed(order))

    def launch(self, order: LaunchOrder) -> LaunchReport:
        report = self._slot.launch(self._placed(order))
        return report.model_copy(update={"live": report.live | ({"machine": self._machine} if self._machine else {})})

    def _placed(self, order: LaunchOrder) -> LaunchOrder:
        return order.model_copy(update={"environment": self._environment}) if self._environment else order

    def measure(self, workload: Workload, window: int) -> Measurement:
        return self._slot.measure(workload, window)

    def check_gates(self, names: Sequence[str]) -> tuple[Check, ...]:
        return self._slot.check_gates(names)

    def stop(self) -> Launch | None:
        return self._slot.stop()

    def status(self) -> str:
        return self._making or self._slot.status()

    def abort(self) -> None:
        self._slot.abort()


class _RaySlot:
    """EngineSlot over an actor: every call is bounded, an actor that died is SlotLost and told to `lose`."""

    def __init__(self, actor: Any, aborted: threading.Event, lose: Callable[[Any], None] = lambda _: None) -> None:
        self._actor, self._aborted, self._lose = actor, aborted, lose

    def settle(self, environment: EngineEnvironment, host: dict[str, str]) -> list[str]:
        request = elsewhere(environment)
        unlike: list[str] = self._call("settle", environment, request, host, within_s=_BUILD_TIMEOUT_S)
        return unlike

    def preflight(self, order: LaunchOrder) -> Failure | None:
        failure: Failure | None = self._call("preflight", order, within_s=_PREFLIGHT_TIMEOUT_S)
        return failure

    def launch(self, order: LaunchOrder) -> LaunchReport:
        # An isolated one first waits for another's start or window.
        turn_s = _WINDOW_TIMEOUT_S if order.isolate else 0.0
        report: LaunchReport = self._call("launch", order, within_s=order.start_timeout_s + _CALL_MARGIN_S + turn_s)
        return report

    def measure(self, workload: Workload, window: int) -> Measurement:
        measured: Measurement = self._call("measure", workload, window, within_s=_WINDOW_TIMEOUT_S)
        return measured

    def check_gates(self, names: Sequence[str]) -> tuple[Check, ...]:
        checks: tuple[Check, ...] = self._call("check_gates", names, within_s=_WINDOW_TIMEOUT_S)
        return checks

    def stop(self) -> Launch | None:
        closed: Launch | None = self._call("stop", within_s=_STOP_TIMEOUT_S, always=True)
        return closed

    def status(self) -> str:
        try:
            return str(self._call("status", within_s=2.0, always=True))
        except RepeakError:
            return "not answering"

    def abort(self) -> None:
        self._actor.abort.options(concurrency_group="ctl").remote()

    def _call(self, method: str, *args: Any, within_s: float, always: bool = False) -> Any:
        import ray  # noqa: PLC0415

        group = "ctl" if method in ("status", "abort") else "run"
        # A future, for a `ray.get` that is asked again and again costs more than the trial's whole book-keeping.
        answer = getattr(self._actor, method).options(concurrency_group=group).remote(*args).future()
        deadline = time.monotonic() + within_s
        while not answer.done():
            if self._aborted.is_set() and not always:
                self.abort()
                raise Interrupted("The study was stopped.", "Run the same command again to go on.")
            if time.monotonic() > deadline:
                self._lose(self._actor)
                raise SlotLost(
                    f"The engine's worker did not answer {method} within {within_s:.0f} s.",
                    "The trial is tried once more elsewhere; look at the host.",
                )
            wait([answer], timeout=min(_LOOK_S, max(0.01, deadline - time.monotonic())))
        try:
            return answer.result()
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, RepeakError) else SlotLost(str(cause))) from error
        except ray.exceptions.RayError as error:
            self._lose(self._actor)
            raise SlotLost(f"The engine's worker died ({type(error).__name__}).") from error


class RaySlots:
    """A pool of actors on a Ray cluster: our own local one, or the user's by address.

    The cluster starts with the first lease, so a study with nothing left to run needs none; where GPUs or a cluster
    are asked for it starts with `check`, before anything is built.
    """

    def __init__(self, wanted: SlotPlan, *, address: str | None, directory: Path, say: Callable[[str], None]) -> None:
        self.count, self._wanted = wanted.count, wanted
        self._address, self._directory, self._say = address, directory, say
        self._started = False
        self._starting = threading.Lock()
        self._lost: list[Any] = []
        self._lost_on: list[str | None] = []
        self._on: dict[Any, str | None] = {}  # the node that each worker is on, or was sent to
        self.engines: dict[str, tuple[EngineEnvironment, StackFingerprint]] = {}
        self._pool: SlotPool[Any] = SlotPool(
            wanted.count, make=self._make, drop=self._drop, usable=lambda actor: actor not in self._lost
        )

    def check(self) -> None:
        """Raises ClusterError where a slot would wait for ever for what the cluster has not."""
        if self._wanted.gpus or self._address or self._wanted.labels or self._wanted.nodes > 1:
            self._start()
            import ray  # noqa: PLC0415

            check_places(self._wanted, nodes_of(ray.nodes()))

    @contextmanager
    def lease(self, engine: str) -> Iterator[EngineSlot]:
        self._start()
        with self._pool.lease(engine) as actor:
            yield _RaySlot(actor, self._pool.aborted, self._lose)

    def _lose(self, actor: Any) -> None:
        if actor not in self._lost:
            self._lost.append(actor)
            self._lost_on.append(self._on.get(actor))

    def _start(self) -> None:
        with self._starting:
            if not self._started:
                start_cluster(self._address, self._directory, self._say)
                self._started = True

    def abort(self) -> None:
        self._pool.aborted.set()

    def kill(self) -> None:
        self._pool.aborted.set()
        for actor in self._pool.workers():
            self._drop(actor)

    def status(self) -> dict[str, str]:
        busy = list(self._pool.busy)
        return {engine: _RaySlot(actor, self._pool.aborted).status() for engine, actor in busy}

    def close(self) -> None:
        if self._started:
            import ray  # noqa: PLC0415

            self._pool.close()
            ray.shutdown()
            self._started = False

    def _make(self, engine: str, *, again: bool = False) -> Any:
        import ray  # noqa: PLC0415

        wanted, actor = self._wanted, self._send(engine)
        try:
            found = self._placed(actor)
            node = ray.get(actor.node.remote(), timeout=_READY_TIMEOUT_S) if found else None
        except (ClusterError, Interrupted):
            self._drop(actor)
            raise
        except ray.exceptions.RayError as error:
            self._lose(actor)
            self._drop(actor)
            if not again:  # it may have been placed on a node that was just dying
                return self._make(engine, again=True)
            raise SlotLost(f"An engine slot could not start: {type(error).__name__}: {error}") from error
        if node is None:
            self._lose(actor)
            self._drop(actor)
            if not again and self._pool.spare():  # fewer places than slots: a node died
                return self._make(engine, again=True)
            have = ray.cluster_resources()
            raise ClusterError(
                f"No place for an engine slot with {wanted.gpus} GPU(s) within {_READY_TIMEOUT_S:.0f} s.",
                f"The cluster has {have.get('GPU', 0):.0f} GPU(s); lower slots.gpus or free some.",
            )
        self._on[actor] = node
        self._lost_on.clear()  # the one after the retry is spread as ever
        if engine in self.engines and node != ray.get_runtime_context().get_node_id():
            try:
                self._settle(actor, engine, node)
            except BaseException:
                self._drop(actor)
                raise
        return actor

    def _send(self, engine: str) -> Any:
        """A worker on its way to its node: the emptiest of ours, where they are spread over several."""
        import ray  # noqa: PLC0415

        wanted = self._wanted
        with self._starting:
            # Ray's own spread is best effort, and for a worker that takes no GPU any node will do. The fallback is for
            # a node that dies, and for GPUs that somebody else took.
            ours, spread = list(self._on.values()), wanted.nodes > 1
            node = emptiest(wanted, nodes_of(ray.nodes()), ours, self._lost_on) if spread else None
            there = {**wanted.labels, "ray.io/node-id": node} if node else wanted.labels
            remote = ray.remote(
                num_cpus=0,
                num_gpus=wanted.gpus,
                accelerator_type=wanted.gpu_type,
                label_selector=there or None,
                fallback_strategy=[{"label_selector": wanted.labels}] if node else None,
                max_restarts=0,
                max_task_retries=0,
                concurrency_groups={"run": 1, "ctl": 4},
            )(_EngineActor)
            actor = remote.remote(engine)
            self._on[actor] = node
        return actor

    def _placed(self, actor: Any) -> bool:
        """Whether the cluster found a place for it in time; raises what keeps it from ever finding one."""
        import ray  # noqa: PLC0415

        ready = actor.status.options(concurrency_group="ctl").remote().future()
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while wait([ready], timeout=_LOOK_S).not_done:
            self._pool.refuse_after_abort()
            if not any(node["Alive"] for node in ray.nodes()):
                raise ClusterError("Ray has no node any more.", "The same command goes on from here.")
            if time.monotonic() > deadline:
                return False
        ready.result()
        return True

    def _settle(self, actor: Any, engine: str, node: str) -> None:
        """The engine's environment on a node that is not the driver's, which must be of the driver's kind."""
        import ray  # noqa: PLC0415

        name = next((str(one["NodeName"]) for one in ray.nodes() if one["NodeID"] == node), node)
        environment, stack = self.engines[engine]
        slot = _RaySlot(actor, self._pool.aborted, self._lose)
        self._say(f"{engine}: its environment on node {name} is looked for, or made")
        try:
            unlike = slot.settle(environment, stack.items)
        except EnvironmentBroken as broken:
            raise EnvironmentBroken(f"{engine} on node {name}: {broken.message}", broken.hint) from broken
        if unlike:
            raise ClusterError(
                f"Node {name} is another kind of machine than the study's: {'; '.join(unlike)}.",
                "A study stays on machines of one kind: name theirs with slots.gpu_type or slots.labels.",
            )
        self._say(f"{engine}: node {name} is ready")

    def _drop(self, actor: Any) -> None:
        import ray  # noqa: PLC0415

        self._on.pop(actor, None)
        ray.kill(actor)
