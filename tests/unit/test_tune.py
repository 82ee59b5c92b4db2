"""Tune: what is launched afresh, and what happens to a finalist that does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import two_engines as two
from scripted_slot import OneSlot, ScriptedSlot

from orchestrator.budget import Budget
from orchestrator.clock import SystemClock
from orchestrator.engine_environment import EngineEnvironment
from orchestrator.errors import Interrupted, RepeakError
from orchestrator.memory import Memory
from orchestrator.orders import Launchpad
from orchestrator.plan import TuningPlan
from orchestrator.progress import PlainProgress
from orchestrator.slot import LaunchOrder
from orchestrator.study import Bench, Study
from orchestrator.tune import Outcome, conclude, peaks_of, run_studies
from orchestrator.workload import Workload
from search_spaces.configuration import Configuration
from search_spaces.feasibility import KnownFacts
from trackers.journal import Journal
from trackers.records import StackFingerprint

SPEED = {0: 50.0, 4: 100.0, 8: 120.0}
AFRESH = range(1, 9)
DRIFT = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]


NONE = Configuration(values={"drafter": "none"})


def tuned(
    place: Path,
    drifts: Mapping[int, Sequence[int]],
    launches: int = 30,
    finalists: int = 1,
    afresh: int = 1,
    *,
    incumbent: Configuration | None = None,
    speeds: dict[int, float] = SPEED,
    before: Sequence[int] = (),
    stop_after: int = 99,
) -> tuple[Outcome, list[int]]:
    """The outcome, and the k of each launch, those `before` it included; it is interrupted after so many.

    `drifts`: k -> in which of its launches it does, the first is 0.
    """
    plan = TuningPlan.model_validate(
        {
            "name": "p", "model": {"id": "m"}, "engines": ["vllm==0.30.0"],
            "workloads": [{"name": "edit", "kind": "edit"}],
            "space": {"drafter": {"none": {}, "mtp": {"k": [4, 8]}}},
            "precision": {"relative": "2%", "min_windows": 4, "max_windows": 6, "launch_noise": "1%"},
            "finalists": {"count": finalists, "launches": afresh}, "budget": {"launches": launches},
        }
    )  # fmt: skip
    seen = list(before)

    def speed(order: LaunchOrder, _: Workload, window: int) -> float | RepeakError:
        k = (
            8
            if "8" in " ".join(order.args).partition("num_speculative_tokens")[2]
            else 4
            if order.drafter != "none"
            else 0
        )
        if window == 0:
            if len(seen) == stop_after:
                return Interrupted("stopped", "")
            seen.append(k)
        drifting = seen.count(k) - 1 in drifts.get(k, ())
        return speeds[k] * (DRIFT[window] if drifting else 1 + window % 2 / 1000)

    environment = EngineEnvironment(
        key="k", requirement="vllm==0.30.0", version="0.30.0", python=Path("python"), directory=None,
        flavour="other", lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    pad = Launchpad(
        environment=environment, space=plan.space, model="m", serve={}, env={}, bfloat16=False, logs=place,
        run_id="r", start_timeout_s=lambda: 1.0,
    )  # fmt: skip
    study = Study(
        engine="e", key="s", stack=StackFingerprint(items={"vllm": "0.30.0"}), space=plan.space, pad=pad,
        facts=KnownFacts(), incumbent=incumbent,
    )  # fmt: skip
    with Journal(place / "journal") as journal:
        memory = Memory(journal, None, print)
        clock = SystemClock()
        budget = Budget(launches=launches, time_s=None, before=(), clock=clock)
        quiet = PlainProgress(lambda _: None)
        slots = OneSlot(ScriptedSlot(speed))
        bench = Bench(plan=plan, slots=slots, memory=memory, budget=budget, clock=clock, progress=quiet)
        try:
            return run_studies([study], bench), seen
        except Interrupted:
            return conclude([study], plan, memory), seen


def test_a_finalist_that_holds_is_the_peak_after_one_fresh_launch(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {})
    peak = outcome.peaks["e"]["edit"]
    assert (peak.configuration.k, peak.confirmed, len(seen)) == (8, True, 4)


def test_a_finalist_that_is_set_aside_makes_room_for_the_next_one(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {8: AFRESH})
    peak = outcome.peaks["e"]["edit"]
    assert (peak.configuration.k, peak.confirmed) == (4, True)
    assert seen[3:] == [8, 4]
    assert "drifting" in next(iter(peak.set_aside.values()))


def test_the_incumbent_alone_is_no_answer_where_what_was_ahead_of_it_drifted(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {8: AFRESH}, incumbent=NONE, afresh=2)
    peak = outcome.peaks["e"]["edit"]
    assert (peak.configuration.k, peak.verdict) == (4, "beats the incumbent")
    assert seen[3:] == [8, 0, 0, 8, 4, 4]
    assert list(peak.set_aside) == ["mtp k=8"]


def test_a_finalist_that_drifted_in_one_launch_of_three_is_judged_by_the_others(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {8: (2,)}, incumbent=NONE, afresh=3)
    peak = outcome.peaks["e"]["edit"]
    assert (peak.configuration.k, peak.verdict, peak.estimate.launches) == (8, "beats the incumbent", 3)
    assert seen[3:] == [8, 0, 0, 8, 8, 0, 8], "and once more for the one that drifted"
    assert "1 of 4 fresh launches" in peak.left_out["mtp k=8"]


def test_nothing_more_is_launched_where_what_was_set_aside_was_behind_the_incumbent(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {8: AFRESH}, finalists=2, incumbent=NONE, speeds={0: 120.0, 4: 119.0, 8: 119.5})
    assert outcome.peaks["e"]["edit"].verdict == "incumbent stays"
    assert seen[3:] == [0, 8]


@pytest.mark.parametrize("stop_after", range(3, 14))
def test_finals_that_were_stopped_anywhere_go_on_to_the_same_peak_and_end(tmp_path: Path, stop_after: int) -> None:
    # k = 8 drifts whenever it is launched afresh, k = 4 the first time.
    drifting: dict[str, Any] = {"drifts": {8: AFRESH, 4: (1,)}, "incumbent": NONE, "afresh": 3}
    whole, launched = tuned(tmp_path / "whole", **drifting)
    _, begun = tuned(tmp_path / "stopped", **drifting, stop_after=stop_after)
    outcome, seen = tuned(tmp_path / "stopped", **drifting, before=begun)
    assert seen == launched
    assert outcome.peaks == whole.peaks
    _, again = tuned(tmp_path / "stopped", **drifting, before=seen)
    assert again == seen, "a finished study only reads"


def test_a_study_in_which_nothing_holds_ends_once(tmp_path: Path) -> None:
    _, seen = tuned(tmp_path, {4: AFRESH, 8: AFRESH}, incumbent=NONE)
    _, again = tuned(tmp_path, {4: AFRESH, 8: AFRESH}, incumbent=NONE, before=seen)
    assert again == seen
    assert seen[3:] == [8, 0, 4]


def test_a_budget_that_is_used_up_leaves_it_unconfirmed(tmp_path: Path) -> None:
    outcome, seen = tuned(tmp_path, {8: AFRESH}, launches=4)
    assert (outcome.peaks["e"]["edit"].confirmed, len(seen)) == (False, 4)


def test_finals_leave_half_of_a_small_budget_to_the_search(tmp_path: Path) -> None:
    _, seen = tuned(tmp_path, {}, launches=4, finalists=3, afresh=3)
    assert (len(set(seen[:2])), set(seen[2:])) == (2, {seen[1]}), "two of a search, two of finals"


def test_launches_that_no_finalist_needs_are_the_search_s(tmp_path: Path) -> None:
    # 120 is so far ahead of 100 and 50 that there is one finalist of three.
    outcome, seen = tuned(tmp_path, {}, launches=6, finalists=3, afresh=2)
    assert (outcome.peaks["e"]["edit"].configuration.k, len(set(seen[:3]))) == (8, 3)
    assert seen[3:] == [8, 8]


@pytest.mark.parametrize("role", ["anchor", "in_turn"])
def test_launches_of_another_day_do_not_change_what_finals_showed(role: str) -> None:
    plan, best = two.plan(), two.configuration("ngram", 2)
    study = SimpleNamespace(incumbent=two.configuration(), space=plan.space)
    speeds = [(two.configuration(), 100.0), (best, 112.0)]
    roles = ["search", "finalist", "finalist"]
    own = [two.record("s", n, two.OLD, *one, role=role) for n, role in enumerate(roles) for one in speeds]
    hot = [two.record("s", n, two.OLD, best, 0.8 * 112, role=role) for n in (7, 8)]
    alone, later = (peaks_of(study, plan, records) for records in (own, own + hot))  # type: ignore[arg-type]
    assert alone["generate"].configuration == best
    assert later == alone
