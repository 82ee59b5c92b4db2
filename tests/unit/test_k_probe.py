"""The next k is the one that a drafter's curve promises most of, and deeper where the curve still rises."""

from __future__ import annotations

import numpy as np
import pytest
from trial_records import EDIT, trial, window

from orchestrator.k_probe import KProbe
from orchestrator.searcher import Searcher
from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.space import SearchSpace
from search_spaces.values import Values
from trackers.records import Acceptance, TrialRecord

SPACE = SearchSpace(knobs=drafter_knobs({"none": None, "mtp": Values(low=1, high=6)}))


class Engine:
    """decode tok/s and draft counters by k, where a draft token costs `cost` target passes."""

    def __init__(self, first: float, cost: float) -> None:
        self.rates, self.cost = first ** np.arange(1, 7), cost

    def speed(self, k: int) -> float:
        return float(60 * (1 + self.rates[:k].sum()) / (1 + self.cost * k))

    def ran(self, k: int, state: str = "measured") -> TrialRecord:
        values = {"drafter": "mtp", "k": k} if k else {"drafter": "none"}
        accepted = tuple(int(1000 * rate) for rate in self.rates[:k])
        drafts = Acceptance(
            drafts=1000, draft_tokens=1000 * k, accepted_tokens=sum(accepted), accepted_per_position=accepted
        )
        counted = {"acceptance": drafts if k else None, "total_output_tokens": 1004 + sum(accepted)}
        windows = (window(metrics={"decode_tok_s": self.speed(k)}, **counted),)
        more = {} if state == "measured" else {"estimates": {}}
        return trial(f"k{k}", k, configuration=Configuration(values=values), windows=windows, state=state, **more)


def proposals(engine: Engine, ks: list[int]) -> list[int]:
    """The k launched after these until nothing more is proposed."""
    probe, records = KProbe(SPACE, [[EDIT.name]]), [engine.ran(k) for k in ks]
    while (found := probe.next(records)) is not None:
        ks = [*ks, found[0].k]
        records.append(engine.ran(found[0].k))
    return ks


def test_a_curve_that_still_rises_is_followed_and_its_peak_launched() -> None:
    engine = Engine(first=0.7, cost=0.15)
    best = max(range(1, 7), key=engine.speed)
    assert proposals(engine, [0, 2]) == [0, 2, 4, best] == [0, 2, 4, 3]


def test_a_peak_under_the_first_launch_is_gone_to_at_once() -> None:
    engine = Engine(first=0.45, cost=0.15)
    assert proposals(engine, [0, 4]) == [0, 4, max(range(1, 7), key=engine.speed)]


def test_a_drafter_that_loses_at_every_k_is_left_alone() -> None:
    assert proposals(Engine(first=0.2, cost=0.3), [0, 3]) == [0, 3]


def test_a_launch_in_turn_on_another_day_promises_nothing_and_forbids_nothing() -> None:
    engine = Engine(first=0.7, cost=0.15)
    own = [engine.ran(0), engine.ran(2)]
    fast = engine.ran(0).model_copy(update={"role": "in_turn", "trial_id": "fast"})
    fast = fast.model_copy(update={"windows": (window(metrics={"decode_tok_s": 1000.0}),)})
    cut = engine.ran(4, "interrupted")
    assert KProbe(SPACE, [[EDIT.name]]).next([*own, fast, cut]) == KProbe(SPACE, [[EDIT.name]]).next(own) is not None


def test_of_two_trials_of_a_k_the_first_stands_for_it() -> None:
    engine = Engine(first=0.7, cost=0.15)
    probe, own = KProbe(SPACE, [[EDIT.name]]), [engine.ran(0), engine.ran(2)]
    expected = probe.next(own)
    again = engine.ran(2).model_copy(update={"windows": (window(metrics={"decode_tok_s": engine.speed(2) * 1.01}),)})
    found = probe.next([*own, again])
    assert found is not None
    assert expected is not None
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1]), "a luckier trial does not lift the curve"


def test_a_launch_that_did_not_settle_has_its_say() -> None:
    engine = Engine(first=0.85, cost=0.15)
    found = KProbe(SPACE, [[EDIT.name]]).next([engine.ran(0), engine.ran(2, "unsettled")])
    assert found is not None
    assert found[0].k == 4


def test_what_is_promised_goes_before_the_sampler_and_after_the_queue() -> None:
    none, four = (Configuration(values=values) for values in ({"drafter": "none"}, {"drafter": "mtp", "k": 4}))
    searcher = Searcher(SPACE, queue=[none])
    assert searcher.ask(first=lambda: four) == none
    assert searcher.ask(first=lambda: four) == four
    assert searcher.ask(first=lambda: four) != four, "it is under way"
