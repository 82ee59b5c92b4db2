"""The space as a plan writes it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from search_spaces.catalog import READY_MADE
from search_spaces.space_input import SpaceInput, local_path


def space(**given):
    return SpaceInput.model_validate(given).build()


def mistakes(**given) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        SpaceInput.model_validate(given)
    found = []
    for each in caught.value.errors():
        for below, what in each.get("ctx", {}).get("problems", [((), each["msg"])]):
            found.append((".".join(map(str, (*each["loc"], *below))), what))
    return found


def test_nothing_given_is_one_configuration():
    assert space().size() == 1


@pytest.mark.parametrize("name", READY_MADE)
def test_a_ready_made_space_is_used_by_name(name):
    assert {knob.name for knob in space(use=[name]).knobs} >= set(READY_MADE[name])


def test_ready_made_spaces_stand_together():
    names = {knob.name for knob in space(use=list(READY_MADE)).knobs}
    assert names == {"drafter", "k"}.union(*READY_MADE.values())


def test_the_speculative_space_brings_the_drafters_that_need_no_model():
    assert space(use=["vllm-speculative"]).knobs[0].choices == ("none", "ngram", "suffix", "mtp")


def test_a_key_of_the_plans_replaces_the_ready_made_values_and_keeps_the_rest():
    knob = next(one for one in space(use=["vllm-batching"], max_num_seqs=[4, 8]).knobs if one.name == "max_num_seqs")
    assert knob.grid() == (4, 8)
    assert (knob.flag, knob.needs, knob.first) == ("--max-num-seqs", ("activation", "kv"), 4)
    assert knob.says


def test_null_takes_a_ready_made_knob_out():
    assert "watermark" not in {knob.name for knob in space(use=["vllm-batching"], watermark=None).knobs}


def test_a_knob_of_ones_own_for_any_flag_or_variable():
    here = space(mine={"flag": "--mine", "choices": [1, 2], "says": "Mine."}, other={"env": "OTHER", "choices": ["a"]})
    assert [(knob.name, knob.flag, knob.env) for knob in here.knobs[1:]] == [
        ("mine", "--mine", None),
        ("other", None, "OTHER"),
    ]


@pytest.mark.parametrize("given", ["ngram", ["ngram"], {"ngram": {}}, {"ngram": None}])
def test_a_drafter_has_short_forms_and_a_usual_k(given):
    here = space(drafter=given)
    assert here.knobs[0].choices == ("ngram",)
    assert here.knobs[1].grid() == tuple(range(1, 17))


def test_a_drafters_model_and_settings_are_fixed_and_lists_become_their_text():
    here = space(drafter={"eagle3": {"k": 4, "model": "org/head", "synthetic_acceptance_rates": [0.9, 0.5]}})
    assert here.settings == {"eagle3": {"model": "org/head", "synthetic_acceptance_rates": "[0.9, 0.5]"}}


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [
        ({"drafter": {"none": {"k": 3}}}, "drafter.none.k", "takes no k"),
        ({"drafter": {"ngramm": {}}}, "drafter.ngramm", "Extra"),
        ({"drafter": {}}, "drafter", "names no drafter"),
        ({"drafter": {"eagle3": {"k": 2}}}, "drafter.eagle3", "needs its draft checkpoint"),
        ({"drafter": {"ngram": {"model": "a/b"}}}, "drafter.ngram.model", "takes no model"),
        ({"drafter": {"ngram": {"k": [0, 2]}}}, "drafter.ngram.k", "whole numbers from 1"),
        ({"drafter": {"ngram": {"k": [True]}}}, "drafter.ngram.k", "whole numbers from 1"),
        (
            {"drafter": {"ngram": {"prompt_lookup": 2}}},
            "drafter.ngram.prompt_lookup",
            "did you mean prompt_lookup_m",
        ),
        ({"max_num_seq": [1]}, "max_num_seq", "did you mean max_num_seqs?"),
        ({"max-num-seqs": [1]}, "max-num-seqs", "did you mean max_num_seqs?"),
        ({"k": [1]}, "k", "k stands under its drafter"),
        ({"use": ["vllm-batch"]}, "use.0", "vllm-batching"),
        ({"max_num_seqs": {"low": 1}}, "max_num_seqs", "both low and high"),
        (
            {"a": {"flag": "--max-num-seqs", "choices": [1]}, "max_num_seqs": 3},
            "max_num_seqs",
            "two knobs with one",
        ),
        ({"max_num_seqs": [8, 16], "forbid": ["max_num_seq > 8"]}, "forbid.0", "did you mean max_num_seqs?"),
    ],
)
def test_a_mistake_is_told_with_its_place(given, where, says):
    told = mistakes(**given)
    assert any(place == where and says in what for place, what in told), told


def test_what_was_read_can_be_written_and_read_again():
    first = SpaceInput.model_validate({"drafter": {"none": None, "ngram": {"k": [2, 8]}}, "max_num_seqs": 8})
    assert SpaceInput.model_validate_json(first.model_dump_json()).build() == first.build()


def test_a_path_is_taken_from_the_plans_folder_and_kept_as_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    context = {"folder": tmp_path, "home": tmp_path / "home"}
    assert local_path("./link", context) == str(tmp_path / "link")
    assert local_path("org/name", context) is None
    (tmp_path / "home").mkdir()
    assert local_path("${REPEAK_HOME}/", context) == str(tmp_path / "home")
    with pytest.raises(ValueError, match="nothing at"):
        local_path("./absent", context)
