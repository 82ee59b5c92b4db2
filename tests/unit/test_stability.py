"""Windows settle, or end with the name of what is wrong; launches alone make the error bar."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.stability_table import row
from orchestrator.launch_noise import LaunchNoise, pooled
from orchestrator.stability import (
    StabilityRule,
    estimate,
    judge_launches,
    judge_windows,
    launch_values,
)
from trackers.records import Measurement, WorkloadRef

RULE = StabilityRule(precision=0.01)
NOISE = LaunchNoise(sd=0.015, dof=20)
QUIET = [90.0, 100.0, 100.1, 99.9, 100.05]


def series(seed: int, sd: float, n: int) -> list[float]:
    return list(100 * np.exp(np.random.default_rng(seed).normal(0, sd, n)))


def test_a_quiet_launch_settles_at_the_fewest_windows_without_its_first() -> None:
    verdict = judge_windows(QUIET, RULE)
    assert (verdict.decision, verdict.ending, verdict.used) == ("settled", "stable", range(1, 5))
    assert verdict.value == pytest.approx(100.01, abs=0.01)
    assert verdict.half_width < 0.01 * verdict.value


def test_fewer_than_the_fewest_windows_repeat_however_quiet() -> None:
    verdict = judge_windows(QUIET[:4], RULE)
    assert (verdict.decision, verdict.ending) == ("repeat", None)
    assert "at least 5" in verdict.reason


def test_the_first_window_counts_where_the_rule_keeps_it() -> None:
    rule = RULE.model_copy(update={"drop_first": False})
    assert judge_windows([100.0, 100.1, 99.9, 100.0, 100.1], rule).used == range(5)


def test_a_warm_up_is_cut_off_and_the_rest_is_stable() -> None:
    windows = [80.0, 92.0, 97.0, 99.0, 99.7, 100.0, 100.1, 99.9, 100.0, 100.1]
    verdict = judge_windows(windows, RULE)
    assert verdict.ending == "stable"
    assert verdict.used.start >= 4
    assert verdict.value == pytest.approx(100, rel=0.003)


def test_a_launch_that_keeps_slowing_down_is_named_drifting_and_never_stable() -> None:
    windows = [100 * math.exp(-0.005 * i) for i in range(12)]
    for n in range(1, 12):
        assert judge_windows(windows[:n], RULE).decision == "repeat"
    assert judge_windows(windows, RULE).ending == "drifting"


def test_two_modes_are_named_and_their_values_given() -> None:
    windows = [40.2, 40.3, 57.2, 57.1, 57.3, 40.1, 40.2, 57.2, 57.2, 40.3, 40.1, 57.2]
    verdict = judge_windows(windows, RULE)
    assert (verdict.decision, verdict.ending) == ("settled", "bimodal")
    assert "40.2" in verdict.reason
    assert "57.2" in verdict.reason


def test_noise_at_the_cap_is_usable_at_the_interval_it_achieved() -> None:
    verdict = judge_windows(series(3, 0.08, 12), RULE)
    assert (verdict.decision, verdict.ending) == ("settled", "noisy")
    assert 0.01 * verdict.value < verdict.half_width < 0.15 * verdict.value


def test_one_odd_window_makes_a_launch_noisy_not_bimodal() -> None:
    windows = [100.0, 100.1, 99.9, 100.0, 100.1, 99.9, 100.0, 100.1, 88.0, 99.9, 100.0, 100.1]
    assert judge_windows(windows, RULE).ending == "noisy"


def test_a_cap_of_four_windows_uses_three() -> None:
    rule = StabilityRule(precision=0.15, max_windows=4)
    verdict = judge_windows([70.0, 100.0, 101.0, 99.0], rule)
    assert (verdict.decision, verdict.ending, verdict.used) == ("settled", "stable", range(1, 4))


@pytest.mark.parametrize(("precision", "cap"), [(0.15, 4), (0.15, 12), (0.01, 12)])
@pytest.mark.parametrize("sd", [0.05, 0.12])
def test_a_noisy_machine_is_seldom_called_drifting_or_bimodal(precision: float, cap: int, sd: float) -> None:
    rule = StabilityRule(precision=precision, max_windows=cap)
    endings = [judge_windows(series(seed, sd, cap), rule).ending for seed in range(150)]
    assert endings.count("drifting") + endings.count("bimodal") <= 6


def test_a_single_window_has_a_value_and_no_interval() -> None:
    verdict = judge_windows([42.0], StabilityRule(precision=0.01, max_windows=1))
    assert (verdict.decision, verdict.ending, verdict.used) == ("settled", "noisy", range(1))
    assert verdict.value == pytest.approx(42)
    assert math.isinf(verdict.half_width)


def test_windows_that_cannot_be_judged_are_refused() -> None:
    with pytest.raises(ValueError, match="without windows"):
        judge_windows([], RULE)
    with pytest.raises(ValueError, match="positive finite"):
        judge_windows([100.0, 0.0], RULE)
    with pytest.raises(ValueError, match="above max_launches"):
        StabilityRule(precision=0.01, min_launches=3, max_launches=2)


@settings(max_examples=40, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.001, 0.004, 0.01]), st.integers(5, 11), st.integers(1, 3))
def test_windows_that_agree_never_unsettle_a_launch(seed: int, sd: float, n: int, more: int) -> None:
    rule = RULE.model_copy(update={"max_windows": 30})
    before = judge_windows(series(seed, sd, n), rule)
    after = judge_windows([*series(seed, sd, n), *[before.value] * more], rule)
    assert after.half_width <= before.half_width * (1 + 1e-9)
    assert before.decision == "repeat" or after.decision == "settled"


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0.002, 0.05]), st.integers(1, 12), st.floats(1e-3, 1e4))
def test_the_unit_of_a_metric_does_not_matter(seed: int, sd: float, n: int, factor: float) -> None:
    one = judge_windows(series(seed, sd, n), RULE)
    other = judge_windows([factor * x for x in series(seed, sd, n)], RULE)
    assert (one.decision, one.ending, one.used) == (other.decision, other.ending, other.used)
    assert other.value == pytest.approx(factor * one.value)


def test_one_launch_carries_the_launch_noise_whatever_its_windows_say() -> None:
    found = estimate([QUIET], RULE, NOISE)
    assert (found.launches, found.windows, found.ending) == (1, 4, "stable")
    assert found.relative >= math.expm1(1.96 * NOISE.sd)


def test_the_interval_is_that_of_launches_with_their_windows_error() -> None:
    launches = [[99.0, 99.0, 101.0, 99.5, 100.5], [99.0, 101.0, 99.0, 101.0, 100.0]]
    rule = StabilityRule(precision=0.03)
    found = estimate(launches, rule, NOISE)
    logs = [np.log(windows[1:]) for windows in launches]
    within = sum(x.var(ddof=1) for x in logs) / 2
    sd = pooled(NOISE.sd, [[float(np.exp(x.mean())) for x in logs]], prior_dof=NOISE.dof).sd
    assert math.log1p(found.relative) == pytest.approx(1.96 * math.sqrt((sd**2 + within / 4) / 2))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.randoms())
def test_the_order_of_launches_does_not_matter(seeds: list[int], rng: object) -> None:
    launches = [series(seed, 0.003, 6) for seed in seeds]
    shuffled = sorted(launches, key=lambda _: rng.random())  # type: ignore[attr-defined]
    one, other = estimate(launches, RULE, NOISE), estimate(shuffled, RULE, NOISE)
    assert one.ending == other.ending
    assert (one.value, one.half_width) == pytest.approx((other.value, other.half_width))


def test_launches_that_disagree_beyond_noise_are_bimodal_and_buy_another() -> None:
    apart = [QUIET, [x * math.exp(0.07) for x in QUIET]]
    near = [QUIET, [x * math.exp(0.03) for x in QUIET]]
    assert estimate(apart, RULE, NOISE).ending == "bimodal"
    assert estimate(near, RULE, NOISE).ending == "stable"
    assert judge_launches(apart, RULE, NOISE) == "repeat"
    assert judge_launches(near, RULE, NOISE) == "settled"
    assert judge_launches(apart, RULE.model_copy(update={"max_launches": 2}), NOISE) == "settled"


def test_the_rule_may_ask_for_more_than_one_launch() -> None:
    rule = RULE.model_copy(update={"min_launches": 2})
    assert judge_launches([], RULE, NOISE) == "repeat"
    assert judge_launches([QUIET], rule, NOISE) == "repeat"
    assert judge_launches([QUIET, QUIET], rule, NOISE) == "settled"


def test_the_gravest_ending_of_any_launch_is_the_estimates() -> None:
    drifting = [100 * math.exp(-0.005 * i) for i in range(12)]
    assert estimate([QUIET, drifting], RULE, LaunchNoise(sd=0.05, dof=20)).ending == "drifting"
    assert estimate([QUIET, QUIET[:3]], RULE, NOISE).ending == "capped"


def test_no_launch_makes_no_estimate() -> None:
    with pytest.raises(ValueError, match="no launch"):
        estimate([], RULE, NOISE)


def test_windows_are_sorted_by_launch_and_those_without_the_metric_left_out() -> None:
    def window(launch: int, number: int, workload: str, **metrics: float) -> Measurement:
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
            metrics=metrics,
        )

    windows = [
        window(1, 0, "edit", decode_tok_s=5.0),
        window(0, 1, "edit", decode_tok_s=2.0),
        window(0, 0, "edit", decode_tok_s=1.0),
        window(0, 2, "edit", mean_ttft_ms=9.0),
        window(0, 0, "generate", decode_tok_s=7.0),
    ]
    assert launch_values(windows, "edit", "decode_tok_s") == {0: (1.0, 2.0), 1: (5.0,)}


@pytest.mark.parametrize(
    ("scenario", "launches", "least_stable", "most_false", "least_cover"),
    [
        ("quiet", 1, 0.98, 0.32, 0.85),
        ("quiet", 3, 0.93, 0.12, 0.85),
        ("launchy", 3, 0.85, 0.40, 0.78),
        ("warm-up", 1, 0.85, 0.32, 0.83),
        ("drift", 1, 0.00, 0.10, 0.00),
        ("outlier", 3, 0.65, 0.14, 0.75),
        ("bimodal", 3, 0.00, 0.32, 0.55),
    ],
)
def test_the_stability_table_holds(
    scenario: str, launches: int, least_stable: float, most_false: float, least_cover: float
) -> None:
    found = row(scenario, launches, series=60)
    assert found["stable"] >= least_stable
    assert found["false stable"] <= most_false
    assert found["cover"] >= least_cover
