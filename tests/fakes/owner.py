"""Owns one engine server until it is killed: prints the pids it knows as JSON, then waits."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from orchestrator.clock import SystemClock
from orchestrator.engine_server import EngineServer, ServerLimits

# Where tests run in a shell's background it is ignored, and a child inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
run_dir, running_dir, cookie, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
server = EngineServer(
    sys.argv[5:],
    dict(os.environ),
    run_dir=run_dir,
    cookie=cookie,
    limits=ServerLimits(stop_grace_s=1.0, tree_grace_s=0.5, orphan_grace_s=0.5),
    clock=SystemClock(),
    running_dir=running_dir,
)


def show(text: str) -> None:
    print(json.dumps(text), flush=True)


if mode == "starting":
    server.start(show)
with server:
    server.start(lambda _: None)
    if "forked" in mode and os.fork() == 0:
        signal.pause()
    show("ready")
    threading.Event().wait(300)
