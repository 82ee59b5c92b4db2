"""How tests run the real command line on real engines, in a data directory of their own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.janitor import Running, read
from orchestrator.process_tree import cookie_holders

# Launches of one configuration on shared cores lie apart by about a tenth.
PLAN = """
name: {name}
model: {{path: "{model}"}}
engines: [{engines}]
serve: {{max_model_len: 1024, max_num_seqs: 4, max_num_batched_tokens: 1024, enable_prefix_caching: false}}
workloads:
  - {{name: edit, kind: edit, prompt_tokens: 96, output_tokens: 48, requests_per_window: 1}}
space:
  drafter: {{none: {{}}, ngram: {{k: [8], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}
precision: {{relative: 15%, min_windows: 3, max_windows: {windows}, launch_noise: 10%}}
finalists: {{count: 1, launches: 1}}
budget: {{launches: {launches}, time: 60m}}
"""


def write(place: Path, name: str, *, engines: str, launches: int, windows: int = 4) -> Path:
    plan = place / f"{name}.yaml"
    model = place / "models" / "smollm2-135m"
    text = PLAN.format(name=name, model=model, engines=engines, launches=launches, windows=windows)
    plan.write_text(text, encoding="utf-8")
    return plan


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestrator", *arguments]
    return subprocess.Popen(
        command, cwd=place, env={**os.environ, "REPEAK_HOME": str(place)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], what: str, within_s: float = 1200.0) -> None:
    """Read its progress until a line holds `what`."""
    assert process.stderr is not None
    deadline, seen = time.monotonic() + within_s, ""
    while time.monotonic() < deadline:
        if select.select([process.stderr], [], [], 5.0)[0]:
            line = process.stderr.readline()
            seen += line
            if what in line:
                return
            if not line and process.poll() is not None:
                break
    raise AssertionError(f"{what!r} never came; it said:\n{seen}")


def wait_for_engine(place: Path, within_s: float = 120.0) -> None:
    """Until a process of an engine runs, be it ready or not."""
    deadline = time.monotonic() + within_s
    while not engine_cookies(place):
        assert time.monotonic() < deadline, "no engine was started"
        select.select([], [], [], 0.25)


def cookies(place: Path) -> list[str]:
    return [entry.cookie for entry in entries(place)]


def engine_cookies(place: Path) -> list[str]:
    """Of the engines that run; what an earlier run left on record is none."""
    return [one for one in cookies(place) if not one.startswith("preflight") and cookie_holders(one)]


def entries(place: Path) -> list[Running]:
    return [entry for file in (place / "running").glob("*.json") if (entry := read(file))]


def worker_of(place: Path, cookie: str) -> int:
    """The process that owns an engine: its slot's worker."""
    return next(entry.owner.pid for entry in entries(place) if entry.cookie == cookie)


def core_of(place: Path, cookie: str) -> int:
    """The process that computes, below the one that answers."""
    names = {who.pid: Path(f"/proc/{who.pid}/cmdline").read_bytes() for who in cookie_holders(cookie)}
    return next(pid for pid, name in names.items() if b"EngineCore" in name)


def engines_left(place: Path, within_s: float = 20.0, *, known: Sequence[str] | None = None) -> list[int]:
    """Pids that still carry one of these cookies, by default any of this place, once the time is over."""
    known, deadline = cookies(place) if known is None else known, time.monotonic() + within_s
    left = [who.pid for cookie in known for who in cookie_holders(cookie)]
    while left and time.monotonic() < deadline:
        select.select([], [], [], 0.25)
        left = [who.pid for cookie in known for who in cookie_holders(cookie)]
    return left
