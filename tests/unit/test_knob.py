"""Knobs."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from search_spaces.knob import Knob, KnobInput, normal_flag


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("max_num_seqs", "--max-num-seqs"),
        ("--max_num_seqs", "--max-num-seqs"),
        ("--compilation_config.cudagraph_mode", "--compilation-config.cudagraph_mode"),
    ],
)
def test_a_flag_has_one_spelling(text, flag):
    assert normal_flag(text) == flag


def test_a_flag_is_spelled_out_as_it_is_read():
    assert KnobInput(flag="max_num_seqs", choices=(1,)).flag == "--max-num-seqs"


@pytest.mark.parametrize("flag", ["--a; rm -rf /", "--A", "--x=1", "--a..b", "--"])
def test_what_is_no_flag_is_refused(flag):
    with pytest.raises(ValidationError):
        KnobInput(flag=flag, choices=(1,))


def test_a_negated_flag_is_refused_with_the_form_to_use():
    with pytest.raises(ValidationError, match=r"choices \[true, false\]"):
        KnobInput(flag="--no-enable-prefix-caching", choices=(True,))


def test_a_knob_is_a_flag_or_a_variable_and_not_both():
    with pytest.raises(ValidationError, match="one of them"):
        KnobInput(flag="--x", env="X", choices=(1,))


def test_a_knob_exists_only_under_its_condition():
    knob = Knob(name="k", choices=(1, 2), only_if={"drafter": "ngram"})
    assert knob.active({"drafter": "ngram"})
    assert not knob.active({"drafter": "none"})
    assert not knob.active({})
    assert knob.parameter == "k_ngram"


def test_its_first_value_is_its_default_where_that_may_be_chosen():
    assert Knob(name="a", choices=(1, 2), default=2).first == 2
    assert Knob(name="a", choices=(1, 2), default=3).first == 1
