"""Search spaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace, same_target
from search_spaces.values import Values

DRAFTERS = drafter_knobs({"none": None, "ngram": Values(choices=(2, 8, 16)), "mtp": Values(low=1, high=3)})
SEQS = Knob(name="max_num_seqs", flag="--max-num-seqs", choices=(8, 16), default=16)
LATE = Knob(name="late", flag="--late", choices=(False, True), since="0.30.0")
UNDER = Knob(name="under", env="UNDER", choices=("a", "b"), only_if={"late": (True,)})


def space(*knobs: Knob, **more) -> SearchSpace:
    return SearchSpace(knobs=(*DRAFTERS, *knobs), **more)


def problems(**more) -> str:
    with pytest.raises(ValidationError) as caught:
        SearchSpace(**more)
    return str(caught.value.errors()[0]["ctx"]["problems"])


def test_an_empty_space_is_one_configuration_without_a_drafter():
    one = SearchSpace()
    assert one.size() == 1
    assert one.defaults == Configuration(values={"drafter": "none"})


def test_k_exists_only_under_its_drafter():
    found = {one.label() for one in space().enumerate()}
    assert found == {"none", "ngram k=2", "ngram k=8", "ngram k=16", "mtp k=1", "mtp k=2", "mtp k=3"}
    assert space().size() == 7


def test_a_condition_stands_before_the_knob_that_it_decides_whatever_the_order_given():
    assert [knob.name for knob in space(UNDER, LATE).knobs][-2:] == ["late", "under"]
    assert space(UNDER, LATE).size() == 7 * 3


def test_a_drafters_settings_are_part_of_its_configurations_only():
    fixed = space(settings={"ngram": {"prompt_lookup_min": 2}})
    assert fixed.complete({"drafter": "ngram"}).values["drafter.prompt_lookup_min"] == 2
    assert "drafter.prompt_lookup_min" not in fixed.complete({"drafter": "mtp"}).values
    other = Configuration(values={"drafter": "ngram", "k": 2, "drafter.prompt_lookup_min": 3})
    assert "fixed at 2" in (fixed.problem(other) or "")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"drafter": "none", "max_num_seqs": 8, "k": 2}, "k is not a knob here"),
        ({"drafter": "mtp", "max_num_seqs": 8}, "k is missing"),
        ({"drafter": "mtp", "k": 8, "max_num_seqs": 8}, "k cannot be 8"),
        ({"drafter": "none", "max_num_seqs": 9}, "max_num_seqs cannot be 9"),
        ({"drafter": "none", "max_num_seqs": 8, "serve.dtype": "auto"}, "serve.dtype is not a knob"),
        ({"drafter": "eagle3", "max_num_seqs": 8}, "drafter cannot be eagle3"),
        ({"drafter": "mtp", "k": 3, "max_num_seqs": 16}, "forbidden: k > 2"),
    ],
)
def test_what_is_not_of_the_space_is_told_why(values, says):
    here = space(SEQS, forbid=("k > 2 and max_num_seqs == 16",))
    assert says in (here.problem(Configuration(values=values)) or "")


def test_forbidden_configurations_are_not_listed():
    here = space(SEQS, forbid=("max_num_seqs == 16 and drafter == ngram",))
    assert here.size() == 14 - 3
    assert all(one.drafter != "ngram" or one.values["max_num_seqs"] == 8 for one in here.enumerate())


def test_listing_stops_at_its_limit():
    assert len(list(space(SEQS).enumerate(limit=4))) == 4


def test_a_range_with_more_values_than_its_grid_has_no_size():
    assert space(Knob(name="u", flag="--u", low=0.1, high=0.9)).size() is None
    assert space(Knob(name="u", flag="--u", low=0.1, high=0.3, step=0.1)).size() == 21


def test_a_large_space_is_bounded_and_not_listed():
    many = [Knob(name=f"n{index}", flag=f"--n{index}", low=1, high=100) for index in range(6)]
    assert space(*many).size() == 7 * 100**6


def test_fixed_knobs_and_defaults_are_known():
    one = Knob(name="one", flag="--one", choices=(5,))
    assert space(SEQS, one).fixed == {"one": 5}
    assert space(SEQS).defaults.values == {"drafter": "none", "max_num_seqs": 16}


@settings(max_examples=30)
@given(index=st.integers(0, 20))
def test_a_neighbour_is_in_the_space_and_one_knob_away(index):
    here = space(SEQS, LATE, UNDER, forbid=("late == true and drafter == mtp",))
    listed = list(here.enumerate())
    one = listed[index % len(listed)]
    for other in here.neighbours(one):
        assert here.contains(other)
        changed = {name for name in one.values | other.values if one.values.get(name) != other.values.get(name)}
        assert changed <= {"drafter", "k"} or changed <= {"late", "under"} or len(changed) == 1


def test_another_drafter_keeps_the_closest_k():
    here = space()
    names = {one.label() for one in here.neighbours(here.complete({"drafter": "mtp", "k": 3}))}
    assert names == {"none", "ngram k=2", "mtp k=2"}


def test_neighbours_of_an_outsider_are_insiders():
    here = space(SEQS)
    incumbent = Configuration(values={"drafter": "mtp", "k": 5, "serve.dtype": "half"})
    assert here.neighbours(incumbent)
    assert all(here.contains(one) for one in here.neighbours(incumbent))


def test_the_opening_starts_plain_and_visits_every_drafter_once():
    assert [one.label() for one in space(SEQS).opening()] == [
        "none, max_num_seqs=16",
        "ngram k=8, max_num_seqs=16",
        "mtp k=2, max_num_seqs=16",
    ]


def test_the_simplest_has_no_drafter_then_fewest_changes_then_the_smallest_k():
    here = space(SEQS)
    plain, changed = here.complete({}), here.complete({"max_num_seqs": 8})
    shallow = here.complete({"drafter": "ngram", "k": 2})
    deep = here.complete({"drafter": "ngram", "k": 8})
    assert here.simplest([deep, shallow, changed, plain]) == plain
    assert here.simplest([deep, shallow, changed]) == changed
    assert here.simplest([deep, shallow]) == shallow


def test_on_an_older_version_knobs_and_drafters_it_lacks_are_left_out_and_named():
    full = SearchSpace(
        knobs=(*drafter_knobs({"none": None, "dspark": Values(low=2, high=8)}), LATE, UNDER),
        forbid=("late == true and drafter == dspark",),
    )
    here, said = full.on("0.24.0")
    assert [knob.name for knob in here.knobs] == ["drafter"]
    assert here.size() == 1
    assert said == ("late (--late) does not exist in 0.24.0", "the drafter dspark does not exist in 0.24.0")
    assert full.on("0.33.0") == (full, ())
    assert full.on(None)[1] == ()


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ([SEQS, SEQS], "stands here twice"),
        ([SEQS, Knob(name="other", flag="--max-num-seqs", choices=(1,))], "two knobs with one flag"),
        ([UNDER], "late is no knob that always exists"),
        (
            [Knob(name="a", flag="--c.x", choices=(1,)), Knob(name="b", flag="--c", choices=("{}",))],
            "two knobs with one flag",
        ),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(knobs, says):
    assert says in problems(knobs=(*DRAFTERS, *knobs))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_num_seq > 8", "did you mean max_num_seqs?"),
        ("drafter == ngrm", "did you mean ngram?"),
        ("max_num_seqs > drafter", "cannot be worked out"),
        ("max_num_seqs >", "is no condition"),
    ],
)
def test_a_forbidden_condition_with_a_mistake_is_refused(text, says):
    assert says in problems(knobs=(*DRAFTERS, SEQS), forbid=(text,))


def test_a_space_survives_being_written_and_read():
    here = space(SEQS, LATE, UNDER, settings={"ngram": {"prompt_lookup_min": 2}}, forbid=("k > 4",))
    assert SearchSpace.model_validate_json(here.model_dump_json()) == here


def test_a_key_within_a_flags_json_is_the_same_target():
    assert same_target("--a.b", "--a")
    assert not same_target("--a.b", "--a.c")
    assert not same_target("--ab", "--a")
    assert not same_target(None, None)
