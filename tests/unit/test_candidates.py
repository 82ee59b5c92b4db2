"""Records become launch means by configuration: measured ones only, the fresh apart from the searched."""

from __future__ import annotations

import math

import pytest

from orchestrator.candidates import Candidate, Target, candidates, noise_of
from orchestrator.launch_noise import LaunchNoise
from orchestrator.stability import StabilityRule
from search_spaces.configuration import Configuration
from trackers.records import Failure, Launch, Measurement, StackFingerprint, TrialRecord, WorkloadRef

RULE = StabilityRule(precision=0.05, min_windows=3, max_windows=3)
EDIT = Target(name="edit", metric="decode_tok_s", workloads=("edit",))
K4, K8 = (Configuration(values={"drafter": "mtp", "k": k}) for k in (4, 8))


def window(launch: int, number: int, workload: str, value: float) -> Measurement:
    return Measurement(
        workload=WorkloadRef(name=workload, sha256="0" * 64),
        launch=launch,
        window=number,
        started_at=0,
        duration_s=1,
        completed=1,
        failed=0,
        total_input_tokens=1,
        total_output_tokens=1,
        metrics={"decode_tok_s": value},
    )


def record(configuration: Configuration, *launches: dict[str, float], **changes: object) -> TrialRecord:
    """Each launch: workload -> the speed of its two counted windows, after a slow first one."""
    windows = tuple(
        window(launch, number, workload, value * (0.5 if number == 0 else 1))
        for launch, speeds in enumerate(launches)
        for workload, value in speeds.items()
        for number in range(3)
    )
    held = {
        "trial_id": "t",
        "study": "s",
        "number": 0,
        "role": "search",
        "state": "measured",
        "reason": "",
        "configuration": configuration,
        "fingerprint": StackFingerprint(items={"vllm": "0.32.0"}),
        "workloads": (),
        "windows": windows,
        "started_at": 0,
        "duration_s": 1,
    }
    return TrialRecord(**(held | changes))  # type: ignore[arg-type]


def test_search_and_finals_are_kept_apart_and_the_fresh_speak() -> None:
    records = [
        record(K4, {"edit": 100.0}),
        record(K8, {"edit": 90.0}),
        record(K4, {"edit": 97.0}, {"edit": 98.0}, role="finalist"),
    ]
    first, second = candidates(records, EDIT, RULE)
    assert (first.configuration, first.searched, first.fresh) == (
        K4,
        pytest.approx((100,)),
        pytest.approx((97, 98)),
    )
    assert first.evidence == first.fresh
    assert first.windows == 4
    assert second.evidence == pytest.approx((90,))


def test_launches_in_turn_with_another_stack_count_only_where_they_are_asked_for() -> None:
    records = [record(K4, {"edit": 100.0}), record(K4, {"edit": 80.0}, role="in_turn")]
    (own,), (turn,) = (candidates(records, EDIT, RULE, in_turn=asked) for asked in (False, True))
    assert (own.evidence, turn.evidence) == (pytest.approx((100,)), pytest.approx((80,)))


def test_only_measured_records_give_values() -> None:
    states = ["unsettled", "disproved", "interrupted", "lost", "client_bound"]
    assert candidates([record(K4, {"edit": 1.0}, state=state) for state in states], EDIT, RULE) == ()


def test_a_launch_counts_for_a_joined_target_only_with_every_workload() -> None:
    both = Target(name="both", metric="decode_tok_s", workloads=("edit", "chat"))
    (found,) = candidates([record(K4, {"edit": 100.0, "chat": 25.0}, {"edit": 100.0})], both, RULE)
    assert found.searched == pytest.approx((50,))


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, 50.0),
        ({"weights": (3.0, 1.0)}, 100**0.75 * 25**0.25),
        ({"join": "worst"}, 25.0),
        ({"join": "worst", "lower_is_better": True}, 100.0),
    ],
)
def test_workloads_are_joined_by_their_weights_or_to_the_worst(changes: dict[str, object], score: float) -> None:
    target = Target(name="x", metric="decode_tok_s", workloads=("edit", "chat"), **changes)  # type: ignore[arg-type]
    (found,) = candidates([record(K4, {"edit": 100.0, "chat": 25.0})], target, RULE)
    assert found.searched == pytest.approx((score,))


@pytest.mark.parametrize(
    ("state", "kind", "vetoed"),
    [
        ("unsettled", None, True),
        ("disproved", None, True),
        ("engine_failed", "infeasible", True),
        ("engine_failed", "environment", False),
        ("interrupted", None, False),
    ],
)
def test_a_finalist_that_fails_of_itself_vetoes_its_configuration(state: str, kind: str | None, vetoed: bool) -> None:
    failure = Failure(cause="x", kind=kind, message="x") if kind else None  # type: ignore[arg-type]
    launch = Launch(launch=0, started_at=0, ready_s=None, failure=failure)
    again = record(K4, role="finalist", state=state, reason="two modes", launches=(launch,))
    (found,) = candidates([record(K4, {"edit": 100.0}), again], EDIT, RULE)
    assert bool(found.veto) is vetoed
    assert not vetoed or "two modes" in found.veto


@pytest.mark.parametrize(
    ("settled", "not_settled", "vetoed"), [(2, 1, False), (1, 1, True), (3, 2, True), (4, 2, False)]
)
def test_a_busy_moment_vetoes_no_finalist_that_settles_at_least_twice_as_often(
    settled: int, not_settled: int, vetoed: bool
) -> None:
    states = ["measured"] * settled + ["unsettled"] * not_settled
    finals = [record(K4, {"edit": 100.0}, role="finalist", state=state, reason="drifting") for state in states]
    (found,) = candidates(finals, EDIT, RULE)
    assert (bool(found.veto), len(found.fresh)) == (vetoed, settled)


def test_the_estimate_is_that_of_the_launches_that_speak() -> None:
    found = Candidate(configuration=K4, searched=(120.0,), fresh=(100.0, 100.0), windows=8, error=0.01)
    estimate = found.estimate(LaunchNoise(sd=0.02, dof=9))
    assert (estimate.value, estimate.launches, estimate.windows) == (pytest.approx(100), 2, 8)
    assert math.log1p(estimate.relative) == pytest.approx(1.96 * math.hypot(0.02, 0.01) / math.sqrt(2))


def test_what_the_search_picked_for_its_luck_is_no_launch_noise() -> None:
    lucky = Candidate(configuration=K4, searched=(105.0,), fresh=(100.0, 100.0))
    assert noise_of([lucky], 0.02).sd < 0.02


def test_what_no_luck_of_the_search_explains_is_launch_noise() -> None:
    apart = Candidate(configuration=K4, searched=(393.0,), fresh=(343.0,))  # as seen on a real engine
    steady = Candidate(configuration=K8, searched=(300.0,), fresh=(301.0,))
    assert noise_of([apart, steady], 0.005).sd > 0.03
    assert noise_of([steady], 0.005).sd < 0.006


def test_noise_is_never_under_the_windows_own_error() -> None:
    assert noise_of([Candidate(configuration=K4, searched=(1.0,), error=0.07)], 0.02).sd == pytest.approx(0.07)
    assert noise_of([], 0.02).sd == pytest.approx(0.02)
