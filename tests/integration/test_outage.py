"""A study whose store is down from first to last ends all the same, and `repeak sync` makes up for all of it."""

from __future__ import annotations

import itertools
import shutil
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_slot import OneSlot, ScriptedSlot

from orchestrator.cli_keep import sync_command
from orchestrator.clock import SystemClock
from orchestrator.plan import TuningPlan
from orchestrator.progress import PlainProgress
from orchestrator.rehearsal import rehearsed
from orchestrator.session import tune_plan
from orchestrator.slot import LaunchOrder
from trackers.mlflow_tracker import MlflowTracker
from trackers.records import Failure

PLAN = {
    "name": "outage",
    "model": {"id": "org/model"},
    "engines": ["vllm==0.32.0"],
    "incumbent": "vllm serve org/model --max-num-seqs 8",
    "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 32, "output_tokens": 32}],
    "space": {"drafter": {"none": {}, "mtp": {"k": [2]}}, "max_num_seqs": [8, 16]},
    "precision": {"relative": "5%", "min_windows": 3, "max_windows": 3, "launch_noise": "1%"},
    "finalists": {"count": 1, "launches": 1},
}


class Counting(SystemClock):
    """A second passes with each look, so that two studies of the same course have the same times."""

    def __init__(self) -> None:
        self.at = itertools.count(1.7e9)

    def time(self) -> float:
        return next(self.at)

    def monotonic(self) -> float:
        return next(self.at)


def failure(order: LaunchOrder) -> Failure | None:
    wide = order.settings["max_num_seqs"] == "16" and order.drafter == "mtp"
    return Failure(cause="out_of_memory_kv", kind="infeasible", message="No memory is left.") if wide else None


def study(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run it whole; what was said."""
    said: list[str] = []
    slot = ScriptedSlot(lambda order, _, window: 100.0 + window + 40 * (order.drafter == "mtp"), failure)
    plan = rehearsed(TuningPlan.model_validate(PLAN))
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.study.uuid", SimpleNamespace(uuid4=lambda: uuid.UUID(int=0)))
        result = tune_plan(plan, slots=OneSlot(slot), progress=PlainProgress(said.append), clock=Counting())
    assert result.exit_code == 0
    return said


def sync() -> int:
    """The command's exit code."""
    code: int = CliRunner().invoke(sync_command, catch_exceptions=False, standalone_mode=False).return_value
    return code


def state(home: Path) -> dict[str, Any]:
    """Everything the store holds, without what it makes up itself (ids and places)."""

    def read(client: Any) -> dict[str, Any]:
        runs: dict[str, Any] = {}
        for run in client.search_runs([one.experiment_id for one in client.search_experiments()], run_view_type=3):
            tags = {name: value for name, value in run.data.tags.items() if name != "mlflow.parentRunId"}
            uid = tags.get("repeak.trial_uid") or tags["repeak.study_uid"]
            assert uid not in runs, "a run is there twice"
            metrics = {
                name: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, name))
                for name in run.data.metrics
            }
            inputs = sorted((one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs)
            info = (run.info.status, run.info.start_time, run.info.end_time, run.info.run_name)
            files = sorted((one.path, one.file_size) for one in client.list_artifacts(run.info.run_id))
            runs[uid] = {
                "tags": tags, "params": run.data.params, "metrics": metrics, "inputs": inputs, "info": info,
                "files": files,
            }  # fmt: skip
        return runs

    with MlflowTracker(f"sqlite:///{home / 'mlflow.db'}", home / "mlartifacts") as tracker:
        return tracker._do(read)


@pytest.mark.timeout(600)
def test_sync_brings_the_store_to_exactly_the_state_it_would_have_had(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    found = []
    for down in (False, True):
        home.mkdir()
        monkeypatch.setenv("REPEAK_HOME", str(home))
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        store = home / "mlflow.db"
        if down:
            store.write_text("no database " * 100)
        else:
            shutil.copyfile(empty_store, store)
        said = study(monkeypatch)
        outages = [line for line in said if "The journal has everything." in line]
        assert bool(outages) == down
        assert len(outages) <= 2, "told once, and once more at the end"
        if down:
            assert sync() == 1, "it is still down"
            shutil.copyfile(empty_store, store)
        assert sync() == 0
        found.append(state(home))
        home.rename(tmp_path / f"home-{down}")
    up, made_up_for = found
    assert len(up) > 4
    assert {run["info"][0] for run in up.values()} >= {"FINISHED", "FAILED"}
    assert made_up_for == up
