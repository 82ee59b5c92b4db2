"""One engine server: started on a port that is proven ours, and then ready or dead, never unknown."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from trackers.records import Failure

from . import janitor
from .clock import Clock
from .container import removal
from .engine_log import last_reason, read_ends
from .errors import EngineFailed, Interrupted
from .failures import classify
from .home import home
from .process_tree import COOKIE, free_port, identify, kernel_oom_kills, listener_belongs_to, running
from .watched_process import WatchedProcess

__all__ = ["EngineServer", "Ready", "ServerLimits", "Stopped", "read_ends"]

POLL_S = 0.5
SOCKETS_AT_MOST = 70  # a socket's path has 107 characters, its name takes 37 of them
LOG_HEAD_BYTES, LOG_TAIL_BYTES, STATUS_BYTES = 256 << 10, 2 << 20, 16 << 10


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of one engine's life; `start_timeout_s` covers loading, compiling and the first request."""

    start_timeout_s: float = 1800.0
    first_request_timeout_s: float = 300.0
    http_timeout_s: float = 5.0
    stop_grace_s: float = 30.0
    tree_grace_s: float = 5.0
    orphan_grace_s: float = 3.0
    stall_s: float = 45.0
    log_limit_bytes: int = 256 << 20


@dataclass(frozen=True)
class Ready:
    """A server that has answered a request of ours; `max_model_len` is None where it does not say."""

    pid: int
    port: int
    base_url: str
    ready_s: float
    model_id: str
    max_model_len: int | None
    version: str


@dataclass(frozen=True)
class Stopped:
    """How stopping went: processes that needed a KILL, and the pids that would not end even so."""

    seconds: float
    killed: int
    left: tuple[int, ...] = ()


