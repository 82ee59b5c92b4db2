"""The searcher proposes what is new, in the order asked for, and learns from what is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator import searcher as module
from orchestrator.searcher import Searcher
from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace
from search_spaces.values import Values


def make_space(**more: object) -> SearchSpace:
    knobs = drafter_knobs({"none": None, "ngram": Values(choices=(2, 8, 16))})
    return SearchSpace(knobs=(*knobs, *more.get("knobs", ())))  # type: ignore[misc]


def test_a_small_space_is_proposed_whole_in_its_own_order_and_then_ends() -> None:
    space = make_space()
    searcher = Searcher(space, queue=list(space.enumerate()))
    labels = []
    while (choice := searcher.ask()) is not None:
        labels.append(choice.label())
        searcher.tell(choice, [1.0])
    assert labels == ["none", "ngram k=2", "ngram k=8", "ngram k=16"]


def test_known_trials_are_not_proposed_again_when_a_study_resumes() -> None:
    space = make_space()
    done = list(space.enumerate())[:3]
    searcher = Searcher(space, queue=list(space.enumerate()), known=[(one, [1.0], {}) for one in done])
    assert searcher.ask() == list(space.enumerate())[3]
    searcher.tell(list(space.enumerate())[3], None)
    assert searcher.ask() is None


def test_a_sampler_that_proposes_what_is_known_is_soon_believed_to_have_converged() -> None:
    space = make_space()
    searcher = Searcher(space, known=[(one, [1.0], {}) for one in space.enumerate()])
    assert searcher.ask() is None
    failed = searcher._study.get_trials(deepcopy=False, states=(module.TrialState.FAIL,))
    assert len(failed) == module._CONVERGED


def test_an_incumbent_outside_the_space_is_proposed_once_and_can_be_told() -> None:
    space = make_space()
    incumbent = Configuration(values={"drafter": "ngram", "k": 5})
    searcher = Searcher(space, queue=[incumbent])
    assert searcher.ask() == incumbent
    searcher.tell(incumbent, [1.0])
    assert searcher.ask() != incumbent


def failures(sampler: str) -> int:
    """Of four searches of 24, where the half of the space that asks for more fails."""
    space = make_space(knobs=(Knob(name="seqs", low=1, high=256, log=True, flag="--max-num-seqs"),))
    failed = 0
    for seed in range(4):
        searcher = Searcher(space, seed=seed, sampler=sampler)
        for _ in range(24):
            choice = searcher.ask()
            assert choice is not None
            fails = int(choice.values["seqs"]) > 16
            searcher.tell(choice, None if fails else [float(choice.k)])
            failed += fails
    return failed


def test_failures_are_told_without_a_value_and_steer_the_search_away() -> None:
    assert failures("tpe") < 0.8 * failures("random")


def test_two_goals_are_told_together() -> None:
    space = make_space()
    searcher = Searcher(space, goals=2, queue=list(space.enumerate()))
    choice = searcher.ask()
    assert choice is not None
    searcher.tell(choice, [1.0, 2.0], {"ttft <= 200": -0.5})
    assert searcher.ask() is not None


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_every_sampler_proposes_members_of_the_space(sampler: str) -> None:
    space = make_space(knobs=(Knob(name="util", low=0.5, high=0.9, flag="--gpu-memory-utilization"),))
    searcher = Searcher(space, sampler=sampler, seed=3)
    for _ in range(12):
        choice = searcher.ask()
        assert choice is not None
        assert space.contains(choice)
        searcher.tell(choice, [1.0])


def test_what_is_to_be_avoided_is_proposed_last() -> None:
    space = make_space()
    searcher = Searcher(space)
    labels = []
    while (choice := searcher.ask(avoid=lambda one: one.k in (2, 8))) is not None:
        labels.append(choice.label())
        searcher.tell(choice, [1.0])
    assert sorted(labels[:2]) == ["ngram k=16", "none"]
    assert sorted(labels[2:]) == ["ngram k=2", "ngram k=8"]


def test_studies_of_several_threads_do_not_undo_each_others_hushing() -> None:
    space = make_space()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda seed: Searcher(space, seed=seed), range(64)))
    assert len(made) == 64


def test_a_long_study_is_cut_short_for_its_sampler_and_still_asks_for_everything_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BEST", 2)
    monkeypatch.setattr(module, "_NEWEST", 6)
    space = make_space(knobs=(Knob(name="seqs", choices=tuple(range(1, 16)), flag="--max-num-seqs"),))
    searcher, waiting, seen = Searcher(space, seed=1), list[Configuration](), list[str]()
    while (choice := searcher.ask()) is not None:
        seen.append(choice.key)
        waiting.append(choice)
        if len(waiting) == 3:  # so many are under way whenever it is cut
            oldest = waiting.pop(0)
            failed = oldest.values["seqs"] == 15
            searcher.tell(oldest, None if failed else [float(oldest.k)], {"p99_ttft_ms <= 200": -1.0})
    assert sorted(seen) == sorted(one.key for one in space.enumerate())
    # What is kept, twice over; the tries of one ask; those under way.
    assert len(searcher._study.get_trials(deepcopy=False)) <= 2 * (2 + 6) + 20 + 3
