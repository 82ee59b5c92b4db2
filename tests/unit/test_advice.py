"""What to do after a retune, how sure that is, and a regression that is shown or not."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import two_engines as two

from orchestrator.advice import Advice, advice_text, advise, changes, regression
from orchestrator.candidates import Candidate, Target, noise_of
from orchestrator.peak import Comparison, declare_peak
from orchestrator.retune_view import Verdict
from orchestrator.shift import judge_shift
from orchestrator.simulated_moves import make_surface
from orchestrator.simulated_surface import Traffic
from search_spaces.configuration import Configuration

TARGET = Target(name="generate", metric="decode_tok_s", workloads=("generate",))
DEPTHS = (0, 1, 2, 3, 4, 5, 6, 8)
LAUNCH_SD, PRIOR, DELTA, MOST = 0.015, 0.02, 0.01, 0.03


def one(k: int) -> Configuration:
    return two.configuration("mtp" if k else "none", k)


def study(engine: str, **stack: str) -> Any:
    pad = SimpleNamespace(serve={"max_model_len": 512})
    return SimpleNamespace(engine=engine, stack=two.stack(engine, **stack), space=two.plan().space, pad=pad)


def measured(rng: np.random.Generator, true: dict[int, float], k: int, launches: int) -> tuple[float, ...]:
    return tuple((true[k] * np.exp(rng.normal(0, LAUNCH_SD, launches))).tolist())


def told(old: dict[int, float], new: dict[int, float], seed: int, *, finals: int = 3, **stack: str) -> Advice:
    """A tune of one engine and a retune of the other: searched once, the best two launched afresh on each."""
    rng = np.random.default_rng(seed)
    before = [Candidate(configuration=one(k), searched=measured(rng, old, k, 1)) for k in old]
    best = sorted(before, key=lambda c: -TARGET.score(c.searched))[:2]
    before = [
        c.model_copy(update={"fresh": measured(rng, old, c.configuration.k, finals)}) if c in best and finals else c
        for c in before
    ]
    peak = declare_peak(before, TARGET, noise_of(before, PRIOR), DELTA)
    assert peak is not None
    then = peak.configuration
    after = [Candidate(configuration=one(k), searched=measured(rng, new, k, 1)) for k in new if k != then.k]
    rival = max(after, key=lambda c: TARGET.score(c.searched))
    fresh = rival.model_copy(update={"fresh": measured(rng, new, rival.configuration.k, 3)})
    after = [fresh if c is rival else c for c in after]
    if then.k in new:
        after.append(Candidate(configuration=then, fresh=measured(rng, new, then.k, 3)))
    noise = noise_of([*before, *after], PRIOR)
    found = Verdict(
        judge_shift(before, after, then, TARGET, noise, DELTA),
        declare_peak(after, TARGET, noise, DELTA, incumbent=then),
    )
    return advise(study(two.OLD), study(two.NEW, **stack), peak, found, (before, after), MOST)


def surface(seed: int, factor: float = 1.0) -> dict[int, float]:
    made, _ = make_surface("null", seed)
    values = ({"drafter": "mtp" if k else "none", **({"k": k} if k else {}), "max_num_seqs": 8} for k in DEPTHS)
    return {v.get("k", 0): factor * float(made.decode_tok_s(v, Traffic())) for v in values}


def test_over_100_seeds_of_nothing_lost_a_regression_is_shown_at_most_5_times() -> None:
    shown = [told(surface(seed), surface(seed), seed).regression == "shown" for seed in range(100)]
    assert sum(shown) <= 5


def test_over_100_seeds_of_a_tenth_lost_a_regression_is_shown_at_least_95_times() -> None:
    shown = [told(surface(seed), surface(seed, 0.9), seed).regression == "shown" for seed in range(100)]
    assert sum(shown) >= 95


def compared(low: float, high: float, note: str = "") -> Comparison:
    return Comparison(ratio=(low * high) ** 0.5, low=low, high=high, verdict="cannot tell", note=note)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.90, 0.96, "shown"),
        (0.90, 0.98, "cannot tell"),
        (0.90, 1.10, "cannot tell"),
        (0.98, 1.02, "ruled out"),
        (1.10, 1.20, "ruled out"),
    ],
)
def test_a_regression_is_shown_by_the_whole_interval(low: float, high: float, expected: str) -> None:
    assert regression(compared(low, high), MOST) == expected
    assert regression(compared(1 / high, 1 / low), MOST, lower_is_better=True) == expected


def test_launches_that_disagree_and_an_engine_without_a_number_show_nothing() -> None:
    assert regression(compared(0.5, 0.6, note="launches of one configuration disagree"), MOST) == "cannot tell"
    assert regression(None, MOST) == "cannot tell"


def test_a_peak_that_was_never_launched_afresh_shows_no_loss() -> None:
    found = told(surface(1), surface(1, 0.8), 1, finals=0)
    assert found.regression == "cannot tell"
    assert "never launched afresh" in found.sure


def test_one_launch_a_side_shows_no_loss_and_rules_none_out() -> None:
    for factor, seems in ((0.5, "slower"), (1.8, "no slower")):
        found = told(surface(1), surface(1, factor), 1, finals=1)
        assert found.regression == "cannot tell"
        assert f"; that it got {seems} is not shown by so few launches (" in found.do
        assert "rests on the noise that was expected" in found.sure


HILL = {0: 100.0, 2: 140.0, 4: 120.0, 8: 110.0}


def test_where_both_lost_it_says_not_to_upgrade_and_how_much_at_either_peak() -> None:
    found = told(HILL, {k: v * (0.62 if k == 2 else 0.76) for k, v in HILL.items()}, 1)
    assert found.do.startswith("do not upgrade: -3")
    assert " %) at the old settings, measured on both stacks, -3" in found.do
    assert "95 %, as every interval here; the limit is a loss of 3%" in found.sure
    assert "if anyway:" in advice_text(found)


def test_where_the_peak_moved_it_says_what_to_change_in_the_serve_command() -> None:
    found = told(HILL, {0: 100.0, 2: 150.0, 4: 190.0, 8: 160.0}, 1)
    assert found.verdict == "peak moved"
    assert found.do.startswith("upgrade; change the serve command: +")
    (change,) = found.change
    was, now = (json.loads(text) for text in change.removeprefix("--speculative-config: ").split(" -> "))
    assert (was["num_speculative_tokens"], now["num_speculative_tokens"]) == (2, 4)


@pytest.mark.parametrize(
    ("engine", "launches", "head"),
    [
        (1.05, 2, "upgrade; "),
        (1.05, 1, "upgrade if something"),
        (0.85, 2, "do not upgrade, change its serve command: "),
        (0.85, 1, "do not upgrade, change its serve command: "),
    ],
)
def test_settings_that_the_old_engine_has_too_are_not_the_upgrade_s(engine: float, launches: int, head: str) -> None:
    old = [Candidate(configuration=one(2), fresh=(100.0, 100.5, 99.5))]
    peak, noise = declare_peak(old, TARGET, noise_of(old, PRIOR), DELTA), noise_of(old, PRIOR)
    assert peak is not None
    old += [Candidate(configuration=one(4), fresh=(125.0,) * launches)]
    new = [Candidate(configuration=one(k), fresh=(v * engine,) * 3) for k, v in ((2, 100.0), (4, 125.0))]
    found = Verdict(
        judge_shift(old, new, one(2), TARGET, noise, DELTA),
        declare_peak(new, TARGET, noise, DELTA, incumbent=one(2)),
    )
    advice = advise(study(two.OLD), study(two.NEW), peak, found, (old, new), MOST)
    assert found.shift.missed
    assert advice.do.startswith(head)
    assert "+25 % (" in advice.do.partition("at the new peak, ")[2], "with it on the old stack"
    assert ("that it got no slower is not shown by so few launches" in advice.do) is (engine > 1 and launches < 2)
    assert f"on the old stack and {launches} of the new settings, 3 of the best on the new" in advice.sure
    assert "one launch a side" not in advice.sure


@pytest.mark.parametrize(
    ("now", "launches", "expected"),
    [
        ((85.0, 125.0), 1, "cannot tell"),  # lost at the old settings alone
        ((100.0, 105.0), 1, "cannot tell"),  # at the new ones alone, which were launched once before
        ((100.0, 105.0), 3, "shown"),
        ((97.0, 105.0), 3, "shown"),
        ((85.0, 105.0), 1, "shown"),
    ],
)
def test_a_loss_of_settings_that_had_been_missed_is_shown_by_enough_launches_or_by_both_settings(
    now: tuple[float, float], launches: int, expected: str
) -> None:
    old = [
        Candidate(configuration=one(2), fresh=(100.0, 100.5, 99.5)),
        Candidate(configuration=one(4), fresh=(125.0,) * launches),
    ]
    noise = noise_of(old, PRIOR)
    peak = declare_peak(old[:1], TARGET, noise, DELTA)
    new = [Candidate(configuration=one(k), fresh=(v,) * 3) for k, v in zip((2, 4), now, strict=True)]
    shift = judge_shift(old, new, one(2), TARGET, noise, DELTA)
    best = declare_peak(new, TARGET, noise, DELTA, incumbent=one(2))
    assert peak is not None
    assert shift.missed
    advice = advise(study(two.OLD), study(two.NEW), peak, Verdict(shift, best), (old, new), MOST)
    assert advice.regression == expected
    assert advice.do.startswith("do not upgrade") is (expected == "shown")


def test_where_nothing_moved_the_settings_are_kept() -> None:
    assert told(HILL, HILL, 3).do.startswith(
        ("upgrade; keep the settings", "upgrade if something else asks for it; keep")
    )


def test_what_cannot_be_told_is_named_and_what_to_do_goes_by_what_both_stacks_measured() -> None:
    place, speed = (told(surface(seed), surface(seed), seed) for seed in (3, 0))
    assert place.verdict == speed.verdict == "cannot tell"
    assert place.peak.startswith("cannot tell where the best settings are now; ")
    assert speed.peak.startswith("same peak; cannot tell whether it got faster or slower; ")
    for found in (place, speed):
        text = " ".join(advice_text(found).split())
        assert f"verdict: {found.peak} old peak:" in text
        assert "keep the settings: " in text
        assert "at the old settings, measured on both stacks" in text
        assert "cannot tell" not in text.partition("verdict:")[0]


def test_a_stack_that_moved_under_the_same_engine_is_no_upgrade_to_decide() -> None:
    kept = told(HILL, HILL, 3, vllm="0.27.1")
    assert kept.do.startswith("keep the settings")
    lost = told(HILL, {k: v * 0.7 for k, v in HILL.items()}, 3, vllm="0.27.1")
    assert lost.do.startswith("go back to the old stack if you can: -29 % (-3")
    assert " %) at the old settings, measured on both stacks, and nothing" in lost.do
    assert "best there: the same settings" in advice_text(lost)


def test_old_settings_that_do_not_run_there_are_said_to_be_so() -> None:
    found = told(HILL, {0: 100.0, 4: 190.0, 8: 160.0}, 1)
    assert (found.kept, "the old settings do not run" in found.do) == (None, True)
    assert "the old settings do not run" in advice_text(found)


def test_changes_are_told_flag_by_flag_and_variable_by_variable() -> None:
    a, b = two.configuration("mtp", 2, atomic_add=1), two.configuration(max_num_seqs=16)
    found = changes(study(two.OLD), study(two.NEW), a, b)
    assert "VLLM_MARLIN_USE_ATOMIC_ADD: 1 -> 0" in found
    assert "--max-num-seqs: 8 -> 16" in found
    assert any(change.startswith("drop --speculative-config (was ") for change in found)


def test_the_text_fits_a_terminal_and_has_every_number_with_its_interval() -> None:
    text = advice_text(told(HILL, {0: 100.0, 2: 150.0, 4: 190.0, 8: 160.0}, 1))
    assert max(map(len, text.splitlines())) <= 120
    for name in ("do:", "sure:", "old peak:", "new stack:", "best there:", "change:"):
        assert name in text
    assert text.count("±") == 3
