"""From the old engine's records to the new one's verdict, stopped or not, and what is said where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

from benchmarks.regression_rate import PLAN, OneSlot, SurfaceSlot, studies_of
from orchestrator.budget import Budget
from orchestrator.clock import SystemClock
from orchestrator.errors import EnvironmentBroken, PlanError, SlotLost
from orchestrator.memory import Memory
from orchestrator.plan import TuningPlan
from orchestrator.progress import PlainProgress
from orchestrator.refind import refind
from orchestrator.retune_view import FAST
from orchestrator.simulated_moves import make_surface
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.study import Bench, Study
from orchestrator.tune import Outcome, conclude, run_studies
from trackers.entries import StudyClosed
from trackers.journal import Journal

TUNED = TuningPlan.model_validate(PLAN | {"search": {"launches": 12}})


class Machine:
    """Two engines that are surfaces, and one journal; `bench` stands for one run on it."""

    def __init__(self, folder: Path, slot: SurfaceSlot) -> None:
        self.slot, self.said, self._folder, self.plan = slot, list[str](), folder, TUNED
        self.journal = Journal(folder)
        self.memory = Memory(self.journal, None, self.said.append)

    def bench(self, more: int | None = None) -> Bench:
        clock, used = SystemClock(), sum(len(one.launches) for one in self.memory.all())
        budget = Budget(
            launches=None if more is None else used + more, time_s=None, before=self.memory.all(), clock=clock
        )
        return Bench(
            plan=self.plan,
            slots=OneSlot(self.slot),
            memory=self.memory,
            budget=budget,
            clock=clock,
            progress=PlainProgress(self.said.append),
        )

    def die(self) -> None:
        """What the next run knows is what the journal holds."""
        self.journal.close()
        self.journal = Journal(self._folder)
        self.memory = Memory(self.journal, None, self.said.append)


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path / "home"))
    return studies_of(TUNED, tmp_path / "logs")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made = list[Machine]()

    def make(move: str) -> Machine:
        old, new = make_surface(move, 1)
        made.append(Machine(tmp_path / f"journal{len(made)}", SurfaceSlot({"old": old, "new": new}, seed=1)))
        return made[-1]

    yield make
    for one in made:
        one.journal.close()


def refound(machine: Machine, studies: list[Study], more: int | None = None, *, alternate: bool = False) -> Outcome:
    return refind(FAST, alternate=alternate)(studies, machine.bench(more))


def test_an_engine_that_the_plan_has_not_is_one_clear_error(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    bench = machine("null").bench()
    with pytest.raises(PlanError, match="no engine vllm-9"):
        refind(FAST, "vllm-9")(studies, bench)
    with pytest.raises(PlanError, match="same stack"):
        refind(FAST)(studies[:1], bench)


def test_a_peak_of_another_model_is_not_looked_for(studies: list[Study], machine: Callable[[str], Machine]) -> None:
    items = dict(studies[1].stack.items) | {"model": "org/another"}
    other = replace(studies[1], stack=studies[1].stack.model_copy(update={"items": items}))
    with pytest.raises(PlanError, match="org/another"):
        refind(FAST, alternate=True)([studies[0], other], machine("null").bench())


def test_a_knob_that_only_the_new_engine_has_is_no_obstacle(tmp_path: Path, machine: Callable[[str], Machine]) -> None:
    new_here = {"env": "VLLM_NEW", "choices": [0, 1], "default": 0, "says": "New.", "since": "0.27.0"}
    here = machine("null")
    here.plan = TuningPlan.model_validate(
        PLAN | {"search": {"launches": 12}, "space": {**PLAN["space"], "new_here": new_here}}
    )
    pair = studies_of(here.plan, tmp_path / "logs")
    run_studies(pair[:1], here.bench())
    (shift,) = refound(here, pair, alternate=True).shifts
    assert "new_here" not in shift.old_peak.values
    tried = [one.configuration for one in here.memory.of(pair[1].key) if one.role not in ("anchor", "in_turn")]
    assert len({one.label({"new_here": 0}) for one in tried}) == len({one.label() for one in tried}), "nothing twice"


def test_what_the_old_engine_ran_in_turn_counts_when_it_is_here_no_more(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    for move in ("k_shift", "drafter_flip", "null"):
        here = machine(move)
        run_studies(studies[:1], here.bench())
        whole, before = refound(here, studies, alternate=True), here.slot.launches
        assert refound(here, studies, alternate=False).shifts == whole.shifts
        assert here.slot.launches == before


def test_a_budget_that_ends_before_the_old_engine_s_turn_still_gives_a_verdict(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    here, again = machine("mtp_regress"), machine("mtp_regress")
    for one in (here, again):
        run_studies(studies[:1], one.bench())
    begun = here.slot.launches
    (whole,) = refound(here, studies, alternate=True).shifts
    last = [one.configuration for one in here.memory.of(studies[0].key) if one.role == "in_turn"][-2:]
    assert last == [whole.new_peak, whole.old_peak], "never launched there before, and the old peak beside it"
    (short,) = refound(again, studies, here.slot.launches - begun - 2, alternate=True).shifts
    assert short.new_peak == whole.new_peak
    assert short.before is None


def test_an_old_engine_with_nothing_measured_leaves_a_cold_search_and_that_is_said(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    here = machine("null")
    found = refound(here, studies)
    assert any("has no peak to start from" in line and "cold" in line for line in here.said)
    assert found.peaks[studies[1].engine]
    assert not found.shifts
    assert not here.memory.of(studies[0].key)


def test_stopped_after_every_launch_it_comes_to_the_verdict_of_one_that_was_not(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    whole, parts = machine("k_shift"), machine("k_shift")
    for one in (whole, parts):
        run_studies(studies[:1], one.bench())
    expected = refound(whole, studies)
    assert expected.shifts
    for _ in range(40):
        found = refound(parts, studies, more=1)
        if found.shifts:
            break
        assert not found.peaks[studies[1].engine], "no peak before the verdict"
        parts.die()
    assert found.shifts == expected.shifts
    assert found.peaks == expected.peaks
    assert parts.slot.launches == whole.slot.launches


def test_the_old_engine_is_launched_in_turn_where_it_still_can_be(
    studies: list[Study], machine: Callable[[str], Machine]
) -> None:
    here = machine("null")
    run_studies(studies[:1], here.bench())
    before = len(here.memory.of(studies[0].key))
    found = refound(here, studies, alternate=True)
    turns = here.memory.of(studies[0].key)[before:]
    assert [one.role for one in turns[:2]] == ["in_turn", "in_turn"]
    new = [one for one in here.memory.of(studies[1].key) if one.role == "anchor"]
    assert new[0].started_at < turns[0].started_at < new[1].started_at
    # What is advised rests on the launches in turn, as the verdict does.
    (told,) = found.advice
    values = [one.estimates["generate/decode_tok_s"].value for one in turns]
    assert told.old_value.launches == len(turns)
    assert told.old_value.value == pytest.approx(geometric_mean(values), rel=1e-6)


def test_an_old_engine_that_no_longer_runs_ends_the_turns_and_nothing_else(
    studies: list[Study], machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("null")
    run_studies(studies[:1], here.bench())
    launch = here.slot.launch

    def only_new(order: LaunchOrder) -> LaunchReport:
        if order.environment.key == "old":
            raise EnvironmentBroken("its environment is gone", "Build it again.")
        return launch(order)

    monkeypatch.setattr(here.slot, "launch", only_new)
    assert refound(here, studies, alternate=True).shifts
    assert any("not launched in turn" in line for line in here.said)


@pytest.mark.parametrize("dies", ["old", "new"])
def test_an_engine_whose_every_worker_dies_is_not_asked_for_without_end(
    studies: list[Study], machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    here, lost = machine("null"), list[LaunchOrder]()
    run_studies(studies[:1], here.bench())
    launch = here.slot.launch

    def dying(order: LaunchOrder) -> LaunchReport:
        if order.environment.key != dies:
            return launch(order)
        lost.append(order)
        assert len(lost) < 9, "it goes on"
        raise SlotLost("The engine's worker died.")

    monkeypatch.setattr(here.slot, "launch", dying)
    found = refound(here, studies, alternate=True)
    assert len(lost) == 2
    assert bool(found.shifts) == (dies == "old")
    assert ("stopped: The engine's worker died." in found.ended[studies[1].engine]) == (dies == "new")


def slowed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the host gives four fifths of what it gave."""
    launch = machine.slot.launch

    def slow(order: LaunchOrder) -> LaunchReport:
        report = launch(order)
        machine.slot.effect *= 0.8
        return report

    monkeypatch.setattr(machine.slot, "launch", slow)


