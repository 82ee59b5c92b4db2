"""LocalSlot: one engine at a time in this process; what a Ray actor runs, and tests run without Ray."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trackers.records import Check, Failure, Launch, Measurement

from .clock import Clock, SystemClock
from .device_memory import MemoryGate
from .engine_environment import serve_command
from .engine_log import LABELS, reported
from .engine_server import EngineServer, Ready, ServerLimits, read_ends
from .environment_recipe import launch_env
from .errors import EngineFailed, Interrupted, MeasurementFailed
from .evidence import ServerExpectation
from .failures import classify
from .fingerprint import live_items
from .gates import check_gates
from .home import home
from .load_client import measure_window
from .placement import gpus_of
from .preflight import Preflight
from .process_tree import cookie_holders, descendants
from .server_view import ask, read_page
from .slot import LaunchOrder, LaunchReport
from .workload import Workload

__all__ = ["LocalSlot"]

_LOG_BYTES = 4 << 20
_TURN_S = 1.0
_DYING_S, _LOOK_S = 20.0, 0.2


def _is_well(url: str) -> bool:
    return ask(url, "/health", api_key=None, timeout_s=5.0).status == 200


class LocalSlot:
    """Owns at most one engine; `status` and `abort` may be called from any thread, the rest from one.

    Args:
        name: The engine's name, for messages.
        gpus: The devices this slot may use, as CUDA_VISIBLE_DEVICES writes them; none on a CPU.
        clock: Time.
    """

    def __init__(self, name: str, *, gpus: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.name, self._gpus = name, tuple(gpus)
        self._clock = clock or SystemClock()
        self._memory = MemoryGate(self._gpus, self._clock)
        self._server: EngineServer | None = None
        self._ready: Ready | None = None
        self._order: LaunchOrder | None = None
        self._launch: Launch | None = None
        self._preflight: Preflight | None = None
        self._notes: dict[str, Check] = {}
        self._doing = "idle"
        self._aborted = threading.Event()

    def preflight(self, order: LaunchOrder) -> Failure | None:
        """What the engine's own configuration says against an order; a note of it stands in the launches after."""
        self._refuse_after_abort()
        self._doing = "checking the configuration"
        # Caches of its own: what it leaves there must not make a first launch look like a warm one.
        caches = self._caches(order, "-preflight")
        if self._preflight is None:
            self._preflight = Preflight(order.environment.python, caches, self._clock)
        failure, note = self._preflight.check([order.model, *order.args], self._env(order, caches), order.drafter)
        self._notes = {order.trial_id: note}
        return failure

    def launch(self, order: LaunchOrder) -> LaunchReport:
        """Start the ordered engine; one that failed to start is in the report, its tree already gone."""
        self._refuse_after_abort()
        self._doing = "waiting for free memory"
        argv = [*serve_command(order.environment), order.model, *order.args]
        noted = self._notes.get(order.trial_id)
        self._launch = Launch(
            launch=order.launch,
            started_at=self._clock.time(),
            ready_s=None,
            argv=tuple(argv),
            log_path=str(order.run_dir / "engine.log"),
            cold_caches=not self._caches(order).exists(),
            checks=(noted,) if noted else (),
        )
        blocked = self._memory.wait()
        if blocked is not None:
            self._launch = self._launch.model_copy(update={"failure": blocked})
            return LaunchReport(launch=self._launch)
        self._doing = "starting"
        self._order = order
        self._server = EngineServer(
            argv,
            self._env(order, self._caches(order)),
            run_dir=order.run_dir,
            cookie=f"{order.run_id}-{order.trial_id}-{order.launch}",
            limits=ServerLimits(start_timeout_s=order.start_timeout_s),
            clock=self._clock,
        )
        if self._aborted.is_set():
            self._server.abort()
        try:
            with self._turn(order):
                self._doing = "starting"
                self._ready = self._server.start(lambda _: None)
            return self._report(self._server, self._ready, order)
        except EngineFailed as error:
            failure = self._cause(error)
        except OSError as error:
            # A disk of ours that is full, say: nothing of the configuration's, and the engine may be up by now.
            self._server.stop()
            failure = classify(f"repeak: {error}", None, phase="start")
        self._launch = self._launch.model_copy(update={"failure": failure})
        return LaunchReport(launch=self._launch)

    def measure(self, workload: Workload, window: int) -> Measurement:
        """One window against the running engine.

        Raises:
            EngineFailed: It died meanwhile; `stop` has the classified cause.
            MeasurementFailed: It lives, but could not be measured.
        """
        self._refuse_after_abort()
        server, ready, order = self._server, self._ready, self._order
        if server is None or ready is None or order is None:
            raise EngineFailed("There is no running engine to measure.", "Launch one first.")
        try:
            with self._turn(order):
                self._doing = f"measuring {workload.name}, window {window + 1}"
                measured = measure_window(
                    ready.base_url,
                    workload,
                    model=ready.model_id,
                    launch=order.launch,
                    window=window,
                    server=self._expected(order, ready),
                    clock=self._clock,
                    api_key=server.api_key,
                )
        except MeasurementFailed:
            self._refuse_a_dead_engine(server, ready.base_url)
            raise
        # A window cut short by the engine's death is that death, not a proof that failed.
        if measured.failed or measured.disproved:
            self._refuse_a_dead_engine(server, ready.base_url)
        return measured

    def check_gates(self, names: Sequence[str]) -> tuple[Check, ...]:
        """Ask the running engine for each capability; the checks stand in the closed launch as well."""
        self._refuse_after_abort()
        server, ready, order, launch = self._server, self._ready, self._order, self._launch
        if server is None or ready is None or order is None or launch is None:
            return ()
        self._doing = "checking gates"
        read_page(ready.base_url, api_key=server.api_key, keep=order.run_dir / "metrics-after.txt")
        checks = check_gates(ready.base_url, names, model=ready.model_id, api_key=server.api_key)
        self._launch = launch.model_copy(update={"checks": (*launch.checks, *checks)})
        return checks

    def stop(self) -> Launch | None:
        """End the engine's whole tree and confirm it; the launch as it ended, None when there was none."""
        server, launch = self._server, self._launch
        if self._aborted.is_set() and self._preflight is not None:
            self._preflight.end()
        if launch is None:
            return None
        if server is not None:
            self._doing = "stopping"
            failure = launch.failure or server.failure()
            stopped = server.stop()
            checks = list(launch.checks)
            if stopped.left:
                pids = ", ".join(map(str, stopped.left))
                checks.append(Check(name="engine_gone", passed=False, detail=f"still there: {pids}"))
            launch = launch.model_copy(
                update={"failure": failure, "stopped_s": stopped.seconds, "checks": tuple(checks)}
            )
        self._server = self._ready = self._launch = self._order = None
        self._doing = "idle"
        return launch

    def status(self) -> str:
        server = self._server
        if server is not None and self._ready is None:
            return f"{self._doing}| {server.status()}"
        return self._doing

    def abort(self) -> None:
        self._aborted.set()
        server = self._server
        if server is not None:
            server.abort()
        if self._preflight is not None:
            self._preflight.abort()

    @contextmanager
    def _turn(self, order: LaunchOrder) -> Iterator[None]:
        """Where slots are isolated, the only one of this machine that starts or measures."""
        (home() / "running").mkdir(parents=True, exist_ok=True)
        lock = FileLock(home() / "running" / f"{socket.gethostname()}.turn") if order.isolate else None
        self._doing = "waiting for its turn" if lock else self._doing
        while lock and not lock.is_locked:
            self._refuse_after_abort()
            with suppress(Timeout):
                lock.acquire(timeout=_TURN_S)
        try:
            yield
        finally:
            if lock:
                lock.release()

    def _report(self, server: EngineServer, ready: Ready, order: LaunchOrder) -> LaunchReport:
        facts = reported(read_ends(server.log_path, _LOG_BYTES, _LOG_BYTES))
        page = read_page(ready.base_url, api_key=server.api_key, keep=order.run_dir / "metrics-before.txt")
        labels = page.labels("vllm:cache_config_info") if page else {}
        facts |= {f"{LABELS}{name}": value for name, value in labels.items() if value != "None"}
        wanted = order.environment.version.split("+", 1)[0]
        assert self._launch is not None  # noqa: S101 - set by launch
        checks = (
            *self._launch.checks,
            Check(name="listener_is_ours", passed=True, detail=f"port {ready.port}, pid {ready.pid}"),
            Check(
                name="served_version",
                passed=ready.version.split("+", 1)[0] == wanted if ready.version else None,
                detail=f"{ready.version or 'not told'}, asked {wanted}",
            ),
        )
        self._launch = self._launch.model_copy(update={"ready_s": ready.ready_s, "reported": facts, "checks": checks})
        return LaunchReport(launch=self._launch, base_url=ready.base_url, model=ready.model_id, live=live_items(facts))

    def _expected(self, order: LaunchOrder, ready: Ready) -> ServerExpectation:
        """What each window is held against: what was asked for, and what the engine said it took."""
        server = self._server
        assert server is not None  # noqa: S101 - it is measured
        ours = cookie_holders(server.cookie) if order.environment.image else descendants(ready.pid)
        return ServerExpectation(
            model=ready.model_id,
            version=order.environment.version,
            settings=order.settings,
            reported=self._launch.reported if self._launch else {},
            drafter=order.drafter,
            prefix_caching=order.prefix_caching,
            engine_pids=tuple(who.pid for who in ours),
            listener=Check(
                name="listener_is_ours",
                passed=server.owns(ready.port),
                detail=f"port {ready.port}, process {ready.pid}",
            ),
        )

    def _cause(self, error: EngineFailed) -> Failure:
        known = self._server.failure() if self._server else None
        return known or Failure(cause="unknown", kind="transient", message=error.message, evidence=error.hint)

    def _env(self, order: LaunchOrder, caches: Path) -> dict[str, str]:
        flags = {argument.split("=", 1)[0] for argument in order.args}
        env = launch_env(
            order.environment.flavour,
            inherited=os.environ,
            python=order.environment.python,
            caches=caches,
            model=order.model,
            given=flags,
        )
        # Always said, even if empty: an unset variable would show every GPU of the host.
        return {**env, "CUDA_VISIBLE_DEVICES": ",".join(self._gpus[: gpus_of(order.args)]), **order.env}

    def _caches(self, order: LaunchOrder, use: str = "") -> Path:
        return home() / "caches" / f"{order.environment.key}{use}"

    def _refuse_a_dead_engine(self, server: EngineServer, url: str) -> None:
        self._refuse_after_abort()
        until = self._clock.monotonic() + _DYING_S
        # A core that dies takes its server down, but moments later; until then the server says it is not well.
        while (failure := server.failure()) is None and not _is_well(url) and self._clock.monotonic() < until:
            self._clock.sleep(_LOOK_S)
        if failure is not None:
            raise EngineFailed(failure.message, failure.evidence)

    def _refuse_after_abort(self) -> None:
        if self._aborted.is_set():
            raise Interrupted("The study was stopped.", "Run the same command again to go on.")
