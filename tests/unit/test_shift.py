"""Between two stacks: what moved is named, noise moves nothing, and what would decide is said."""

from __future__ import annotations

import math

import pytest
import two_engines as two

from benchmarks.null_test import FLAT, HILL, MOVED, verdicts
from orchestrator.candidates import Candidate, Target
from orchestrator.launch_noise import LaunchNoise
from orchestrator.refusal import could_not_run
from orchestrator.shift import PeakShift, judge_shift
from search_spaces.configuration import Configuration
from trackers.records import TrialRecord

NOISE = LaunchNoise(sd=0.005, dof=30)
FAST = Target(name="edit", metric="decode_tok_s", workloads=("edit",))
SOON = Target(name="edit", metric="mean_ttft_ms", workloads=("edit",), lower_is_better=True)
DEPTHS = {k: Configuration(values={"drafter": "mtp", "k": k}) for k in (2, 4, 6, 8)}
OLD = {2: 112.0, 4: 108.0, 6: 100.0, 8: 95.0}


def stack(values: dict[int, float], fresh: int = 3) -> list[Candidate]:
    return [Candidate(configuration=DEPTHS[k], searched=(v,), fresh=(v,) * fresh) for k, v in values.items()]


def judge(new: dict[int, float], target: Target = FAST, **more: object) -> PeakShift:
    return judge_shift(stack(OLD), stack(new), DEPTHS[2], target, NOISE, 0.01, **more)  # type: ignore[arg-type]


def scaled(factor: float, **changes: float) -> dict[int, float]:
    return {k: v * factor for k, v in OLD.items()} | {int(k[1:]): v for k, v in changes.items()}


def test_nothing_moved() -> None:
    found = judge(scaled(1.001))
    assert (found.verdict, found.speed.verdict, found.shape) == ("same", "same", "not shown")
    assert found.new_peak == found.old_peak
    assert found.launches_to_decide is None


@pytest.mark.parametrize(("factor", "word"), [(1.43, "faster"), (0.9, "slower")])
def test_every_configuration_moved_alike(factor: float, word: str) -> None:
    found = judge(scaled(factor))
    assert found.verdict == f"{word}, same peak"
    assert found.speed.ratio == pytest.approx(factor)
    assert found.speed.low is not None
    assert found.speed.high is not None
    assert found.speed.low < factor < found.speed.high


def test_a_latency_that_rose_is_slower_and_its_ratio_is_the_metrics() -> None:
    rising = {k: 1e4 / v for k, v in OLD.items()}
    found = judge_shift(stack(rising), stack({k: 1.2 * v for k, v in rising.items()}), DEPTHS[2], SOON, NOISE, 0.01)
    assert found.verdict == "slower, same peak"
    assert found.speed.ratio == pytest.approx(1.2)


def test_one_end_of_the_curve_moved_and_the_peak_did_not() -> None:
    found = judge(scaled(1.0, k8=80.0))
    assert (found.verdict, found.shape) == ("shape changed, same peak", "changed")
    assert "chance" in found.shape_evidence


def test_a_joint_models_word_on_the_shape_goes_before_the_ratios() -> None:
    assert judge(scaled(1.0), log_likelihood_ratio=2.5).verdict == "shape changed, same peak"
    assert judge(scaled(1.0, k8=80.0), log_likelihood_ratio=1.0).verdict == "same"


def test_another_configuration_is_the_peak_now() -> None:
    found = judge(scaled(1.4, k4=175.0))
    assert (found.verdict, found.new_peak, found.rival) == ("peak moved", DEPTHS[4], DEPTHS[4])
    assert found.challenger is not None
    assert found.challenger.ratio == pytest.approx(175 / (112 * 1.4))
    assert found.before is not None
    assert found.before.verdict == "worse"


def test_a_rival_that_was_not_measured_before_moves_the_peak_only_where_it_was_no_better_then() -> None:
    stacks = stack({2: 112.0}), stack({2: 112.0, 4: 120.0})
    unknown = judge_shift(*stacks, DEPTHS[2], FAST, NOISE, 0.01)
    assert (unknown.verdict, unknown.new_peak, unknown.before) == ("cannot tell", DEPTHS[4], None)
    assert "mtp k=4, better now and never measured on the old engine, launched there" in unknown.decides
    known = judge_shift(*stacks, DEPTHS[2], FAST, NOISE, 0.01, no_better_then=lambda one: one == DEPTHS[4])
    assert known.verdict == "peak moved"


def test_what_a_stack_was_asked_for_and_could_not_run_was_no_better_there() -> None:
    def told(state: str, k: int, cause: str = "", drafter: str = "mtp", kind: str = "infeasible") -> TrialRecord:
        failure = {"cause": cause, "kind": kind, "message": cause}
        launches = ({"launch": 0, "started_at": 0, "ready_s": None, "failure": failure},) * (state == "engine_failed")
        one = two.configuration(drafter, k)
        return two.record("s", k, two.OLD, one, 100.0, state=state, reason=f"{cause}: so", launches=launches)

    k4 = two.configuration("mtp", 4)
    assert could_not_run([told("engine_failed", 4, "out_of_memory_kv")], k4)
    assert not could_not_run([told("engine_failed", 4, "start_timed_out", kind="transient")], k4)
    assert not could_not_run([told("engine_failed", 4, "broken_environment", kind="environment")], k4)
    assert could_not_run([told("refused", 2, "unsupported_drafter")], k4), "its drafter cannot run"
    assert not could_not_run([told("refused", 2, "draft_slots_over_budget")], k4), "another k of it cannot"
    assert not could_not_run([told("refused", 2, "unsupported_drafter"), told("measured", 1)], k4), "its drafter ran"
    assert not could_not_run([told("unsettled", 4), told("refused", 4, "unknown_drafter", drafter="ngram")], k4)


