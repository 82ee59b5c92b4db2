"""Two launches and the acceptance of each position give the whole curve over k, or the reason why not."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.k_curve import Depth, fit_k_curve
from trackers.records import Acceptance

DRAFTS = 4000


class Engine:
    """An engine whose passes cost t0 (1 + o + c k), with acceptance falling by position."""

    def __init__(self, first: float = 0.8, decay: float = 0.95, overhead: float = 0.1, cost: float = 0.08) -> None:
        self.rates = np.cumprod(first * decay ** np.arange(12))
        passes = 1 + np.where(np.arange(13) > 0, overhead, 0) + cost * np.arange(13)
        self.speed = 60 * (1 + np.concatenate([[0], np.cumsum(self.rates)])) / passes

    def depth(self, k: int, factor: float = 1.0) -> Depth:
        accepted = tuple(int(x) for x in np.round(DRAFTS * self.rates[:k]))
        return Depth(k=k, decode_tok_s=factor * self.speed[k], acceptance=counters(k, accepted) if k else None)


def counters(k: int, accepted: tuple[int, ...], drafted: int | None = None, drafts: int = DRAFTS) -> Acceptance:
    return Acceptance(
        drafts=drafts,
        draft_tokens=drafts * k if drafted is None else drafted,
        accepted_tokens=sum(accepted),
        accepted_per_position=accepted,
    )


def test_two_depths_and_no_drafting_give_cost_overhead_and_every_k_between() -> None:
    engine = Engine()
    curve = fit_k_curve([engine.depth(k) for k in (0, 2, 8)])
    assert curve.cost_per_draft_token == pytest.approx(0.08, rel=0.01)
    assert curve.overhead == pytest.approx(0.1, abs=0.005)
    assert [p.k for p in curve.predictions] == list(range(9))
    assert [p.decode_tok_s for p in curve.predictions] == pytest.approx(list(engine.speed[:9]), rel=0.002)
    assert curve.best_k == int(np.argmax(engine.speed[:9]))
    assert curve.notes == ()
    assert [p.k for p in curve.predictions if p.measured_tok_s] == [0, 2, 8]


def test_without_a_launch_at_zero_the_curve_stands_and_the_overhead_is_unknown() -> None:
    engine = Engine()
    curve = fit_k_curve([engine.depth(8), engine.depth(2)])
    assert curve.overhead is None
    assert "k = 0 was not launched" in curve.notes[0]
    assert [p.k for p in curve.predictions if p.extrapolated] == [1]
    assert curve.best_k == int(np.argmax(engine.speed[1:9])) + 1


def test_one_depth_beside_no_drafting_predicts_another_workload_on_the_same_engine() -> None:
    # A field report's numbers: 15 drafted tokens, 98.8 % accepted on edits at 39.0 tok/s, 8.13 without.
    accepted = (round(0.988 * DRAFTS),) * 15
    edit = [Depth(k=0, decode_tok_s=8.13), Depth(k=15, decode_tok_s=39.0, acceptance=counters(15, accepted))]
    cost = fit_k_curve(edit).cost_per_draft_token
    assert cost == pytest.approx(0.153, abs=0.002)
    fresh = 8.13 * (1 + 15 * 0.289) / (1 + 15 * cost)
    assert fresh == pytest.approx(13.4, rel=0.03), "as measured there"


@pytest.mark.parametrize("ks", [(2, 8), (0, 2, 8)])
def test_the_proposed_k_is_as_good_as_the_best_under_launch_noise(ks: tuple[int, ...]) -> None:
    rng, regret = np.random.default_rng(0), []
    for _ in range(150):
        engine = Engine(rng.uniform(0.5, 0.95), rng.uniform(0.85, 1), rng.uniform(0, 0.2), rng.uniform(0.02, 0.3))
        best = fit_k_curve([engine.depth(k, np.exp(rng.normal(0, 0.015))) for k in ks]).best_k
        regret.append(1 - engine.speed[best] / engine.speed[min(ks) and 1 : 9].max())
    assert np.mean(regret) < 0.003


def test_a_measured_k_that_is_off_the_curve_is_noted() -> None:
    engine = Engine()
    curve = fit_k_curve([engine.depth(0), engine.depth(2), engine.depth(4, 0.75), engine.depth(8)], 0.02)
    assert any(note.startswith("k = 4 measures") for note in curve.notes)


def test_passes_without_a_draft_are_counted_where_output_tokens_tell_them() -> None:
    """Half of the passes find no n-gram: a pass then yields and costs half of what its drafts say."""
    engine = Engine(overhead=0.0)
    depths = [Depth(k=0, decode_tok_s=60.0)]
    for k in (2, 8):
        accepted = tuple(int(x) for x in np.round(DRAFTS * engine.rates[:k]))
        per_pass = sum(accepted) / (2 * DRAFTS)
        speed = 60 * (1 + per_pass) / (1 + 0.08 * k / 2)
        tokens = 2 * DRAFTS + sum(accepted)
        depths.append(Depth(k=k, decode_tok_s=speed, acceptance=counters(k, accepted), output_tokens=tokens))
    assert fit_k_curve(depths).cost_per_draft_token == pytest.approx(0.08, rel=0.01)


def test_a_drafter_that_proposes_fewer_tokens_than_asked_is_charged_for_those_it_proposed() -> None:
    engine = Engine(overhead=0.0)
    depths = [engine.depth(0)]
    for k, drafted in ((2, 1.8), (8, 4.0)):
        accepted = tuple(int(x) for x in np.round(DRAFTS * engine.rates[:k]))
        speed = 60 * (1 + sum(accepted) / DRAFTS) / (1 + 0.1 * drafted)
        seen = counters(k, accepted, drafted=int(drafted * DRAFTS))
        depths.append(Depth(k=k, decode_tok_s=speed, acceptance=seen))
    curve = fit_k_curve(depths)
    assert curve.cost_per_draft_token == pytest.approx(0.1, rel=0.01)
    assert curve.predictions[8].decode_tok_s == pytest.approx(depths[2].decode_tok_s, rel=0.01)


def test_acceptance_that_depends_on_k_is_refused() -> None:
    engine = Engine()
    beyond_its_block = Depth(k=8, decode_tok_s=20, acceptance=counters(8, (160,) * 8))
    curve = fit_k_curve([engine.depth(0), engine.depth(4), beyond_its_block])
    assert curve.refused.startswith("acceptance depends on k itself")
    assert curve.predictions == ()
    assert curve.best_k is None


def test_depths_that_draft_alike_have_no_cost_to_read() -> None:
    accepted = (3000, 2000)
    two = Depth(k=2, decode_tok_s=90, acceptance=counters(2, accepted, drafted=8000))
    more = Depth(k=8, decode_tok_s=90, acceptance=counters(8, (*accepted, 0, 0, 0, 0, 0, 0), drafted=8100))
    assert "drafts no more tokens" in fit_k_curve([two, more]).refused


@pytest.mark.parametrize(
    ("depths", "reason"),
    [
        ([Engine().depth(2)], "it takes launches at two k"),
        ([Engine().depth(0)], "it takes launches at two k"),
        ([Engine().depth(0), Engine().depth(2), Engine().depth(2)], "two entries for one k"),
        ([Engine().depth(2), Depth(k=8, decode_tok_s=1)], "no draft counters at k = 8"),
        (
            [Engine().depth(2), Depth(k=8, decode_tok_s=1, acceptance=counters(8, ()))],
            "acceptance of 0 positions",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_reason(depths: list[Depth], reason: str) -> None:
    assert fit_k_curve(depths).refused.startswith(reason)


def test_a_cost_below_noise_is_zero_and_said_to_be() -> None:
    engine = Engine(cost=0.0)
    curve = fit_k_curve([engine.depth(2, 0.98), engine.depth(8, 1.02)])
    assert curve.cost_per_draft_token == 0
    assert "no cost of a draft token shows above launch noise" in curve.notes
