"""Two stacks in one model: what the old one knew carries over, what changed is found, one bad start misleads nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from orchestrator.joint_model import JointModel, Reading, fit_scales
from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace
from search_spaces.values import Values

BUDGETS = (2048, 4096, 8192, 16384)
SPACE = SearchSpace(
    knobs=(
        *drafter_knobs({"none": None, "ngram": Values(low=1, high=8), "mtp": Values(low=1, high=10)}),
        Knob(name="max_num_batched_tokens", choices=BUDGETS, flag="--max-num-batched-tokens"),
        Knob(name="enable_prefix_caching", choices=(False, True), flag="--enable-prefix-caching"),
    )
)
RATES = {name: {10: [rate**n for n in range(1, 11)]} for name, rate in (("mtp", 0.85), ("ngram", 0.5))}
SD = 0.01
Truth = Callable[[Configuration], float]


def at(drafter: str, k: int = 0, budget: int = 8192, *, caching: bool = False) -> Configuration:
    held = {"drafter": drafter, "max_num_batched_tokens": budget, "enable_prefix_caching": caching}
    return SPACE.complete(held | ({"k": k} if k else {}))


def old(one: Configuration, mtp_cost: float = 0.15) -> float:
    """Log of tok/s: tokens a pass over what drafting costs, a budget that matters little, caching that costs 5 %."""
    cost = {"none": 0.0, "ngram": 0.05, "mtp": mtp_cost}[one.drafter]
    tokens = 1 + sum(RATES.get(one.drafter, {10: []})[10][: one.k])
    budget = abs(math.log2(float(one.values["max_num_batched_tokens"]) / 8192))
    return math.log(80 * tokens / (1 + cost * one.k)) - 0.01 * budget - 0.05 * bool(one.values["enable_prefix_caching"])


STUDIED = [
    *(at(drafter, k) for drafter, ks in (("mtp", (1, 2, 4, 6, 8)), ("ngram", (1, 3, 5, 8))) for k in ks),
    *(at("mtp", 4, budget) for budget in BUDGETS if budget != 8192),
    *(at("mtp", k, caching=True) for k in (2, 4)),
    *(at("none", budget=budget) for budget in BUDGETS),
    at("none", caching=True),
    at("ngram", 3, caching=True),
]
CENTRE = at("mtp", 4)


def readings(where: Sequence[Configuration], truth: Truth, seed: int = 0, launches: int = 3) -> list[Reading]:
    noise = np.random.default_rng(seed).normal(0, SD / math.sqrt(launches), len(where))
    return [Reading(one, truth(one) + float(off), launches) for one, off in zip(where, noise, strict=True)]


def model(new: Sequence[Reading], before: Sequence[Reading] | None = None) -> JointModel:
    before = readings(STUDIED, old) if before is None else before
    scales = fit_scales(SPACE, before, RATES, SD)
    return JointModel(SPACE, before, new, (RATES, {}), SD, scales, CENTRE)


def gaps(found: JointModel, where: Sequence[Configuration], truth: Truth) -> np.ndarray:
    """How far the forecast of each over the centre is from the truth (log units)."""
    mean = found.forecast([*where, CENTRE]).mean
    return np.array([m - mean[-1] - (truth(one) - truth(CENTRE)) for m, one in zip(mean[:-1], where, strict=True)])


UNSEEN = [at("mtp", 3), at("mtp", 5), at("ngram", 4), at("mtp", 6, 4096), at("mtp", 3, caching=True)]


def test_before_anything_is_known_of_the_new_engine_its_shape_is_the_old_ones() -> None:
    assert np.abs(gaps(model([]), UNSEEN, old)).max() < 0.03


@pytest.mark.parametrize("factor", [1.0, 1.43, 0.8])
def test_an_engine_that_is_faster_all_over_changes_no_shape(factor: float) -> None:
    found = model(readings([CENTRE, at("ngram", 3), at("none"), at("mtp", 6)], lambda c: old(c) + math.log(factor), 1))
    assert found.log_likelihood_ratio < 2
    assert np.abs(gaps(found, UNSEEN, old)).max() < 0.03
    level = found.forecast([CENTRE]).mean[0]
    assert level == pytest.approx(old(CENTRE) + math.log(factor), abs=0.03)


def test_a_drafter_that_became_cheap_is_found_from_two_launches_and_its_best_k_moves_up() -> None:
    def cheap(one: Configuration) -> float:
        return old(one, mtp_cost=0.02)

    found = model(readings([CENTRE, at("mtp", 8), at("ngram", 3), at("none")], cheap, 2))
    assert found.log_likelihood_ratio > 2
    depths = [at("mtp", k) for k in range(1, 11)]
    before = [old(one) for one in depths]
    best = int(found.forecast(depths).mean.argmax()) + 1
    assert best > before.index(max(before)) + 1


def test_launches_narrow_what_is_said_of_their_configuration_and_of_its_neighbours() -> None:
    wide, narrow = (model(readings(where, old, 3)) for where in ([CENTRE], [CENTRE, at("mtp", 5)]))
    spread = [found.forecast([at("mtp", 5), CENTRE]).gap(0, 1)[1] for found in (wide, narrow)]
    assert spread[1] < spread[0]


def test_expected_gains_are_never_negative_and_next_to_nothing_for_what_is_far_behind() -> None:
    found = model(readings([CENTRE, CENTRE, at("none")], old, 4))
    forecast = found.forecast([at("none"), at("mtp", 5), CENTRE])
    gains = forecast.gains(2)
    assert (gains >= 0).all()
    assert gains[0] < 0.001 < gains[1]
    assert forecast.weights.sum() == pytest.approx(1)


def test_one_start_that_went_wrong_does_not_bend_the_old_surface() -> None:
    good = readings(STUDIED, old, launches=1)
    index = STUDIED.index(at("none", budget=4096))
    bad = [*good[:index], Reading(good[index].configuration, good[index].score - 0.14, 1), *good[index + 1 :]]
    for before in (good, bad):
        assert abs(gaps(model([], before), [at("none", budget=4096)], old)[0]) < 0.05


def test_acceptance_past_the_last_launched_k_goes_on_to_fade() -> None:
    short = {"mtp": {2: [0.8, 0.6]}}
    before = readings([at("none"), at("mtp", 1), at("mtp", 2)], old)
    found = JointModel(SPACE, before, [], (short, {}), SD, fit_scales(SPACE, before, short, SD), at("mtp", 2))
    rise = np.diff(found.forecast([at("mtp", k) for k in range(2, 8)]).mean)
    assert all(later < sooner for sooner, later in pairwise(rise))


def test_where_the_old_study_is_too_small_both_engines_say_what_a_knob_does() -> None:
    def gaining(one: Configuration) -> float:
        return old(one) + 0.35 * bool(one.values["enable_prefix_caching"])

    def ratio(before: list[Configuration]) -> float:
        few, now = readings(before, old), readings([CENTRE, at("mtp", 4, caching=True), at("none")], gaining, 1)
        assert fit_scales(SPACE, few, RATES, SD) is None
        return JointModel(SPACE, few, now, (RATES, {}), SD, None, CENTRE).log_likelihood_ratio

    assert ratio([at("none"), CENTRE]) < 2, "caching was never turned there: what it brings now it may have brought"
    assert ratio([at("none"), CENTRE, at("mtp", 4, caching=True)]) > 2, "it was, and brought nothing"


def test_with_nothing_known_everything_is_as_likely_as_everything_else() -> None:
    found = model([], [])
    assert found.log_likelihood_ratio == 0
    assert np.ptp(found.forecast([at("mtp", 2), at("mtp", 8)]).mean) < 0.6
    assert model(readings([CENTRE], old), []).forecast([CENTRE]).mean[0] == pytest.approx(old(CENTRE), abs=0.05)
