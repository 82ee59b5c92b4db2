"""That a number did not move is shown, never assumed; a control that moves says so."""

from __future__ import annotations

import pytest

from orchestrator.equivalence import control, equivalent, untouched
from orchestrator.launch_noise import LaunchNoise

PREFILL = LaunchNoise(sd=0.005, dof=20)


def test_one_launch_each_shows_no_equality_under_large_noise() -> None:
    found = equivalent([6266.0], [6249.0], LaunchNoise(sd=0.015, dof=20), 0.03)
    assert found.verdict == "cannot tell"
    assert found.launches_to_decide == 5


def test_the_same_readings_are_equal_where_the_metric_repeats_well() -> None:
    found = equivalent([6266.0, 6260.0], [6249.0, 6255.0], PREFILL, 0.03)
    assert found.verdict == "unchanged"
    assert 1 / 1.03 < found.low < found.high < 1.03
    assert found.launches_to_decide is None


def test_a_control_that_moved_has_failed() -> None:
    check = control("prefill_tok_s", [6900.0] * 3, [6249.0] * 3, PREFILL, 0.03)
    assert check.passed is False
    assert check.name == "control prefill_tok_s"
    assert "control failed: ratio 1.104" in check.detail


def test_a_control_is_passed_or_open_but_never_failed_by_noise() -> None:
    assert control("prefill_tok_s", [6250.0] * 3, [6249.0] * 3, PREFILL, 0.03).passed is True
    noisy = LaunchNoise(sd=0.05, dof=4)
    assert control("prefill_tok_s", [6600.0], [6249.0], noisy, 0.03).passed is None


@pytest.mark.parametrize(
    ("knobs", "metrics"),
    [
        (["k"], {"prefill_tok_s", "mean_ttft_ms"}),
        (["k", "enable_prefix_caching"], {"prefill_tok_s"}),
        (["k", "max_num_seqs"], set()),
        ([], set()),
    ],
)
def test_a_control_is_what_none_of_the_changed_knobs_can_touch(knobs: list[str], metrics: set[str]) -> None:
    assert untouched(knobs) == metrics
