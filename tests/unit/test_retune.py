"""A retune launches what tells most, stops when it is told, and says no more than its launches show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import two_engines as two

from benchmarks.retune_methods import frame_of
from benchmarks.simulated_world import RULE, TARGET, Case, World
from orchestrator.both_stacks import BothStacks
from orchestrator.joint_model import Reading, fit_scales
from orchestrator.objective import targets
from orchestrator.retune import next_step
from orchestrator.retune_view import FAST, THOROUGH, Effort, Frame, Seen, Step, Verdict, seen
from orchestrator.simulated_spec import Noise
from search_spaces.configuration import Configuration
from trackers.records import Role, TrialRecord

QUIET = Noise(launch_sd=0.004, window_sd=0.001)


@cache
def case(move: str, seed: int = 0, noise: Noise = QUIET) -> Case:
    """A move on a quiet machine; its old study is made once."""
    found = Case(move, seed)
    found.noise = noise
    assert found.old
    return found


def steps(one: Case, world: World, frame: Frame, old: Seen | None = None) -> Iterator[Step | Verdict]:
    """Launches as asked until the verdict, which comes last."""
    while True:
        step = next_step(old or seen(one.old, TARGET, RULE), seen(world.records, TARGET, RULE), frame)
        yield step
        if isinstance(step, Verdict):
            return
        world.launch(step.configuration, step.role)


def retuned(one: Case, effort: Effort = FAST, **changes: object) -> tuple[Verdict, World]:
    world = one.world("new")
    frame = replace(frame_of(one, world, effort), **changes)  # type: ignore[arg-type]
    *_, verdict = steps(one, world, frame)
    assert isinstance(verdict, Verdict)
    return verdict, world


def roles(world: World) -> list[Role]:
    return [record.role for record in world.records]


def test_where_nothing_moved_it_says_so_early_and_asks_for_no_finals() -> None:
    verdict, world = retuned(case("null"))
    assert verdict.shift.verdict == "same"
    assert verdict.recommended == case("null").old_peak
    assert len(world.records) <= 10
    assert roles(world)[:2] == ["anchor", "anchor"]
    assert "finalist" not in roles(world)


def test_an_engine_faster_all_over_keeps_its_peak() -> None:
    verdict, _ = retuned(case("uniform", 9))
    assert verdict.shift.verdict == "faster, same peak"
    old, new = case("uniform", 9).surfaces
    speed = verdict.shift.speed
    assert speed.low is not None
    assert speed.high is not None
    assert speed.low < new.base_tok_s / old.base_tok_s < speed.high


@pytest.mark.parametrize(
    ("move", "effort"), [("drafter_flip", FAST), ("drafter_flip", THOROUGH), ("drafter_new", FAST)]
)
def test_a_peak_that_moved_is_found_launched_afresh_and_claimed(move: str, effort: Effort) -> None:
    verdict, world = retuned(case(move), effort)
    assert verdict.shift.verdict == "peak moved"
    assert verdict.peak is not None
    assert verdict.peak.configuration == verdict.recommended != case(move).old_peak
    assert case(move).regret(verdict.peak.configuration) < 0.03
    fresh = [one for one in world.records if one.role == "finalist"]
    assert sum(one.configuration == verdict.peak.configuration for one in fresh) >= 2
    assert len(world.records) <= effort.most + effort.finals * (effort.rivals + 1)


def test_every_drafter_of_the_new_engine_is_visited_one_that_the_old_had_not_included() -> None:
    one = case("drafter_new")
    assert "dspark" not in {record.configuration.drafter for record in one.old if record.windows}
    _, world = retuned(one)
    assert {"mtp", "dspark"} <= {record.configuration.drafter for record in world.records}


def test_an_old_peak_that_cannot_start_is_walked_away_from() -> None:
    one = case("act_cliff")
    verdict, world = retuned(one)
    assert not world.records[0].windows
    assert verdict.shift.verdict == "peak moved"
    assert verdict.recommended is not None
    assert one.regret(verdict.recommended) < 0.03


def test_noise_that_hides_the_answer_is_cannot_tell_with_what_would_tell() -> None:
    verdict, _ = retuned(case("null", 7, Noise(launch_sd=0.05)))
    assert verdict.shift.verdict == "cannot tell"
    assert verdict.shift.would_decide
    assert verdict.shift.launches_to_decide


def test_where_nothing_can_start_it_gives_up_within_its_effort() -> None:
    one = case("null")
    world = one.world("new")
    world.surface = replace(world.surface, weights_gib=500.0)
    *_, verdict = steps(one, world, frame_of(one, world, FAST))
    assert isinstance(verdict, Verdict)
    assert verdict.peak is None
    assert verdict.recommended is None
    assert len(world.records) <= FAST.most


def test_what_arithmetic_refuses_is_never_launched() -> None:
    one = case("drafter_flip")
    _, world = retuned(one, refuses=lambda c: c.drafter == "dspark" or one.world("new").impossible(c))
    assert "dspark" not in {record.configuration.drafter for record in world.records}


def test_seats_beyond_the_requests_in_flight_and_less_room_are_not_worth_a_launch() -> None:
    one = case("uniform", 9)
    _, world = retuned(one)
    peak = one.old_peak.values
    for record in world.records:
        assert record.configuration.values["gpu_memory_utilization"] >= peak["gpu_memory_utilization"]  # type: ignore[operator]
        assert record.configuration.values["max_num_seqs"] == peak["max_num_seqs"]


def test_a_step_of_k_is_one_of_its_grid_however_far_apart_they_are() -> None:
    grid = [1, 2, 4, 8, 12, 16]
    held = {"drafter": {"none": {}, "ngram": {"k": grid}}, "max_num_seqs": 8}
    plan, k = (
        two.plan(space=held),
        {n: Configuration(values={"drafter": "ngram", "k": n, "max_num_seqs": 8}) for n in grid},
    )
    target = targets(plan.objective, plan.workload_names)[0]
    told = [
        [two.record(engine, n, engine, k[each], 100.0 + each, role=role) for n, (each, role) in enumerate(made)]
        for engine, made in ((two.OLD, [(4, "search"), (8, "search")]), (two.NEW, [(8, "anchor"), (8, "anchor")]))
    ]
    old, new = (seen(records, target, plan.precision.rule()) for records in told)
    readings = [Reading(one, target.score(values), len(values)) for one, values in old.readings]
    scales = fit_scales(plan.space, readings, old.rates, 0.01)
    frame = Frame(space=plan.space, old_peak=k[8], target=target, delta=0.02, launch_noise=0.01, scales=scales)
    options = {one.k for one in BothStacks(old, new, frame).options if one.drafter == "ngram"}
    assert options == {2, 4, 12}, "16 is further than half beyond what ran"


@pytest.mark.parametrize("state", ["interrupted", "lost"])
def test_a_launch_that_says_nothing_of_its_configuration_changes_no_step(state: str) -> None:
    one = case("drafter_flip")
    _, world = retuned(one)
    frame = frame_of(one, world, FAST)
    old = seen(one.old, TARGET, RULE)
    cut = world.records[5]
    empty = cut.model_copy(update={"state": state, "windows": (), "launches": ()})
    with_it = next_step(old, seen([*world.records[:5], empty], TARGET, RULE), frame)
    assert isinstance(with_it, Step)
    assert with_it.configuration == cut.configuration


# The old engine in turn.


def test_a_machine_that_got_slower_since_the_old_study_is_no_slower_engine() -> None:
    one, slower = case("null"), 0.9

    def slow(world: World) -> World:
        world.surface = replace(world.surface, base_tok_s=world.surface.base_tok_s * slower)
        return world

    # Of another target's old peak: it says nothing of this one.
    stray = _later(next(r for r in one.old if r.configuration != one.old_peak and r.windows))
    stray = stray.model_copy(update={"role": "in_turn"})
    for alternate in (False, True):
        new, today, turns = slow(one.world("new")), slow(one.world("old", repeat=1)), list[str]()
        frame = replace(frame_of(one, new, FAST), alternate=alternate)
        while True:
            before = [*one.old, stray, *(_later(record) for record in today.records)]
            then = seen(before, TARGET, RULE, turns_from=_EPOCH)
            step = next_step(then, seen([_later(record) for record in new.records], TARGET, RULE), frame)
            if isinstance(step, Verdict):
                break
            turns.append(step.stack)
            (today if step.stack == "old" else new).launch(step.configuration, step.role)
        assert (step.shift.speed.verdict == "slower") is not alternate
        assert turns.count("old") == (2 if alternate else 0)
        assert not alternate or turns[:4] == ["new", "old", "new", "old"] or turns[:3] == ["new", "old", "new"]


_EPOCH = 1e6


def _later(record: TrialRecord) -> TrialRecord:
    return record.model_copy(update={"started_at": record.started_at + _EPOCH})
