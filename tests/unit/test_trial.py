"""One trial: repeats until stable, stops before it speaks, and names why it has no number."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scripted_slot import ScriptedSlot, Value

from orchestrator.clock import SystemClock
from orchestrator.engine_environment import EngineEnvironment
from orchestrator.errors import EngineFailed, Interrupted, MeasurementFailed, RepeakError, SlotLost
from orchestrator.launch_noise import LaunchNoise
from orchestrator.slot import LaunchOrder
from orchestrator.stability import StabilityRule
from orchestrator.trial import TrialPlan, run_trial
from orchestrator.workload import Workload
from search_spaces.configuration import Configuration, Scalar
from trackers.records import Check, Failure, Launch, Measurement, StackFingerprint, TrialRecord

EDIT = Workload(name="edit", kind="edit", output_tokens=16)
OPEN = Workload(name="open", kind="generate", output_tokens=16)


@dataclass
class Kept:
    launches: list[Launch] = field(default_factory=list)
    windows: list[Measurement] = field(default_factory=list)

    def launch(self, trial_id: str, launch: Launch) -> None:
        self.launches.append(launch)

    def window(self, trial_id: str, window: Measurement) -> None:
        self.windows.append(window)


def order(launch: int) -> LaunchOrder:
    environment = EngineEnvironment(
        key="k", requirement="vllm==1", version="1", python=Path("python"), directory=None, flavour="other",
        lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    return LaunchOrder(
        environment=environment, model="m", args=(), run_dir=Path("x"), run_id="r", trial_id="t",
        launch=launch, start_timeout_s=1.0,
    )  # fmt: skip


def run(
    slot: ScriptedSlot, kept: Kept | None = None, values: dict[str, Scalar] | None = None, **rule: int
) -> TrialRecord:
    plan = TrialPlan(
        trial_id="t",
        study="s",
        number=0,
        role="search",
        configuration=Configuration(values=values or {"drafter": "none"}),
        fingerprint=StackFingerprint(items={"vllm": "1"}),
        workloads=(EDIT, OPEN),
        metric="decode_tok_s",
        rule=StabilityRule(precision=0.05, **({"min_windows": 4, "max_windows": 6, "max_launches": 1} | rule)),
        noise=lambda workload, metric: LaunchNoise(sd=0.02, dof=4),
        order=order,
    )
    return run_trial(plan, slot, kept or Kept(), clock=SystemClock())


def steady(order: LaunchOrder, workload: Workload, window: int) -> float:
    return 100.0 + window % 2


def test_a_steady_engine_is_measured_with_an_interval_no_smaller_than_launches_differ() -> None:
    kept = Kept()
    record = run(ScriptedSlot(steady), kept)
    assert record.state == "measured"
    edit = record.estimates["edit/decode_tok_s"]
    assert edit.launches == 1
    assert edit.relative >= 1.96 * 0.02
    assert len(kept.windows) == len(record.windows) == 8
    assert [window.workload.name for window in record.windows[:2]] == ["edit", "open"], "workloads take turns"


def test_a_transient_failure_is_tried_once_more_and_an_infeasible_one_is_not() -> None:
    def failing(kind: str) -> ScriptedSlot:
        fault = Failure(cause="x", kind=kind, message="m")  # type: ignore[arg-type]
        return ScriptedSlot(steady, lambda order: fault if kind != "transient" or order.launch == 0 else None)

    retried = failing("transient")
    assert run(retried).state == "measured"
    assert len(retried.launched) == 2
    refused = failing("infeasible")
    assert run(refused).state == "engine_failed"
    assert len(refused.launched) == 1


def misbehaving(value: object, at: int = 2) -> Value:
    return lambda order, workload, window: value if window == at else 100.0  # type: ignore[return-value]


def test_an_engine_that_dies_under_load_fails_with_its_cause_and_keeps_its_windows() -> None:
    record = run(ScriptedSlot(misbehaving(EngineFailed("died"))))
    assert record.state == "engine_failed"
    assert record.reason.startswith("crashed_under_load")
    assert len(record.windows) == 4
    assert not record.estimates


def test_a_failed_proof_disproves_the_trial_by_name() -> None:
    record = run(ScriptedSlot(misbehaving(Check(name="cold_prefix", passed=False, detail="3 hits"))))
    assert record.state == "disproved"
    assert record.reason == "cold_prefix: 3 hits"


def test_a_launch_is_asked_to_repeat_itself_unless_its_tokens_are_accepted_by_lot() -> None:
    drafting = {"drafter": "mtp", "k": 2}
    by_lot = {"drafter.rejection_sample_method": "synthetic", "drafter.synthetic_acceptance_rates": "[0.9, 0.8]"}
    for values, asked in ((drafting, ["greedy_repeats"]), (drafting | by_lot, [])):
        slot = ScriptedSlot(steady)
        run(slot, values=values)
        assert slot.asked == asked


def test_a_window_of_a_starved_client_is_taken_again_and_never_scored() -> None:
    starved = Check(name="client_bound", passed=False, detail="40 %")
    record = run(ScriptedSlot(misbehaving(starved)))
    assert record.state == "measured"
    assert all(not window.disproved for window in record.windows)
    always = run(ScriptedSlot(lambda *_: starved))
    assert always.state == "client_bound"


def test_interrupted_and_lost_trials_keep_what_was_measured_and_have_no_value() -> None:
    for error, state in ((Interrupted("stop"), "interrupted"), (SlotLost("gone"), "lost")):
        record = run(ScriptedSlot(misbehaving(error)))
        assert record.state == state
        assert len(record.windows) == 4
        assert not record.estimates


def test_a_launch_whose_worker_died_is_on_record_as_paid_for() -> None:
    class Gone(ScriptedSlot):
        def stop(self) -> Launch | None:
            raise SlotLost("gone")

    kept = Kept()
    record = run(Gone(lambda *_: SlotLost("gone")), kept)
    assert (record.state, [launch.launch for launch in record.launches]) == ("lost", [0])
    assert [launch.launch for launch in kept.launches] == [0, 0], "as it began, and as it ended"


def test_a_drifting_engine_is_unsettled_and_a_server_that_cannot_be_measured_is_tried_once_more() -> None:
    drifting = run(ScriptedSlot(lambda order, workload, window: 100.0 * 0.97**window))
    assert drifting.state == "unsettled"
    assert "drifting" in drifting.reason
    stalling = ScriptedSlot(misbehaving(MeasurementFailed("stalled")))
    assert run(stalling).state == "engine_failed"
    assert len(stalling.launched) == 2


def test_a_launch_that_could_not_be_measured_to_its_end_is_no_replicate() -> None:
    def stalls_once(order: LaunchOrder, workload: Workload, window: int) -> float | RepeakError:
        return MeasurementFailed("stalled") if (order.launch, window) == (0, 3) else 100.0

    slot, kept = ScriptedSlot(stalls_once), Kept()
    record = run(slot, kept, min_launches=2, max_launches=3)
    assert (record.state, len(slot.launched)) == ("measured", 3)
    assert record.estimates["open/decode_tok_s"].launches == 2
    assert [launch.failure and launch.failure.cause for launch in record.launches] == ["not_measurable", None, None]
    assert kept.launches[1].failure == record.launches[0].failure, "on record as well"


def test_launches_repeat_until_there_are_enough_of_them() -> None:
    slot = ScriptedSlot(steady)
    record = run(slot, min_launches=3, max_launches=5)
    assert len(slot.launched) == 3
    assert record.estimates["open/decode_tok_s"].launches == 3
