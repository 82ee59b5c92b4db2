"""What MLflow costs a trial, told in one go as the tracker does it, and item by item.

Run by hand: `.venv/bin/python benchmarks/tracking_cost.py [--trials 20] [--server]`. It prints this machine's
milliseconds, and the ratio, which is what carries over.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from orchestrator.clock import SystemClock
from orchestrator.mlflow_ui import serve_ui
from orchestrator.process_tree import free_port
from search_spaces.configuration import Configuration
from trackers.artifact_pass import stage
from trackers.entries import StudyOpened
from trackers.mlflow_layout import trial_run
from trackers.mlflow_tracker import MlflowTracker
from trackers.records import Estimate, Launch, Measurement, StackFingerprint, TrialRecord, WorkloadRef

STACK = StackFingerprint(items={"vllm": "0.32.0", **{f"item{number}": "value" for number in range(25)}})
WORKLOADS = tuple(WorkloadRef(name=name, sha256=name[0] * 64) for name in ("generate", "edit", "structured"))
NAMES = ["decode_tok_s", "prefill_tok_s", "output_throughput", "acceptance_length", "passes_s"]
NAMES += [f"{kind}_{what}_ms" for what in ("ttft", "tpot", "itl", "e2el") for kind in ("mean", "median", "p90", "p99")]
TRIAL_S = 60.0


def windows() -> Iterator[Measurement]:
    for launch in range(2):
        for workload in WORKLOADS:
            for number in range(4):
                yield Measurement(
                    workload=workload,
                    launch=launch,
                    window=number,
                    started_at=1e9 + number,
                    duration_s=2.0,
                    completed=8,
                    failed=0,
                    total_input_tokens=1000,
                    total_output_tokens=2000,
                    metrics=dict.fromkeys(NAMES, 10.0 + number),
                )


def trial(number: int, log: Path) -> TrialRecord:
    return TrialRecord(
        trial_id=f"t{number}",
        study="cost",
        number=number,
        role="search",
        state="measured",
        reason="stable",
        configuration=Configuration(values={"drafter": "ngram", "k": number, "max_num_seqs": 16}),
        fingerprint=STACK,
        workloads=WORKLOADS,
        launches=tuple(Launch(launch=n, started_at=1e9, ready_s=30.0, log_path=str(log)) for n in range(2)),
        windows=tuple(windows()),
        estimates={
            f"{workload.name}/{name}": Estimate(value=11.0, half_width=1.0, launches=2, windows=8, ending="stable")
            for workload in WORKLOADS
            for name in NAMES
        },
        started_at=1e9,
        duration_s=TRIAL_S,
    )


def item_by_item(tracker: MlflowTracker, record: TrialRecord, opened: StudyOpened) -> None:
    """The same run through MLflow's one-value calls."""
    experiment_id, parent = tracker.open_study(opened)
    content = trial_run(record, lambda text: text)

    def write(client: Callable[..., object]) -> None:
        run_id = client.create_run(experiment_id, run_name=content.name).info.run_id
        for name, value in {**content.tags, "mlflow.parentRunId": parent}.items():
            client.set_tag(run_id, name, value)
        for name, value in content.params.items():
            client.log_param(run_id, name, value)
        for point in content.metrics:
            client.log_metric(run_id, point.key, point.value, point.timestamp_ms, point.step)
        with tempfile.TemporaryDirectory() as place:
            stage(content, Path(place), lambda text: text)
            for path in Path(place).rglob("*"):
                if path.is_file():
                    client.log_artifact(run_id, str(path))
        client.set_terminated(run_id)

    tracker._do(write)  # noqa: SLF001 - the connection that is measured


def cost(action: Callable[[TrialRecord], object], log: Path, first: int, count: int) -> tuple[float, float]:
    """(wall, client CPU) of one trial in milliseconds: the median."""
    spent = []
    for number in range(first, first + count):
        record = trial(number, log)
        wall, cpu = time.perf_counter(), time.process_time()
        action(record)
        spent.append((1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)))
    return median(wall for wall, _ in spent), median(cpu for _, cpu in spent)


def compare(uri: str, home: Path, count: int, name: str) -> None:
    log = home / "launch.log"
    log.write_text("INFO a line of the server's log\n" * 1000)
    opened = StudyOpened(study="cost", plan=name, model="m", machine="cpu", fingerprint=STACK, started_at=1e9)
    with MlflowTracker(uri, home / "artifacts") as tracker:
        tracker.record(trial(-1, log), opened)
        whole = cost(lambda record: tracker.record(record, opened), log, 0, count)
        single = cost(lambda record: item_by_item(tracker, record, opened), log, count, max(1, count // 4))
    content = trial_run(trial(0, log), lambda text: text)
    sizes = len(content.metrics), len(content.params), len(content.tags)
    print("{}: {} metrics, {} params, {} tags a trial".format(name, *sizes))
    for way, (wall, cpu) in (("in one go", whole), ("item by item", single)):
        share = wall / TRIAL_S / 10
        print(f"  {way:<13} {wall:9.0f} ms wall {cpu:8.0f} ms client CPU {share:8.2f} % of a 60 s trial")
    print(f"  ratio         {single[0] / whole[0]:9.1f} x {single[1] / whole[1]:13.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--server", action="store_true", help="also through an MLflow server on loopback")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        home = Path(place)
        uri = f"sqlite:///{home}/mlflow.db"
        compare(uri, home, asked.trials, "SQLite")
        if asked.server:
            ui = serve_ui(uri, home / "artifacts", home / "log", SystemClock(), port=free_port())
            base, _ = stack.enter_context(ui)
            compare(base, home, asked.trials, "server")


if __name__ == "__main__":
    main()
