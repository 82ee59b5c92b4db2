"""An engine that hangs, falls silent, fills the disk or wants a key: bounded, named, measured, and gone afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator import local_slot
from orchestrator.clock import SystemClock
from orchestrator.engine_server import ServerLimits
from orchestrator.launch_noise import LaunchNoise
from orchestrator.load_client import measure_window
from orchestrator.local_slot import LocalSlot
from orchestrator.process_tree import Process, cookie_holders
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_moves import GH200
from orchestrator.simulated_spec import Simulation
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.stability import StabilityRule
from orchestrator.trial import TrialPlan, run_trial
from orchestrator.workload import Workload
from search_spaces.configuration import Configuration
from trackers.records import Launch, Measurement, StackFingerprint, TrialRecord

LIMITS = partial(ServerLimits, stop_grace_s=2.0, tree_grace_s=1.0, log_limit_bytes=1 << 20)


class Freezing(LocalSlot):
    """Its engine is stopped as soon as it is ready."""

    def launch(self, order: LaunchOrder) -> LaunchReport:
        report = super().launch(order)
        assert self._ready is not None
        os.kill(self._ready.pid, signal.SIGSTOP)
        return report


class Watching(LocalSlot):
    """Notes what of each engine is left when its launch has returned."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left: list[list[Process]] = []

    def launch(self, order: LaunchOrder) -> LaunchReport:
        report = super().launch(order)
        self.left.append(holders(order.trial_id))
        return report


class Forgetful:
    def launch(self, trial_id: str, launch: Launch) -> None: ...

    def window(self, trial_id: str, window: Measurement) -> None: ...


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A trial's id; whatever still carries its mark at the end is ended."""
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    monkeypatch.setattr(local_slot, "ServerLimits", LIMITS)
    monkeypatch.setattr(local_slot, "measure_window", partial(measure_window, stall_s=1.0))
    name = uuid4().hex
    yield name
    for who in holders(name):
        os.kill(who.pid, signal.SIGKILL)


def holders(trial: str) -> list[Process]:
    return [who for launch in (0, 1) for who in cookie_holders(f"r-{trial}-{launch}")]


def run(trial: str, place: Path, slot: LocalSlot, **faults: object) -> TrialRecord:
    surface = replace(GH200, state_groups=0, block_size=16, max_model_len=8192)
    environment = simulated_environment(Simulation(surface=surface, children=1, faults=faults), place / "engine")
    plan = TrialPlan(
        trial_id=trial,
        study="s",
        number=0,
        role="search",
        configuration=Configuration(values={"drafter": "none"}),
        fingerprint=StackFingerprint(items={"vllm": "1"}),
        workloads=(Workload(name="generate", kind="generate", prompt_tokens=32, output_tokens=32),),
        metric="decode_tok_s",
        rule=StabilityRule(precision=0.3, min_windows=3, max_windows=3, max_launches=1),
        noise=lambda workload, metric: LaunchNoise(sd=0.02, dof=4),
        order=lambda launch: LaunchOrder(
            environment=environment, model="m", args=(), run_dir=place / f"run-{launch}", run_id="r",
            trial_id=trial, launch=launch, start_timeout_s=60.0,
        ),
    )  # fmt: skip
    return run_trial(plan, slot, Forgetful(), clock=SystemClock())


def test_a_frozen_engine_is_named_tried_once_more_and_gone(trial: str, tmp_path: Path) -> None:
    record = run(trial, tmp_path, Freezing("e"))
    assert record.state == "engine_failed"
    assert "not_measurable" in record.reason
    assert len(record.launches) == 2
    assert holders(trial) == []


def test_an_engine_that_answers_health_and_falls_silent_is_named_and_gone(trial: str, tmp_path: Path) -> None:
    record = run(trial, tmp_path, LocalSlot("e"), stall_after_tokens=5)
    assert record.state == "engine_failed"
    assert "stalled: nothing for 1 s" in record.reason
    assert holders(trial) == []


def test_a_log_that_grows_without_end_while_serving_ends_the_study_by_name(trial: str, tmp_path: Path) -> None:
    record = run(trial, tmp_path, LocalSlot("e"), spam_lines_s=2000)
    assert record.state == "engine_failed"
    assert record.failure is not None
    assert (record.failure.cause, record.failure.kind) == ("disk_full_log", "environment")
    assert holders(trial) == []


def test_one_that_ignores_a_term_and_forked_away_is_gone_when_its_trial_ends(trial: str, tmp_path: Path) -> None:
    record = run(trial, tmp_path, LocalSlot("e"), ignore_term=True, grandchild=True)
    assert record.launches[0].stopped_s is not None
    assert record.launches[0].stopped_s < 20
    assert holders(trial) == []


def test_a_key_that_the_engine_inherits_from_the_shell_opens_it(
    trial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret-value")
    record = run(trial, tmp_path, LocalSlot("e"))
    assert (record.state, len(record.windows)) == ("measured", 3), record.reason
    assert "s3cret" not in record.model_dump_json()
    assert "vllm:" in (tmp_path / "run-0" / "metrics-before.txt").read_text(encoding="utf-8")


def test_a_disk_of_ours_that_takes_no_more_once_the_engine_is_up_leaves_none_running(
    trial: str, tmp_path: Path
) -> None:
    for launch in (0, 1):
        (tmp_path / f"run-{launch}" / "metrics-before.txt").mkdir(parents=True)
    slot = Watching("e")
    record = run(trial, tmp_path, slot)
    assert (record.state, len(record.launches), slot.left) == ("engine_failed", 2, [[], []])
    assert "metrics-before" in record.reason or "metrics-before" in record.launches[0].failure.evidence  # type: ignore[union-attr]
