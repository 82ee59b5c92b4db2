"""A peak is declared on fresh launches, keeps the incumbent unless beaten, and noise makes no winner."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.null_test import FLAT, blocks, winners
from orchestrator.candidates import Candidate, Target
from orchestrator.launch_noise import LaunchNoise
from orchestrator.peak import beats, contenders, declare_peak, finalist_order, simplicity
from search_spaces.configuration import Configuration

NOISE = LaunchNoise(sd=0.01, dof=30)
FAST = Target(name="edit", metric="decode_tok_s", workloads=("edit",))
SOON = Target(name="edit", metric="mean_ttft_ms", workloads=("edit",), lower_is_better=True)
NONE = Configuration(values={"drafter": "none"})
K2, K4, K8 = (Configuration(values={"drafter": "mtp", "k": k}) for k in (2, 4, 8))


def seen(configuration: Configuration, value: float, fresh: int = 3, **changes: object) -> Candidate:
    """Launches that all read `value`; searched only, where none is fresh."""
    return Candidate(
        configuration=configuration,
        searched=(value,),
        fresh=(value,) * fresh,
        **changes,  # type: ignore[arg-type]
    )


def test_a_difference_beyond_noise_and_zone_is_better_and_its_mirror_worse() -> None:
    up, down = beats([105.0] * 3, [100.0] * 3, NOISE, 0.01), beats([100.0] * 3, [105.0] * 3, NOISE, 0.01)
    assert (up.verdict, down.verdict) == ("better", "worse")
    assert up.ratio == pytest.approx(1.05)
    assert up.low > 1
    assert up.low == pytest.approx(1 / down.high)
    assert up.launches_to_decide is None


def test_less_is_better_where_the_metric_says_so() -> None:
    assert beats([100.0] * 3, [105.0] * 3, NOISE, 0.01, lower_is_better=True).verdict == "better"


def test_a_shown_difference_inside_the_zone_is_no_win() -> None:
    steady = LaunchNoise(sd=0.0005, dof=1000)
    assert beats([100.5] * 3, [100.0] * 3, steady, 0.01).verdict == "same"


def test_what_cannot_be_told_says_how_many_launches_would_tell() -> None:
    found = beats([102.0] * 2, [100.0] * 2, NOISE, 0.01)
    assert found.verdict == "cannot tell"
    assert found.launches_to_decide == math.ceil(2 * 2.8**2 * 0.01**2 / math.log(1.02) ** 2) == 4


def test_comparing_with_many_widens_the_interval() -> None:
    one, many = (beats([102.3] * 3, [100.0] * 3, NOISE, 0.01, comparisons=n) for n in (1, 10))
    assert (one.verdict, many.verdict) == ("better", "cannot tell")
    assert many.low < one.low


def test_launches_that_disagree_among_themselves_decide_nothing() -> None:
    found = beats([57.2, 57.1, 40.2], [30.0] * 3, NOISE, 0.01)
    assert found.verdict == "cannot tell"
    assert "disagree" in found.note


@given(st.floats(0.9, 1.1), st.integers(1, 5), st.integers(1, 5), st.floats(0.01, 100))
def test_a_comparison_is_antisymmetric_and_free_of_units(ratio: float, n: int, m: int, unit: float) -> None:
    one = beats([ratio * unit] * n, [unit] * m, NOISE, 0.01)
    other = beats([1.0] * m, [ratio] * n, NOISE, 0.01)
    mirrored = {"better": "worse", "worse": "better"}
    if abs(abs(math.log(ratio)) - math.log1p(0.01)) > 1e-6:
        assert other.verdict == mirrored.get(one.verdict, one.verdict)
    assert one.ratio == pytest.approx(1 / other.ratio)


def test_the_one_shown_better_beats_the_incumbent() -> None:
    peak = declare_peak([seen(NONE, 100), seen(K4, 110), seen(K8, 104)], FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert (peak.configuration, peak.verdict, peak.confirmed) == (K4, "beats the incumbent", True)
    assert peak.better_than_incumbent is not None
    assert peak.better_than_incumbent.ratio == pytest.approx(1.1)
    assert peak.estimate.launches == 3
    assert peak.ties == ()
    assert [r.configuration for r in peak.runners_up] == [K8, NONE]


def test_the_incumbent_stays_where_nothing_is_shown_to_beat_it() -> None:
    peak = declare_peak([seen(K8, 100), seen(K4, 101.5)], FAST, NOISE, 0.01, incumbent=K8)
    assert peak is not None
    assert (peak.configuration, peak.verdict, peak.ties) == (K8, "incumbent stays", (K4,))
    assert peak.better_than_incumbent is None
    assert peak.runners_up[0].against_peak.launches_to_decide is not None


def test_without_an_incumbent_the_simplest_within_the_zone_wins() -> None:
    field = [seen(K8, 100.4), seen(K2, 100), seen(NONE, 98.5)]
    peak = declare_peak(field, FAST, NOISE, 0.01)
    assert peak is not None
    assert (peak.configuration, peak.verdict) == (K2, "no incumbent measured")
    assert set(peak.ties) == {K8, NONE}, "1.9 % apart is not told, yet too far to be had for simplicity"


def test_a_simpler_tie_has_to_beat_the_incumbent_itself() -> None:
    field = [seen(NONE, 100), seen(K8, 102.7), seen(K2, 101.8)]
    peak = declare_peak(field, FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert (peak.configuration, peak.verdict) == (K8, "beats the incumbent")


def test_a_latency_peak_is_the_lowest() -> None:
    peak = declare_peak([seen(NONE, 100), seen(K4, 80)], SOON, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert (peak.configuration, peak.verdict) == (K4, "beats the incumbent")


def test_search_readings_alone_leave_a_peak_unconfirmed() -> None:
    peak = declare_peak([seen(NONE, 100, fresh=0), seen(K4, 150, fresh=0)], FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert (peak.configuration, peak.verdict, peak.confirmed) == (K4, "unconfirmed", False)


def test_a_search_reading_does_not_compete_with_fresh_launches() -> None:
    peak = declare_peak([seen(NONE, 100), seen(K4, 110), seen(K8, 200, fresh=0)], FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert peak.configuration == K4


def test_what_was_not_launched_afresh_is_named_unless_its_search_reading_rules_it_out() -> None:
    field = [seen(NONE, 100), seen(K4, 150), seen(K8, 149, fresh=0), seen(K2, 90, fresh=0)]
    peak = declare_peak(field, FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert (peak.configuration, peak.ties, peak.open) == (K4, (), (K8,))


def test_vetoed_and_jumping_configurations_are_set_aside_with_their_reason() -> None:
    jumping = Candidate(configuration=K8, fresh=(130.0, 180.0, 180.0))
    field = [seen(NONE, 100), seen(K4, 150, veto="disproved when launched afresh: identity"), jumping]
    peak = declare_peak(field, FAST, NOISE, 0.01, incumbent=NONE)
    assert peak is not None
    assert peak.configuration == NONE
    assert "identity" in peak.set_aside[K4.label()]
    assert "disagree" in peak.set_aside[K8.label()]


def test_nothing_measured_makes_no_peak() -> None:
    assert declare_peak([], FAST, NOISE, 0.01) is None
    assert declare_peak([seen(K4, 1, veto="x")], FAST, NOISE, 0.01) is None


def test_finalists_are_those_near_the_best_and_the_incumbent() -> None:
    field = [seen(NONE, 60), seen(K2, 99), seen(K4, 100), seen(K8, 98)]
    assert contenders([(FAST, field)], 0.01, 3, NONE) == (K4, K2, NONE)
    assert contenders([(FAST, field)], 0.05, 2, NONE) == (K4, K2, NONE)
    assert contenders([(FAST, field)], 0.01, 3, K4) == (K4, K2)
    assert contenders([(FAST, field[1:])], 0.01, 3, NONE) == (K4, K2), "never measured, never relaunched"


def test_each_workload_sends_its_best_to_the_finals_in_turn() -> None:
    boards = [
        (FAST, [seen(K2, 100), seen(K4, 99.5), seen(K8, 50)]),
        (FAST, [seen(K2, 50), seen(K4, 51), seen(K8, 100)]),
        (SOON, [seen(NONE, 5), seen(K8, 9)]),
    ]
    assert contenders(boards, 0.01, 1) == (K2,), "what finals cost is the plan's to say"
    assert contenders(boards, 0.01, 3) == (K2, K8, NONE)
    assert contenders(boards, 0.01, 4) == (K2, K8, NONE, K4)


def test_finalists_are_launched_there_and_back() -> None:
    assert finalist_order([NONE, K2, K4], 3) == (NONE, K2, K4, K4, K2, NONE, NONE, K2, K4)


def test_the_simplest_drafts_least_and_changes_least() -> None:
    defaults = {"max_num_seqs": 16}
    odd = Configuration(values={"drafter": "none", "max_num_seqs": 32})
    plain = Configuration(values={"drafter": "none", "max_num_seqs": 16})
    ordered = sorted([K8, K2, odd, plain], key=lambda c: simplicity(c, defaults))
    assert ordered == [plain, odd, K2, K8]


@pytest.mark.parametrize("launch_sd", [0.01, 0.03])
def test_noise_alone_declares_a_winner_in_fewer_than_one_study_in_twenty(launch_sd: float) -> None:
    assert winners(FLAT, launch_sd, 200) <= 0.05


@pytest.mark.parametrize("launch_sd", [0.01, 0.02, 0.05])
def test_launches_of_one_configuration_differ_from_each_other_by_chance_only(launch_sd: float) -> None:
    for known in (True, False):
        one, more = blocks(launch_sd, launch_sd, 150, known=known)
        assert one <= 0.05
        assert more <= 0.05


def test_a_real_winner_is_found_where_launches_can_show_it() -> None:
    assert winners([0.0] * 11 + [0.06], 0.01, 60) >= 0.9
