"""Drafters."""

from __future__ import annotations

import pytest

from search_spaces.drafters import DRAFTERS, drafter_knobs, slots_per_request, speculative_config
from search_spaces.values import Values


def test_each_drafter_has_its_own_k_and_none_has_none():
    knobs = drafter_knobs({"none": None, "ngram": Values(choices=(2, 8)), "mtp": Values(low=1, high=6)})
    assert [knob.parameter for knob in knobs] == ["drafter", "k_ngram", "k_mtp"]
    assert knobs[0].choices == ("none", "ngram", "mtp")
    assert knobs[1].active({"drafter": "ngram"})
    assert not knobs[1].active({"drafter": "mtp"})


def test_every_drafter_says_what_it_does_and_only_none_drafts_nothing():
    assert all(drafter.says.endswith(".") for drafter in DRAFTERS.values())
    assert [name for name, drafter in DRAFTERS.items() if drafter.k is None] == ["none"]


def test_the_speculative_configuration_holds_method_k_and_settings():
    values = {"drafter": "ngram", "k": 8, "drafter.prompt_lookup_min": 2, "max_num_seqs": 4}
    assert speculative_config(values) == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
    }
    assert speculative_config({"drafter": "none"}) == {}


def test_a_setting_that_is_a_list_comes_back_from_its_text():
    values = {"drafter": "mtp", "k": 2, "drafter.synthetic_acceptance_rates": "[0.9, 0.8]"}
    assert speculative_config(values)["synthetic_acceptance_rates"] == [0.9, 0.8]


@pytest.mark.parametrize(
    ("drafter", "version", "parallel", "slots"),
    [
        # as the engines' own sources have it, version by version
        ("none", "0.32.0", False, 0),
        ("ngram", "0.19.1", False, 0),
        ("mtp", "0.27.1", False, 0),
        ("eagle3", "0.27.1", False, 0),
        ("eagle3", "0.27.1", True, 7),
        ("draft_model", "0.19.1", False, 1),
        ("draft_model", "0.26.0", True, 8),
        ("draft_model", "0.33.0", True, 8),
        ("dspark", "0.26.0", False, 7),
        ("dspark", "0.32.0", False, 7),
        ("dspark", "0.33.0", False, 0),
        ("dflash", "0.27.1", False, 7),
        ("dflash", "0.28.0", False, 8),
        ("dflash", "0.33.0", False, 0),
        ("dspark", None, False, None),
    ],
)
def test_draft_slots_follow_each_versions_rule(drafter, version, parallel, slots):
    assert slots_per_request(drafter, 8, version, parallel=parallel) == slots
