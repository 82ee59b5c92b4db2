"""Feasibility by arithmetic, against what real engines did."""

from __future__ import annotations

import pytest

from orchestrator.failure_causes import CAUSES
from search_spaces.configuration import Configuration
from search_spaces.feasibility import KnownFacts, infeasible
from search_spaces.space_input import SpaceInput

SPACE = SpaceInput.model_validate(
    {
        "drafter": {
            "none": {},
            "draft_model": {"k": {"low": 1, "high": 16}, "model": "a/b"},
            "dspark": {"k": {"low": 2, "high": 16}},
            "mtp": {"k": {"low": 1, "high": 8}},
        },
        "max_num_batched_tokens": {"low": 8, "high": 16384, "log": True},
        "max_num_seqs": {"low": 1, "high": 1024, "log": True},
        "watermark": [0, 0.05],
        "attention_backend": ["default", "FLASHINFER"],
    }
).build()
PARALLEL = SPACE.model_copy(update={"settings": {"draft_model": {"model": "a/b", "parallel_drafting": True}}})


def cause(version="0.32.0", space=SPACE, serve=None, facts=None, **chosen):
    values = {"max_num_batched_tokens": 8192, "max_num_seqs": 64, **chosen}
    found = infeasible(space.complete(values), serve=serve or {}, version=version, space=space, facts=facts)
    if found is not None:
        assert found.cause in CAUSES
        assert found.message
    return found and found.cause


def test_what_breaks_no_rule_is_let_through():
    assert cause() is None
    assert cause(drafter="mtp", k=3) is None


def test_a_batch_below_the_number_of_sequences_is_refused():
    # as both 0.19.1 and 0.32.0 did with 32 and 64
    assert cause(max_num_batched_tokens=32) == "batch_below_seqs"
    assert cause(max_num_batched_tokens=64) is None


@pytest.mark.parametrize(
    ("version", "k", "expected"),
    [
        # a device's own 8192 and 1024: 7 draft tokens leave 2048, 9 leave nothing
        ("0.26.0", 7, None),
        ("0.26.0", 9, "draft_slots_over_budget"),
        ("0.27.1", 9, "draft_slots_over_budget"),
        ("0.28.0", 9, None),
        ("0.33.0", 16, None),
        (None, 16, None),
    ],
)
def test_draft_slots_are_charged_by_each_versions_rule(version, k, expected):
    assert cause(version, drafter="dspark", k=k, max_num_seqs=1024) == expected


def test_the_newer_rule_refuses_as_the_engine_did():
    # 0.32.0, batch budget 16: a draft model with parallel drafting and k 16 was refused, a plain one started
    tight = {"drafter": "draft_model", "max_num_batched_tokens": 16, "max_num_seqs": 8}
    assert cause(space=PARALLEL, k=16, **tight) == "draft_slots_over_budget"
    assert cause(k=4, drafter="draft_model", max_num_batched_tokens=64) is None


def test_nothing_left_was_let_through_before_0_20_2_and_less_was_not():
    here = {"drafter": "draft_model", "k": 4, "max_num_batched_tokens": 64, "space": SPACE.on("0.19.1")[0]}
    assert cause("0.19.1", **here) is None
    assert cause("0.20.2", **here) == "draft_slots_over_budget"


def test_unknown_budgets_are_not_guessed_and_known_defaults_are_used():
    bare = SpaceInput.model_validate({"drafter": {"dspark": {"k": [9]}}}).build()
    one = bare.complete({})
    assert infeasible(one, serve={}, version="0.26.0", space=bare) is None
    facts = KnownFacts(max_num_batched_tokens=8192, max_num_seqs=1024)
    found = infeasible(one, serve={}, version="0.26.0", space=bare, facts=facts)
    assert found is not None
    assert "8 draft slots x 1024 max_num_seqs leave 0 of 8192" in found.message


def test_flags_fixed_for_every_launch_count_too():
    bare = SpaceInput.model_validate({"max_num_batched_tokens": [32, 64]}).build()
    found = infeasible(bare.complete({}), serve={"max_num_seqs": 64}, version="0.32.0", space=bare)
    assert found is not None
    assert found.cause == "batch_below_seqs"


@pytest.mark.parametrize(("version", "expected"), [("0.24.0", "unknown_drafter"), ("0.25.0", None), (None, None)])
def test_a_drafter_is_refused_on_versions_before_it(version, expected):
    assert cause(version, drafter="dspark", k=2) == expected


@pytest.mark.parametrize(
    ("version", "k", "expected"),
    [("0.26.0", 4, "bad_value"), ("0.27.1", 7, None), ("0.28.0", 4, None), ("0.28.0", 8, "bad_value")],
)
def test_a_block_drafters_k_fits_its_block(version, k, expected):
    assert cause(version, drafter="dspark", k=k, facts=KnownFacts(dspark_block_size=7)) == expected


@pytest.mark.parametrize(("k", "heads", "expected"), [(3, 2, "bad_value"), (4, 2, None), (1, 2, None), (5, 1, None)])
def test_mtp_beyond_its_heads_is_a_multiple_of_them(k, heads, expected):
    assert cause(drafter="mtp", k=k, facts=KnownFacts(n_predict=heads)) == expected


def test_mtp_needs_heads_in_the_checkpoint():
    assert cause(drafter="mtp", k=1, facts=KnownFacts(n_predict=0)) == "unsupported_drafter"


def test_a_knob_that_the_version_or_its_parser_lacks_is_refused_unless_left_alone():
    assert cause("0.19.1", watermark=0.05) == "unknown_flag"
    assert cause(facts=KnownFacts(flags=frozenset({"--x"})), attention_backend="FLASHINFER") == "unknown_flag"
    some = KnownFacts(flags=frozenset({"--max-num-seqs", "--max-num-batched-tokens", "--watermark"}))
    assert cause(facts=some, attention_backend="default") is None


def test_lengths_are_held_against_the_model_and_the_batch():
    facts = KnownFacts(model_max_len=8192)
    assert cause(serve={"max_model_len": 16384}, facts=facts) == "bad_value"
    assert cause(serve={"max_model_len": "auto"}, facts=facts) is None
    long = {"max_model_len": 16384, "enable_chunked_prefill": False}
    assert cause(serve=long) == "bad_value"


def test_an_incumbents_own_flags_count_too():
    bare = SpaceInput.model_validate({"max_num_batched_tokens": [32]}).build()
    one = Configuration(values={**bare.defaults.values, "serve.max_num_seqs": 64})
    found = infeasible(one, serve={}, version="0.32.0", space=bare)
    assert found is not None
    assert found.cause == "batch_below_seqs"
