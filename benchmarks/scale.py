"""Many slots and many trials through the loop of `tune`: what the driver costs a trial, and whether slots wait for it.

    python benchmarks/scale.py --slots 64 --trials 1000            slots in the driver
    python benchmarks/scale.py --slots 16 --trials 300 --nodes 4   slots on so many real raylets of this host

In the driver no engine runs: a slot sleeps through 60 seconds a trial, `--speed` times as fast, and answers from a
formula. On raylets a slot is the real one, and its engine the simulated one, whose start lasts 60 seconds, so many
times as fast: as many processes that answer requests share the host with what is measured. CPU of
MLflow and of Optuna is that of the thread inside them; Ray's is that of calls to workers, and of the threads that are
no Python's, which are its own; the rest of the process is ours. Idle is the time in which a
slot had no trial, from the first launch to the last, so that the end of the study, where trials run out, is left out.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

from orchestrator import engine_actor, rehearsal, session, study
from orchestrator.memory import Memory
from orchestrator.plan import TuningPlan
from orchestrator.progress import Progress
from orchestrator.simulated_environment import simulated_environment
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.slots import LocalSlots
from orchestrator.workload import Workload
from trackers.mlflow_tracker import MlflowTracker
from trackers.records import Check, Failure, Launch, Measurement, TrialRecord
from trackers.sync import SyncCounts

START_S, WINDOW_S, WINDOWS = 30.0, 10.0, 3
SPANS: list[tuple[float, float]] = []
MARKS: list[tuple[float, dict[str, float], int]] = []
SPENT = {"MLflow": 0.0, "Optuna": 0.0, "Ray": 0.0}


class SleepingSlot:
    """60 seconds a trial, and numbers that depend on the configuration, the launch and the window."""

    def __init__(self, speed: float) -> None:
        self.speed, self.order = speed, None
        self.halt = threading.Event()

    def preflight(self, _: LaunchOrder) -> Failure | None:
        return None

    def launch(self, order: LaunchOrder) -> LaunchReport:
        self.order = order
        self.halt.wait(START_S / self.speed)
        launch = Launch(launch=order.launch, started_at=time.time(), ready_s=START_S, argv=("serve", *order.args))
        return LaunchReport(launch=launch, base_url="http://127.0.0.1:1", model="m")

    def measure(self, workload: Workload, window: int) -> Measurement:
        self.halt.wait(WINDOW_S / self.speed)
        order: Any = self.order
        value = 100 + 20 * random.Random(repr(order.args)).random() + random.Random(order.trial_id).gauss(0, 1)
        value += random.Random(f"{order.trial_id}{window}").gauss(0, 0.1)
        percentiles = {f"p{p}_{name}_ms": value for p in (50, 90, 99) for name in ("ttft", "tpot", "itl", "e2el")}
        return Measurement(
            workload=workload.ref, launch=order.launch, window=window, started_at=time.time(), duration_s=WINDOW_S,
            completed=32, failed=0, total_input_tokens=1000, total_output_tokens=4000,
            metrics={"decode_tok_s": value, "prefill_tok_s": 5000.0, **percentiles},
        )  # fmt: skip

    def check_gates(self, _: Any) -> tuple[Check, ...]:
        return ()

    def stop(self) -> Launch | None:
        order, self.order = self.order, None
        return order and Launch(launch=order.launch, started_at=time.time(), ready_s=START_S, argv=("serve",))

    def status(self) -> str:
        return "sleeping"

    def abort(self) -> None:
        self.halt.set()


class Silent(Progress):
    def line(self, text: str) -> None:
        if "lost" in text or "MLflow" in text:
            print(text, file=sys.stderr)

    def now(self, engine: str, text: str) -> None: ...


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **more: Any) -> Any:
        begun = time.thread_time()
        try:
            return function(*args, **more)
        finally:
            SPENT[name] += time.thread_time() - begun

    return run


def native_s() -> float:
    """CPU of this process's threads that Python did not start."""
    known = {one.native_id for one in threading.enumerate() if type(one).__name__ != "_DummyThread"}
    return sum(one.user_time + one.system_time for one in psutil.Process().threads() if one.id not in known)


