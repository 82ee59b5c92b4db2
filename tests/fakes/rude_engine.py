"""An engine server with bad manners, chosen by flags; standard library only, run as a child process."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--say", help="a file whose text is printed first")
    parser.add_argument("--exit", type=int, help="then exit with this code")
    parser.add_argument("--kill-self", type=int, help="then die by this signal")
    parser.add_argument("--child", action="store_true", help="have a plain child process")
    parser.add_argument("--fork-away", action="store_true", help="have one in a session of its own, orphaned")
    parser.add_argument("--wipe", action="store_true", help="let the orphan have no environment")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--never-listen", action="store_true")
    parser.add_argument("--hang-health", action="store_true")
    parser.add_argument("--hang-after", type=int, help="never answer this completion, counted from 0, nor later ones")
    parser.add_argument("--die-after", type=int, help="die at this completion, counted from 0")
    parser.add_argument("--refuse", action="store_true", help="answer completions with 500 and live on")
    parser.add_argument("--share", help="hold shared memory of this name, as engines do between their processes")
    parser.add_argument("--spam", action="store_true", help="fill the log")
    return parser.parse_args()


def offspring(args: argparse.Namespace) -> None:
    if args.child:
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    if args.fork_away:
        popen = f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True)"
        env = {} if args.wipe else None
        subprocess.run([sys.executable, "-c", f"import subprocess, sys; {popen}"], check=True, env=env)


def handler(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    completions = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health" and args.hang_health:
                time.sleep(600)
            models = {"data": [{"id": "m", "max_model_len": 2048}]}
            self.answer(200, {"/v1/models": models, "/version": {"version": "0.0.1"}}.get(self.path, {}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            number = next(completions)
            if args.hang_after is not None and number >= args.hang_after:
                time.sleep(600)
            if args.die_after is not None and number >= args.die_after:
                print("AssertionError: this engine serves no more", flush=True)
                signal.raise_signal(signal.SIGABRT)
            if args.refuse:
                self.answer(500, {"error": {"message": "no"}})
            else:
                self.answer(200, {"choices": [{"text": "a"}]})

        def answer(self, status: int, body: dict[str, object]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    args = arguments()
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    offspring(args)
    socket.socket(socket.AF_UNIX).bind(os.path.join(os.environ["VLLM_RPC_BASE_PATH"], "left-behind"))  # noqa: PTH118
    tempfile.mkstemp(prefix="left-too-")
    shared = SharedMemory(args.share, create=True, size=4096) if args.share else None
    print(Path(args.say).read_text() if args.say else "INFO 11-29 12:00:00 [a.py:1] loading", flush=True)
    if args.exit is not None:
        raise SystemExit(args.exit)
    if args.kill_self is not None:
        os.kill(os.getpid(), args.kill_self)
    while args.spam:
        print("x" * 4096, flush=True)
    if args.never_listen:
        threading.Event().wait(600)
    assert shared is None or shared.buf is not None
    ThreadingHTTPServer((args.host, args.port), handler(args)).serve_forever()


if __name__ == "__main__":
    main()
