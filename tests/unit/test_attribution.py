"""A factorial separates what changed together; what it cannot show, it calls unresolved."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from orchestrator.attribution import Attribution, Effect, Factor, Observation, attribute, plan_design
from orchestrator.launch_noise import LaunchNoise

FACTORS = [
    Factor(name="draft", old={"drafter": "mtp", "k": 2}, new={"drafter": "mtp", "k": 4}),
    Factor(name="caching", old={"enable_prefix_caching": False}, new={"enable_prefix_caching": True}),
    Factor(name="engine", old={"engine": "0.19.1"}, new={"engine": "0.26.0"}),
    Factor(name="seqs", old={"max_num_seqs": 8}, new={"max_num_seqs": 16}),
    Factor(name="batch", old={"max_num_batched_tokens": 2048}, new={"max_num_batched_tokens": 8192}),
]
EXACT = LaunchNoise(sd=1e-4, dof=1000)
USUAL = LaunchNoise(sd=0.015, dof=1000)


def run(m: int, rng: np.random.Generator | None = None, replicates: int = 1, skip: int = -1) -> list[Observation]:
    """draft +9 %, caching -6 %, together +3.5 % (logs), the rest nothing; with launch noise 1.5 % or none."""
    seen = []
    for place, one in enumerate(plan_design(FACTORS[:m], replicates=replicates).runs):
        draft, caching = one.levels["draft"], one.levels.get("caching", False)
        value = 0.09 * draft - 0.06 * caching + 0.035 * draft * caching + (rng.normal(0, 0.015) if rng else 0)
        if place != skip:
            seen.append(Observation(levels=one.levels, value=100 * math.exp(value)))
    return seen


def log(effect: Effect | None) -> float:
    assert effect is not None
    return math.log1p(effect.change)


@pytest.mark.parametrize(("m", "launches"), [(1, 3), (2, 5), (3, 9), (4, 9), (5, 9)])
def test_a_design_starts_and_ends_with_the_old_peak(m: int, launches: int) -> None:
    design = plan_design(FACTORS[:m])
    assert len(design.runs) == launches
    for end in (design.runs[0], design.runs[-1]):
        assert not any(end.levels.values())
    cells = [tuple(one.levels.values()) for one in design.runs[:-1]]
    assert len(set(cells)) == launches - 1
    assert tuple([True] * len(design.factors)) in cells


def test_every_factor_is_new_in_half_of_the_launches_and_meets_every_other() -> None:
    cells = np.array([list(one.levels.values()) for one in plan_design(FACTORS[:4]).runs[:-1]]) - 0.5
    assert np.allclose(cells.T @ cells, np.eye(4) * 2)


def test_launches_carry_the_settings_of_their_levels() -> None:
    for one in plan_design(FACTORS[:2]).runs:
        assert one.settings["k"] == (4 if one.levels["draft"] else 2)
        assert one.settings["enable_prefix_caching"] is one.levels["caching"]


def test_blocks_are_whole_designs_each_in_its_own_order() -> None:
    runs = plan_design(FACTORS[:3], replicates=2, seed=3).runs
    blocks = [[tuple(one.levels.values()) for one in runs if one.block == block] for block in (0, 1)]
    assert len(runs) == 17
    assert set(blocks[0]) == set(blocks[1])
    assert blocks[0] != blocks[1][:8]
    assert plan_design(FACTORS[:3], replicates=2, seed=3).runs == runs
    assert plan_design(FACTORS[:3], replicates=2, seed=4).runs != runs


def test_of_more_than_four_the_smallest_expected_move_as_one() -> None:
    design = plan_design(FACTORS, {"engine": 0.4, "draft": -0.2, "seqs": 0.1})
    assert [f.name for f in design.factors] == ["engine", "draft", "seqs", "rest"]
    assert design.factors[-1].new == {"enable_prefix_caching": True, "max_num_batched_tokens": 8192}
    assert "caching, batch move as one" in design.note


def test_nothing_to_attribute_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing differs"):
        plan_design([])


def test_main_effects_differ_between_old_and_new_levels_by_the_interaction() -> None:
    found = attribute(run(2), EXACT)
    draft, caching = found.mains
    assert (log(draft.at_old), log(draft.averaged), log(draft.at_new)) == pytest.approx((0.09, 0.1075, 0.125))
    assert (log(caching.at_old), log(caching.at_new)) == pytest.approx((-0.06, -0.025))
    (both,) = found.interactions
    assert (both.name, log(both)) == ("draft x caching", pytest.approx(0.035))
    assert log(found.total) == pytest.approx(0.065)
    assert found.notes == ()


def test_effects_of_three_factors_and_what_does_nothing() -> None:
    found = attribute(run(3), EXACT)
    named = {effect.name: effect for effect in found.interactions}
    assert set(named) == {"draft x caching", "draft x engine", "caching x engine", "draft x caching x engine"}
    assert log(named["draft x caching"]) == pytest.approx(0.035)
    assert not found.mains[2].averaged.resolved


def test_half_of_the_combinations_leaves_pairs_of_interactions_joined() -> None:
    found = attribute(run(4), EXACT)
    assert [log(main.averaged) for main in found.mains] == pytest.approx([0.1075, -0.0425, 0, 0], abs=1e-9)
    assert all(main.at_old is None for main in found.mains)
    assert [effect.name for effect in found.interactions] == [
        "draft x caching + engine x seqs",
        "draft x engine + caching x seqs",
        "draft x seqs + caching x engine",
    ]
    assert log(found.interactions[0]) == pytest.approx(0.035)
    assert "more than 2 factors" in found.notes[0]


def test_a_launch_that_failed_costs_the_highest_interaction_only() -> None:
    found = attribute(run(3, skip=4), EXACT)
    assert log(found.mains[0].averaged) == pytest.approx(0.1075)
    assert "more than 2 factors are taken as 0" in found.notes[0]


def test_launches_that_never_separate_two_factors_are_refused() -> None:
    seen = [Observation(levels={"a": on, "b": on}, value=1.0) for on in (False, True)]
    with pytest.raises(ValueError, match="do not separate"):
        attribute(seen, EXACT)
    with pytest.raises(ValueError, match="do not separate"):
        attribute([], EXACT)


def test_an_interaction_under_four_percent_cannot_be_claimed_from_eight_launches() -> None:
    found = attribute(run(3)[:-1], USUAL)
    interaction = found.interactions[0]
    assert not interaction.resolved
    assert str(interaction) == "draft x caching: unresolved (+-4.3%)"
    assert found.mains[0].averaged.resolved


def test_a_machine_that_drifted_is_said_to_have() -> None:
    seen = run(2)
    slower = seen[-1].model_copy(update={"value": 0.9 * seen[-1].value})
    found = attribute([*seen[:-1], slower], USUAL)
    assert found.drift is not None
    assert log(found.drift) == pytest.approx(math.log(0.9))
    assert "drifted" in found.notes[0]
    assert attribute(seen[:-1], USUAL).drift is None


def test_intervals_hold_the_truth_and_nothing_is_found_where_nothing_is() -> None:
    rng = np.random.default_rng(5)
    found: list[Attribution] = [attribute(run(3, rng), USUAL) for _ in range(200)]
    held = [f.mains[0].averaged.low <= math.expm1(0.1075) <= f.mains[0].averaged.high for f in found]
    false = [f.interactions[1].resolved for f in found]
    assert np.mean(held) > 0.9
    assert np.mean(false) < 0.1


def test_more_launches_narrow_every_interval() -> None:
    widths = [
        effect.high - effect.low
        for replicates in (1, 2, 4)
        for effect in [attribute(run(3, replicates=replicates), USUAL).interactions[0]]
    ]
    assert all(wide > narrow for wide, narrow in pairwise(widths))