def test_a_rival_that_was_better_before_and_is_so_by_more_now_was_missed() -> None:
    found = judge_shift(stack(OLD | {4: 118.0}), stack(OLD | {4: 130.0}), DEPTHS[2], FAST, NOISE, 0.01)
    assert (found.verdict, found.missed) == ("cannot tell", True)


def test_an_old_peak_whose_launches_disagree_moves_nothing() -> None:
    old = [Candidate(configuration=DEPTHS[2], fresh=(100.0, 108.0)), *stack({4: 100.0})]
    found = judge_shift(old, stack({2: 104.0, 4: 130.0}), DEPTHS[2], FAST, NOISE, 0.01)
    assert found.verdict == "cannot tell"


def test_a_rival_that_was_better_before_was_missed_not_moved() -> None:
    found = judge_shift(stack(OLD | {4: 118.0}), stack(OLD | {4: 118.0}), DEPTHS[2], FAST, NOISE, 0.01)
    assert (found.verdict, found.new_peak) == ("cannot tell", DEPTHS[4])
    assert found.said == "other settings are better on both engines: the old study had missed them"
    assert found.decides == ""


def test_a_rival_that_may_have_been_better_before_cannot_be_told_from_one_that_moved() -> None:
    found = judge_shift(stack(OLD | {4: 112.7}), stack(OLD | {4: 113.4}), DEPTHS[2], FAST, NOISE, 0.01)
    assert (found.verdict, found.new_peak) == ("cannot tell", DEPTHS[4])
    assert found.launches_to_decide is not None
    assert "on both stacks" in found.would_decide
    assert found.said == "other settings are better now; cannot tell whether the peak moved or was missed before"


def test_a_lucky_search_reading_moves_nothing() -> None:
    new = [*stack({2: 112.0}), *stack({4: 125.0}, fresh=0)]
    found = judge_shift(stack(OLD), new, DEPTHS[2], FAST, NOISE, 0.01)
    assert found.verdict == "cannot tell"
    assert found.would_decide == "mtp k=4 and mtp k=2 launched afresh on the new stack"
    assert found.launches_to_decide == 1
    assert found.said == "cannot tell where the best settings are now"
    assert found.decides == "; 1 launch a side of mtp k=4 and mtp k=2 launched afresh on the new stack would decide"


def test_what_a_model_still_expects_keeps_the_verdict_open() -> None:
    assert judge(scaled(1.0), expected_gain=0.02).verdict == "cannot tell"
    assert judge(scaled(1.0), expected_gain=0.001).verdict == "same"


def test_without_the_old_peak_or_any_rival_on_the_new_stack_nothing_is_told() -> None:
    alone = judge_shift(stack(OLD), stack({2: 112.0}), DEPTHS[2], FAST, NOISE, 0.01)
    absent = judge_shift(stack(OLD), stack({4: 112.0}), DEPTHS[2], FAST, NOISE, 0.01)
    once = judge_shift(stack(OLD), stack({2: 112.0, 4: 90.0}, fresh=0), DEPTHS[2], FAST, NOISE, 0.01)
    assert {found.verdict for found in (alone, absent, once)} == {"cannot tell"}
    assert alone.would_decide == "other configurations launched on the new stack"
    assert absent.would_decide == once.would_decide == "mtp k=2 launched twice on the new stack"
    assert absent.speed.ratio == pytest.approx(112 / 108), "what both measured still tells the speed"


def test_an_old_peak_that_cannot_run_has_moved() -> None:
    new = [*stack({4: 100.0}), *stack({6: 130.0}, fresh=0)]
    found = judge_shift(stack(OLD), new, DEPTHS[2], FAST, NOISE, 0.01, impossible="KV cache memory")
    assert (found.verdict, found.new_peak) == ("peak moved", DEPTHS[4])
    assert found.would_decide == "KV cache memory"


def test_a_speed_that_cannot_be_told_says_what_would_tell_it() -> None:
    loud = LaunchNoise(sd=0.03, dof=30)
    new = {2: 112 * math.exp(0.03), 4: 80.0, 6: 80.0, 8: 80.0}
    found = judge_shift(stack(OLD), stack(new), DEPTHS[2], FAST, loud, 0.01, log_likelihood_ratio=0.0)
    assert (found.verdict, found.new_peak) == ("cannot tell", DEPTHS[2])
    assert found.would_decide == "mtp k=2 launched on both stacks"
    assert found.launches_to_decide == math.ceil(2 * 2.8**2)


def test_vetoed_configurations_take_no_part() -> None:
    broken = Candidate(configuration=DEPTHS[8], fresh=(300.0,) * 3, veto="disproved")
    found = judge_shift(stack(OLD), [*stack({2: 112.0, 4: 100.0}), broken], DEPTHS[2], FAST, NOISE, 0.01)
    assert found.verdict != "peak moved"
    assert DEPTHS[8] not in found.compared


@pytest.mark.parametrize("surface", [FLAT, HILL], ids=["flat", "hill"])
@pytest.mark.parametrize("launch_sd", [0.015, 0.03])
def test_noise_alone_moves_a_peak_in_fewer_than_one_pair_in_twenty(surface: list[float], launch_sd: float) -> None:
    assert verdicts(surface, surface, launch_sd, 120).get("peak moved", 0) <= 0.05


def test_a_peak_that_moved_is_found() -> None:
    assert verdicts(HILL, MOVED, 0.01, 60)["peak moved"] >= 0.9