def another(study: Study) -> Study:
    environment = study.pad.environment.model_copy(update={"key": "another"})
    return replace(study, engine="another", key="f" * 12, pad=replace(study.pad, environment=environment))


def test_a_host_that_slowed_down_moves_no_old_peak_between_two_nights(
    studies: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface, found = make_surface("null", 2)[0], list[Outcome]()
    later = [studies[1], another(studies[1])]
    for name, nights in (("whole", [None]), ("parts", [5, None])):
        slot = SurfaceSlot(dict.fromkeys(("old", "new", "another"), surface), seed=2)
        here = Machine(tmp_path / name, slot)
        run_studies(studies[:1], here.bench())
        refound(here, studies, alternate=True)
        assert not any(one.role == "finalist" for one in here.memory.of(studies[1].key)), "its anchors speak for it"
        slowed(here, monkeypatch)
        for more in nights:
            outcome = refound(here, later, more, alternate=True)
        found.append(outcome)
        here.journal.close()
    whole, parts = (one.shifts[0] for one in found)
    assert (parts.old_peak, parts.speed, parts.verdict) == (whole.old_peak, whole.speed, whole.verdict)


def test_launches_in_turn_with_another_engine_say_nothing_of_a_recorded_peak(
    studies: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = make_surface("null", 1)[0]
    here = Machine(tmp_path / "journal", SurfaceSlot(dict.fromkeys(("old", "new", "another"), surface), seed=1))
    run_studies(studies[:1], here.bench())
    before = conclude(studies[:1], TUNED, here.memory).peaks[studies[0].engine]
    told = {name: peak.model_dump(mode="json") for name, peak in before.items()}
    closed = StudyClosed(study=studies[0].key, at=time.time(), verdict="", peak=told)
    with monkeypatch.context() as hot:
        slowed(here, hot)
        refound(here, [studies[0], another(studies[1])], alternate=True)
    found = refind(FAST, alternate=True, closed=closed)(studies, here.bench())
    assert found.peaks[studies[0].engine] == before
    assert found.shifts[0].noise.sd < 0.03, "a fifth between two days is no launch noise"
    here.journal.close()