def plan(slots: int, trials: int, nodes: int) -> TuningPlan:
    knobs = {
        "max_num_seqs": [2, 4, 8, 16, 32],
        "max_num_batched_tokens": [1024, 2048, 4096, 8192],
        "enable_prefix_caching": [True, False],
        "gpu_memory_utilization": [0.7, 0.8, 0.9],
        "drafter": {"none": {}, "ngram": {"k": list(range(1, 16))}},
    }
    return TuningPlan.model_validate(
        {
            "name": "scale",
            "model": {"id": "org/model"},
            "engines": [{"name": "engine", "simulated": "null/0/old"}],
            "workloads": [{"name": "edit", "kind": "edit"}],
            "space": knobs,
            "precision": {"relative": "5%", "min_windows": WINDOWS, "max_windows": WINDOWS, "launch_noise": "2%"},
            "finalists": {"count": 1, "launches": 1},
            "budget": {"launches": trials},
            "slots": {"count": slots, **({"gpus": 1, "nodes": nodes} if nodes else {})},
        }
    )


@contextmanager
def raylets(nodes: int, slots: int, folder: Path) -> Iterator[str | None]:
    """So many raylets on this host, with a GPU for each slot, which is none; None without."""
    if not nodes:
        yield None
        return
    (folder / "token").write_text("0" * 64)
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {**settings, "RAY_worker_niceness": "0", "PYTHONPATH": str(Path(__file__).parents[1])}
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - settings are read when Ray is imported

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, num_gpus=-(-slots // nodes))
        yield cluster.address
    finally:
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("slots", 64), ("trials", 1000), ("nodes", 0), ("speed", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--untracked", action="store_true", help="send nothing to MLflow")
    args = parser.parse_args()
    if args.untracked:
        session.sync = lambda *_: SyncCounts()
    timed = {"Optuna": (study.Searcher, "__init__", "ask", "tell"), "MLflow": (MlflowTracker, "record", "close_study")}
    timed["Ray"] = (vars(engine_actor)["_RaySlot"], "_call")
    for name, (owner, *methods) in timed.items():
        for method in methods:
            setattr(owner, method, counted(name, getattr(owner, method)))
    folder = Path(tempfile.mkdtemp(prefix="repeak-scale-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ |= {"REPEAK_HOME": str(folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    kept = Memory.remember

    def make(_: str, **__: Any) -> SleepingSlot:
        return SleepingSlot(args.speed)

    def remember(memory: Memory, record: TrialRecord) -> None:
        kept(memory, record)
        SPANS.append((record.started_at, record.started_at + record.duration_s))
        spent = {**SPENT, "Ray": SPENT["Ray"] + native_s()} if args.nodes else dict(SPENT)
        MARKS.append((time.process_time(), spent, psutil.Process().memory_info().rss))

    Memory.remember = remember  # type: ignore[method-assign]
    rehearsal.simulated_environment = lambda simulation, directory: simulated_environment(
        replace(simulation, start_s=60 / args.speed), directory
    )
    local = None if args.nodes else LocalSlots(args.slots, make=make)
    with raylets(args.nodes, args.slots, folder) as address:
        begun = time.monotonic()
        result = session.tune_plan(
            plan(args.slots, args.trials, args.nodes), address=address, slots=local, progress=Silent()
        )
        wall = time.monotonic() - begun
    what = "of simulated engines that start in 60 s" if args.nodes else "of 60 s"
    print(f"{result.launches} trials {what}, {args.speed} times as fast, on {args.slots} slots in {wall:.0f} s")
    for name, first, last in (("first half", 0, len(MARKS) // 2), ("second half", len(MARKS) // 2, len(MARKS) - 1)):
        (cpu, spent, _), (cpu_after, spent_after, _) = MARKS[first], MARKS[last]
        parts = {part: spent_after[part] - spent[part] for part in SPENT}
        told = {"ours": cpu_after - cpu - sum(parts.values()), **parts}
        shown = ", ".join(f"{part} {1000 * used / (last - first):.1f} ms" for part, used in told.items())
        print(f"driver CPU of a trial, {name}: {shown}")
    loaded = next((mark for mark in MARKS if mark[1]["MLflow"] > MARKS[0][1]["MLflow"]), MARKS[0])
    points = {"after the first trial": MARKS[0], "with MLflow loaded": loaded, "after the last": MARKS[-1]}
    print("memory: " + ", ".join(f"{mark[2] >> 20} MiB {when}" for when, mark in points.items()))
    if SPANS:
        spans = sorted(SPANS)
        first_at, last_at = spans[0][0], spans[-1 - min(args.slots, len(spans) // 2)][0]
        busy = sum(max(0.0, min(end, last_at) - start) for start, end in spans)
        print(f"slots idle: {1 - busy / (args.slots * (last_at - first_at)):.1%}")


if __name__ == "__main__":
    main()
