"""How a retune reads two stacks: what is brought to another day is known by so much less."""

from __future__ import annotations

import numpy as np

from orchestrator.candidates import Candidate
from orchestrator.launch_noise import LaunchNoise
from orchestrator.peak import beats
from orchestrator.retune_view import Seen, restated
from search_spaces.configuration import Configuration

NOISE = LaunchNoise(sd=0.01, dof=1000)
PEAK, OTHER = (Configuration(values={"max_num_seqs": seats}) for seats in (32, 64))


def launches(rng: np.random.Generator, true: float, count: int) -> tuple[float, ...]:
    return tuple(true * np.exp(rng.normal(0, NOISE.sd, count)))


def test_over_500_seeds_the_intervals_of_restated_numbers_hold_what_is_true() -> None:
    covered = {"estimate": 0, "ratio": 0}
    for seed in range(500):
        rng = np.random.default_rng(seed)
        field = (
            Candidate(configuration=PEAK, fresh=launches(rng, 100.0, 2)),
            Candidate(configuration=OTHER, fresh=launches(rng, 120.0, 3)),
        )
        today = Candidate(configuration=PEAK, searched=launches(rng, 90.0, 2))
        (brought,) = [one for one in restated(Seen((), field, {}, (), (today,)), PEAK) if one.configuration == OTHER]
        told = brought.estimate(NOISE)
        covered["estimate"] += abs(told.value - 108.0) < told.half_width
        new = launches(rng, 130.0, 3)
        ratio = beats(new, brought.evidence, NOISE, 0.01, restated=brought.restated)
        covered["ratio"] += ratio.low < 130 / 108 < ratio.high
    assert all(0.92 < count / 500 < 0.98 for count in covered.values()), covered
