"""Launch noise is pooled by its formula, and the price of a question follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launch_noise import (
    LaunchNoise,
    disagree,
    finalist_launches,
    launches_for_equivalence,
    launches_for_gap,
    logs,
    pooled,
    windows_per_launch,
)

positive = st.floats(min_value=1e-3, max_value=1e6)
groups = st.lists(st.lists(positive, min_size=1, max_size=4), max_size=6)


@pytest.mark.parametrize(
    ("launch_sd", "window_sd", "launches"),
    [
        (0.010, 0.001, {0.01: 16, 0.02: 4, 0.03: 2, 0.05: 1}),
        (0.010, 0.010, {0.01: 20, 0.02: 5, 0.03: 3, 0.05: 1}),
        (0.015, 0.002, {0.01: 36, 0.02: 9, 0.03: 4, 0.05: 2}),
        (0.015, 0.010, {0.01: 41, 0.02: 11, 0.03: 5, 0.05: 2}),
        (0.030, 0.002, {0.01: 142, 0.02: 36, 0.03: 16, 0.05: 6}),
        (0.015, 0.170, {0.01: 139, 0.02: 35, 0.03: 16, 0.05: 6}),
    ],
)
def test_launches_per_side_are_those_of_the_power_table(
    launch_sd: float, window_sd: float, launches: dict[float, int]
) -> None:
    windows = max(1, round(windows_per_launch(300, 20, window_sd, launch_sd)))
    sd = math.hypot(launch_sd, window_sd / math.sqrt(windows))
    assert {gap: launches_for_gap(gap, sd) for gap in launches} == launches


def test_windows_beyond_the_first_are_not_worth_their_time_when_launches_differ_more() -> None:
    assert windows_per_launch(300, 20, 0.002, 0.015) == pytest.approx(0.516, abs=0.01)
    assert windows_per_launch(300, 20, 0.17, 0.015) == pytest.approx(43.9, abs=0.1)


def test_showing_equality_costs_what_tost_says() -> None:
    assert launches_for_equivalence(0.03, 0.015) == 5
    assert launches_for_equivalence(0.03, 0.005) == 1
    assert launches_for_equivalence(0.02, 0.005) == 2


def test_prior_and_replicates_are_weighed_by_their_degrees_of_freedom() -> None:
    pair = [100 * math.exp(-0.01), 100 * math.exp(0.01)]  # a sum of squares of 0.0002 with one degree
    found = pooled(0.02, [pair, [55.0]])
    assert found.dof == 5
    assert found.sd == pytest.approx(math.sqrt((4 * 0.02**2 + 0.0002) / 5))


def test_without_replicates_the_prior_stands() -> None:
    assert pooled(0.05, [[100.0], [7.0]]) == LaunchNoise(sd=0.05, dof=4)


def test_launches_cannot_repeat_better_than_their_windows() -> None:
    assert pooled(0.01, [[100.0, 100.0]], floor=0.03).sd == 0.03


def test_a_configuration_with_two_modes_does_not_hide_every_other_difference() -> None:
    rng = np.random.default_rng(0)
    quiet = [list(100 * np.exp(rng.normal(0, 0.015, 3))) for _ in range(6)]
    assert pooled(0.02, [*quiet, [57.2, 40.2, 57.1]]).sd < 0.025
    assert pooled(0.02, [[57.2, 40.2, 57.1]]).sd > 0.1, "alone, it is all that is known"


@given(groups, st.floats(0.5, 50), st.randoms())
def test_neither_unit_nor_order_of_launches_matters(sets: list[list[float]], factor: float, rng: object) -> None:
    shuffled = [sorted(group, key=lambda _: rng.random()) for group in sets]  # type: ignore[attr-defined]
    scaled = pooled(0.02, [[factor * x for x in group] for group in shuffled])
    assert scaled.sd == pytest.approx(pooled(0.02, sets).sd, rel=1e-6, abs=1e-9)


def test_two_launches_disagree_beyond_four_sds_and_more_launches_need_more() -> None:
    assert not disagree([100, 100 * math.exp(0.0399)], 0.01)
    assert disagree([100, 100 * math.exp(0.0401)], 0.01)
    assert not disagree([100, 100, 100, 100 * math.exp(0.0401)], 0.01)
    assert not disagree([100], 0.01)


def test_student_factor_narrows_as_more_is_known() -> None:
    assert LaunchNoise(sd=0.01, dof=4).t() == pytest.approx(2.776, abs=1e-3)
    assert LaunchNoise(sd=0.01, dof=1e6).t() == pytest.approx(1.96, abs=1e-3)


def test_noisy_machines_relaunch_finalists_more_often() -> None:
    assert finalist_launches(LaunchNoise(sd=0.015, dof=9)) == 3
    assert finalist_launches(LaunchNoise(sd=0.03, dof=9)) == 5


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_log_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        logs([1.0, bad])
