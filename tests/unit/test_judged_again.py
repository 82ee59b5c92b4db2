"""A trial that was launched in turn with another stack can be reproduced like any other."""

from __future__ import annotations

import pytest
import two_engines as two

from orchestrator.launch_noise import LaunchNoise
from orchestrator.reproduce import _judged


@pytest.mark.parametrize("role", ["search", "finalist", "anchor", "in_turn"])
def test_every_role_s_number_is_held_against_the_new_one(role: str) -> None:
    plan, best = two.plan(), two.configuration("ngram", 2)
    then = two.record("s", 1, two.OLD, best, 100.0, role=role)
    now = two.record("s", 2, two.OLD, best, 101.0, role="reproduce")
    noises = {name: LaunchNoise(sd=0.02, dof=8) for name in plan.workload_names}
    (told, *_) = _judged(then, now, noises, plan).numbers
    assert 0.9 < told.then / 100 < 1.1
    assert told.ratio == pytest.approx(1.01, abs=0.05)