class EngineServer:
    """One engine process tree, from `start` to `stop`, owned by this process and ended when it dies.

    Args:
        argv: The serve command; `--host 127.0.0.1 --port N` is appended.
        env: The engine's whole environment.
        run_dir: Where `engine.log` is written; its name stands for the run in the register of engines.
        cookie: Unique name that every process of the engine carries, by which strays are proven ours.
        port: The port to try first; a free one is chosen otherwise.
        running_dir: The register of running engines; `running` under the home directory by default.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        run_dir: Path,
        cookie: str,
        limits: ServerLimits,
        clock: Clock,
        port: int | None = None,
        running_dir: Path | None = None,
    ) -> None:
        self.argv, self.run_dir, self.cookie, self.port = list(argv), run_dir, cookie, port
        self.limits, self.clock = limits, clock
        self.log_path = run_dir / "engine.log"
        self.running_dir = running_dir or home() / "running"
        patience_s = str(int(max(600, limits.start_timeout_s)))
        self.env = {"NO_COLOR": "1", "VLLM_ENGINE_READY_TIMEOUT_S": patience_s, **env, COOKIE: cookie}
        # Without this a process that sets its title wipes the cookie from its visible environment.
        self.env["SPT_NOENV"] = "1"
        self._remove = removal(Path(argv[0]), cookie)
        # An engine leaves its sockets and rendezvous files where it made them: here they go with it. A container's
        # go with that.
        scratch = str(Path(tempfile.gettempdir(), f"repeak-{secrets.token_hex(6)}"))
        self._scratch = "" if self._remove or len(scratch) > SOCKETS_AT_MOST else scratch
        if self._scratch:
            own = {name: text for name, text in self.env.items() if name != "TMPDIR" or text != os.environ.get(name)}
            self.env = {"TMPDIR": self._scratch, "VLLM_RPC_BASE_PATH": self._scratch, **own}
        self._watched: WatchedProcess | None = None
        self._failure: Failure | None = None
        self._stopped: Stopped | None = None
        self._answered = self._ready = False
        self._aborted, self._lock = threading.Event(), threading.RLock()
        self._progress: Callable[[str], None] = lambda _: None
        self._shown = ""
        self._begun = 0.0
        self._oom_kills = kernel_oom_kills()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def api_key(self) -> str | None:
        """What the engine guards its API with: it inherits the shell's key, which no plan may hold."""
        return self.env.get("VLLM_API_KEY")

    def start(self, progress: Callable[[str], None]) -> Ready:
        """Start the engine and wait until it answered one request.

        Raises:
            EngineFailed: It died, or was not ready in time; `failure()` has the classified cause.
            Interrupted: `abort()` was called; the engine is being ended, `stop()` waits for that.
        """
        self._progress = progress
        self._begun = self.clock.monotonic()
        self._heed_abort()
        ports = [self.port or free_port(), None]
        while True:
            try:
                return self._attempt(ports.pop(0) or free_port())
            except EngineFailed:
                self.stop()
                if not ports or self._failure is None or self._failure.cause != "port_taken":
                    raise
            progress("the port was taken, trying another one")
            self._failure = self._stopped = self._watched = None

    def stop(self) -> Stopped:
        """End the engine's whole tree and confirm that it is gone; safe to call again and from any thread."""
        self.failure()
        with self._lock:
            if self._stopped is None:
                begun = self.clock.monotonic()
                killed, left = self._watched.end(self.clock) if self._watched else (0, ())
                if not left:
                    janitor.forget(self.running_dir, self.cookie)
                self._stopped = Stopped(self.clock.monotonic() - begun, killed, left)
            return self._stopped

    def abort(self) -> None:
        """End the engine at once, from another thread; a waiting `start` raises Interrupted."""
        self._aborted.set()
        if self._watched is not None:
            self._watched.tell("end")

    def alive(self) -> bool:
        """Whether the engine's first process still runs."""
        watched = self._watched
        if watched is None or self._stopped is not None:
            return False
        watched.hear(0)
        engine = watched.process("engine")
        return not watched.dead and engine is not None and running(engine)

    def owns(self, port: int) -> bool | None:
        """Whether all that listens there is of this engine; None when nothing listens."""
        root = self._watched.root_pid if self._watched else 0
        return listener_belongs_to(port, root, self.cookie if self._remove else "")

    def failure(self) -> Failure | None:
        """Why the engine is dead though nobody asked it to stop; None while it runs, or was stopped."""
        if self._failure is None and self._watched is not None:
            self._watched.hear(0)
            if self._watched.dead and not self._watched.asked:
                self._fail()
        return self._failure

    def status(self) -> str:
        """What the engine is doing, from its own last log line; safe to call from any thread."""
        reason = last_reason(read_ends(self.log_path, 0, STATUS_BYTES)) or "nothing written yet"
        with suppress(OSError):
            idle_s = self.clock.time() - self.log_path.stat().st_mtime
            if idle_s >= self.limits.stall_s and not self._ready:
                return f"no new log line for {int(idle_s) // 15 * 15} s: {reason}"
        return reason

    def _attempt(self, port: int) -> Ready:
        watched = self._launch(port)
        while True:
            self._wait()
            ours = self.owns(port)
            if ours is False:
                raise self._fail(f"something else listens on port {port}: Address already in use")
            if ours and self._ask(port, "/health")[0] == http.client.OK:
                self._answered = True
                ready = self._prove(port, watched)
                if self.owns(port):
                    return ready

    def _launch(self, port: int) -> WatchedProcess:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.log_path.write_bytes(b"")
        self._answered = False
        outside: dict[str, Any] = {"remove": self._remove, "scratch": self._scratch}
        janitor.register(self.running_dir, self.cookie, self.run_dir.name, **outside)
        if self._scratch:
            Path(self._scratch).mkdir(mode=0o700, exist_ok=True)
        argv = [*self.argv, "--host", "127.0.0.1", "--port", str(port)]
        told = {"argv": argv, "env": self.env, "log": str(self.log_path), "owner": identify(os.getpid())}
        spec = {**asdict(self.limits), **told, **outside}
        watched = self._watched = WatchedProcess(spec, self.cookie, self.run_dir / "watchdog.log")
        while "started" not in watched.events:
            self._wait()
        pair = watched.process("watchdog"), watched.process("engine")
        janitor.register(self.running_dir, self.cookie, self.run_dir.name, *pair, **outside)
        return watched

    def _prove(self, port: int, watched: WatchedProcess) -> Ready:
        """One token from the server whose port is ours: /health alone says nothing about generating."""
        model = (self._ask(port, "/v1/models")[1].get("data") or [{}])[0]
        body = {"model": model.get("id"), "prompt": [1], "max_tokens": 1, "temperature": 0}
        patience_s = self.limits.first_request_timeout_s
        status, reply = self._ask(port, "/v1/completions", body, patience_s)
        if not reply.get("choices"):
            # A core that fails takes its server down within moments, and then the log holds the cause.
            until = self.clock.monotonic() + self.limits.http_timeout_s
            while status is not None and self.clock.monotonic() < until:
                self._wait()
            what = f"got status {status}" if status is not None else f"took more than {patience_s:g} s"
            raise self._fail(f"/health answers, but a one-token request {what}", timed_out=status is None)
        version = self._ask(port, "/version")[1].get("version", "")
        engine = watched.process("engine")
        self._ready = True
        return Ready(
            pid=engine.pid if engine else 0,
            port=port,
            base_url=f"http://127.0.0.1:{port}",
            ready_s=self.clock.monotonic() - self._begun,
            model_id=str(model.get("id")),
            max_model_len=model.get("max_model_len"),
            version=str(version),
        )

    def _ask(
        self, port: int, path: str, body: dict[str, Any] | None = None, timeout_s: float = 0
    ) -> tuple[int | None, dict[str, Any]]:
        """Status and JSON object of one request; status None when it timed out, 0 when it broke."""
        deadline = self.clock.monotonic() + (timeout_s or self.limits.http_timeout_s)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=self.limits.http_timeout_s)
        try:
            link.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            while not self._wait(link.sock):
                if self.clock.monotonic() >= deadline:
                    return None, {}
            answer = link.getresponse()
            found = json.loads(answer.read() or b"{}")
            return answer.status, found if isinstance(found, dict) else {}
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            link.close()

    def _wait(self, source: socket.socket | None = None) -> bool:
        """Hear the watchdog for a moment; True when the socket can be read. Raises when waiting is over."""
        readable = self._watched is not None and self._watched.hear(POLL_S, source)
        shown = self.status()
        if shown != self._shown:
            self._shown = shown
            self._progress(shown)
        self._heed_abort()
        if self._watched is None or self._watched.dead:
            raise self._fail()
        if self.clock.monotonic() >= self._begun + self.limits.start_timeout_s:
            note = f"not ready after {self.limits.start_timeout_s:g} s; last: {shown}"
            raise self._fail(note, timed_out=True)
        return readable

    def _heed_abort(self) -> None:
        if self._aborted.is_set() or (self._watched and self._watched.asked):
            self.abort()  # again: the first time may have come before there was a watchdog
            raise Interrupted("The start of the engine was interrupted.")

    def _fail(self, note: str = "", *, timed_out: bool = False) -> EngineFailed:
        """Classify from the log and from what was seen from outside."""
        events = self._watched.events if self._watched else {}
        text = read_ends(self.log_path, LOG_HEAD_BYTES, LOG_TAIL_BYTES)
        kernel_killed = kernel_oom_kills() > self._oom_kills
        if kernel_killed:
            text = f"repeak: the kernel ended a process of this machine for lack of memory\n{text}"
        if "failed" in events:
            note = f"cannot start {events['failed']['error']}"
        if "log_limit" in events:
            note = f"the log grew past {self.limits.log_limit_bytes} bytes"
        self._failure = found = classify(
            f"{text}\nrepeak: {note}" if note else text,
            events.get("exited", {}).get("code"),
            phase="load" if self._answered else "start",
            timed_out=timed_out,
            kernel_killed=kernel_killed,
        )
        said = f"It said: {found.evidence}\n  " if found.evidence else ""
        return EngineFailed(found.message, f"{said}Log: {self.log_path}")
