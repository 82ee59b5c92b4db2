"""A child process that behaves as `vllm serve`: for rehearsals and tests, never a default, always labelled.

`python -m orchestrator.simulated_engine serve MODEL [flags]`; the variable SIMULATED_SURFACE names the file
that `write_simulation` wrote. `check` instead of `serve` ends after the checks that need no weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .simulated_http import Server
from .simulated_scheduler import Scheduler
from .simulated_spec import Simulation, read_simulation
from .simulated_startup import (
    StartFailed,
    cache_labels,
    fail,
    failure_of,
    log,
    parse,
    refuse_bad_values,
    report_pool,
    say_start,
)
from .simulated_surface import Surface

__all__ = ["main"]

_Map = Mapping[str, Any]
_EARLY = ("unsupported_drafter", "batch_below_seqs", "draft_slots_over_budget")
_NOT_KNOBS = ("command", "model_tag", "host", "port", "served_model_name", "api_key", "speculative_config")


def knob_values(args: _Map, surface: Surface, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the surface reads: flags by destination, `drafter` and `k`, and its variables."""
    values = {name: value for name, value in args.items() if name not in _NOT_KNOBS}
    values["model"] = args.get("model_tag") or args.get("model")
    if speculation := args.get("speculative_config"):
        values |= {"drafter": speculation.get("method"), "k": speculation.get("num_speculative_tokens", 1)}
    return values | {name: environ[name] for name in surface.effects if name in environ}


def main(argv: Sequence[str] | None = None) -> None:
    path = Path(os.environ["SIMULATED_SURFACE"])
    simulation = read_simulation(path)
    args = parse(sys.argv[1:] if argv is None else argv, simulation.surface.version)
    values = knob_values(args, simulation.surface, os.environ)
    try:
        listener = None if args["command"] == "check" else _bind(args)
        refuse_bad_values(args, simulation.surface)
        if (cause := simulation.surface.failure(values)) in _EARLY:
            raise failure_of(cause, values, simulation.surface)
        if listener is not None:
            asyncio.run(_serve(args, values, simulation, _count_launch(path), listener))
    except StartFailed as failure:
        fail(failure)


def _bind(args: _Map) -> socket.socket:
    """Bound at once and listening only when ready, as the real one: connections are refused until then."""
    # The protocol is named, or asyncio leaves Nagle's algorithm on and first tokens arrive 40 ms late.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((args.get("host", "127.0.0.1"), args.get("port", 8000)))
    except OSError as error:
        raise StartFailed(f"OSError: {error}") from error
    return listener


def _count_launch(path: Path) -> int:
    """Which start of this simulation it is, from 0; one byte a start, so that processes cannot collide."""
    with Path(f"{path}.launches").open("ab") as file:
        file.write(b".")
        file.flush()
        return file.tell() - 1


async def _serve(
    args: _Map, values: dict[str, Any], simulation: Simulation, launch: int, listener: socket.socket
) -> None:
    model, surface = str(values["model"]), simulation.surface
    faults = simulation.faults_for(launch, values)
    children = [_child() for _ in range(simulation.children)]
    # What is ignored when a child starts is ignored by it as well.
    usual = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if faults.get("grandchild"):
        _child(apart=True)
    if not faults.get("ignore_term"):
        signal.signal(signal.SIGTERM, usual)
    say_start(args, values, surface)
    await asyncio.sleep(simulation.start_s / simulation.speed)
    try:
        _die_at_start(faults, values, surface)
    except StartFailed:
        for child in children:
            child.terminate()
        raise
    report_pool(values, simulation, simulation.start_s / simulation.speed)
    name = str(args.get("served_model_name", model))
    scheduler, labels = Scheduler(simulation, values, launch, name), cache_labels(values, simulation)
    key = os.environ.get("VLLM_API_KEY", "")
    server = Server(scheduler, name, model, labels, lambda done: _die_under_load(faults, done), key)
    engine = asyncio.create_task(scheduler.run())
    await asyncio.start_server(server.connection, sock=listener, backlog=512)
    log("APIServer", "entry.py:140", f"Starting vLLM server on http://{args.get('host')}:{args.get('port')}")
    sys.stderr.write("INFO:     Application startup complete.\n")
    await _until_stopped(server, children, faults, engine)


async def _until_stopped(
    server: Server, children: list[subprocess.Popen[bytes]], faults: _Map, engine: asyncio.Task[None]
) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGINT,) if faults.get("ignore_term") else (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    lines = faults.get("spam_lines_s", 0)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.05)
        if lines:
            sys.stdout.write(("the log says nothing of use, at length, " * 25 + "\n") * max(1, lines // 20))
        if engine.done() or any(child.poll() is not None for child in children):
            server.dead = True
            log("APIServer", "core_client.py:1", "Engine core proc EngineCore_0 died unexpectedly.", "ERROR")
            await asyncio.sleep(0.2)
            break
    log("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
    await asyncio.sleep(faults.get("stop_s", 0))
    for child in children:
        child.terminate()
        child.wait()
    sys.stdout.flush()
    os._exit(1 if server.dead else 0)


def _child(*, apart: bool = False) -> subprocess.Popen[bytes]:
    """A process that waits to be ended, even when its parent is gone."""
    command = ["VLLM::EngineCore", "-S", "-E", "-c", "import signal; signal.pause()"]
    return subprocess.Popen(command, executable=sys.executable, start_new_session=apart)


def _die_at_start(faults: _Map, values: _Map, surface: Surface) -> None:
    if "replay" in faults:
        sys.stdout.write(Path(faults["replay"]).read_text(encoding="utf-8"))
        sys.stdout.flush()
        os._exit(faults.get("exit_code", 1))
    cause = faults.get("die_at_start") or surface.failure(values)
    if isinstance(cause, int):
        os.kill(os.getpid(), cause)
    elif cause:
        raise failure_of(cause, values, surface)


def _die_under_load(faults: _Map, done: int) -> None:
    if done < faults.get("die_after_requests", float("inf")):
        return
    text = "RuntimeError: CUDA error: an illegal memory access was encountered"
    log("EngineCore", "core.py:1", text, "ERROR")
    text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    fail(StartFailed(f"vllm.v1.engine.exceptions.EngineDeadError: {text}"))


if __name__ == "__main__":
    main()
