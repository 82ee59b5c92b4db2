"""Preflight: an engine's own parser and configuration, asked in its environment before a launch is paid for."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import Field

from trackers.records import Check, Failure, Frozen

from . import janitor, preflight_probe
from .clock import Clock
from .container import removal
from .engine_server import ServerLimits
from .errors import Interrupted
from .failures import classify
from .home import home
from .process_tree import COOKIE, identify
from .watched_process import WatchedProcess

__all__ = ["Preflight"]

# Properties of the flags; memory, files and what nobody knows are left to a launch.
_BELIEVED = {"unknown_flag", "bad_value", "batch_below_seqs", "draft_slots_over_budget"}
_BELIEVED |= {"unknown_drafter", "unsupported_drafter"}
_LIMITS = ServerLimits(stop_grace_s=2.0, tree_grace_s=2.0, orphan_grace_s=1.0)
_MARGIN_S, _ANSWER_BYTES, _MISSES = 15.0, 1 << 20, 2


class _Answer(Frozen):
    """What the probe says; `exit` is None where it has no verdict."""

    exit: int | None = None
    text: str = ""
    near: dict[str, str] = Field(default_factory=dict)


class Preflight:
    """One warm process in an engine's environment, from the first `check` to `end`; it ends with this one too.

    Without an answer in time there is no verdict; after two such in a row the engine is not asked again.

    Args:
        python: The engine environment's interpreter.
        folder: For its log.
        clock: Time.
        start_s: Bound on importing the engine.
        check_s: Bound on each check; the first one of a model can take minutes.
    """

    def __init__(
        self, python: Path, folder: Path, clock: Clock, *, start_s: float = 300.0, check_s: float = 300.0
    ) -> None:
        self._python, self._folder, self._clock = python, folder, clock
        self._start_s, self._check_s = start_s, check_s
        self._watched: WatchedProcess | None = None
        self._pipes: tuple[int, int] = (-1, -1)
        self._buffer = b""
        self._misses = 0
        self._aborted = threading.Event()

    def check(
        self, words: Sequence[str], env: Mapping[str, str], drafter: str = "none"
    ) -> tuple[Failure | None, Check]:
        """Why the engine does not take `vllm serve WORDS`, None where nothing speaks against a launch; and a note.

        Raises:
            Interrupted: After `abort`.
        """
        try:
            answer = self._ask(words, env)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.end()
            answer = _Answer(text=str(error))
        if answer.exit is None:
            self._misses += 1
            return None, _note(None, f"no answer: {answer.text}")
        self._misses = 0
        if answer.exit == 0:
            return None, _note(True, "the engine's own configuration takes it")
        found = classify(answer.text, answer.exit, phase="start")
        # A package that only a drafter needs is no fault of the environment.
        if found.cause not in _BELIEVED and not (found.cause == "missing_package" and drafter != "none"):
            return None, _note(None, f"left to a launch: {found.cause}")
        near = "".join(f"; instead of {flag} it has {known}" for flag, known in answer.near.items())
        message = f"{found.message.removesuffix('.')}: {found.evidence}{near}"
        return found.model_copy(update={"kind": "infeasible", "message": message}), _note(False, message)

    def end(self) -> None:
        """End the process and all below it, confirmed; the next check would start another."""
        watched, self._watched, self._buffer = self._watched, None, b""
        if watched is None:
            return
        _, left = watched.end(self._clock)
        if not left:
            janitor.forget(home() / "running", watched.cookie)
        for pipe in self._pipes:
            os.close(pipe)

    def abort(self) -> None:
        """End it at once, from another thread; a waiting check raises Interrupted."""
        self._aborted.set()
        if self._watched is not None:
            self._watched.tell("end")

    def _ask(self, words: Sequence[str], env: Mapping[str, str]) -> _Answer:
        if self._misses >= _MISSES:
            raise ValueError("it is not asked again")
        if self._watched is None:
            self._start(env)
            ready = self._hear(self._start_s)
            if ready.exit != 0:
                self._misses = _MISSES
                raise ValueError(ready.text)
        asked = {"words": list(words), "env": dict(env), "limit_s": self._check_s}
        self._say(json.dumps(asked).encode() + b"\n")
        return self._hear(self._check_s + _MARGIN_S)

    def _say(self, text: bytes) -> None:
        """All of it: a large environment is more than a pipe holds, and then the probe has to read first."""
        until = self._clock.monotonic() + _MARGIN_S
        while text:
            try:
                text = text[os.write(self._pipes[0], text) :]
            except BlockingIOError:
                if self._clock.monotonic() >= until or self._aborted.is_set():
                    raise
                self._clock.sleep(0.05)

    def _start(self, env: Mapping[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "preflight.log"
        log.write_bytes(b"")
        cookie = f"preflight-{uuid.uuid4().hex[:12]}"
        # Without SPT_NOENV a process that sets its title wipes the cookie from its visible environment.
        own = {"NO_COLOR": "1", **env, COOKIE: cookie, "SPT_NOENV": "1"}
        argv = [str(self._python), "-c", Path(preflight_probe.__file__).read_text(encoding="utf-8")]
        (stdin, asks), (answers, stdout) = os.pipe(), os.pipe()
        os.set_blocking(asks, False)
        told = {"argv": argv, "env": own, "log": str(log), "owner": identify(os.getpid())}
        remove = removal(self._python, cookie)
        spec = {**asdict(_LIMITS), **told, "stdin": stdin, "stdout": stdout, "remove": remove}
        janitor.register(home() / "running", cookie, "preflight", remove=remove)
        try:
            self._watched = WatchedProcess(spec, cookie, self._folder / "watchdog.log")
        finally:
            os.close(stdin)
            os.close(stdout)
        self._pipes = (asks, answers)

    def _hear(self, within_s: float) -> _Answer:
        """The next line of answer. Raises ValueError and OSError where none comes."""
        watched, until = self._watched, self._clock.monotonic() + within_s
        assert watched is not None  # noqa: S101 - started by _ask
        while b"\n" not in self._buffer:
            readable = watched.hear(0.25, self._pipes[1])
            if self._aborted.is_set():
                raise Interrupted("The check of a configuration was interrupted.")
            chunk = os.read(self._pipes[1], 65536) if readable else b""
            self._buffer += chunk
            if (readable and not chunk) or (watched.dead and not readable):
                raise ValueError("its process ended")
            if len(self._buffer) > _ANSWER_BYTES or self._clock.monotonic() >= until:
                raise ValueError(f"nothing of use within {within_s:g} s")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _Answer.model_validate_json(line)


def _note(passed: bool | None, detail: str) -> Check:
    return Check(name="preflight", passed=passed, detail=detail[:300])
