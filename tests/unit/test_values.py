"""Values of a knob: choices and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from search_spaces.values import Values


def test_one_value_alone_is_fixed_and_a_list_is_choices():
    assert Values.model_validate(2048).fixed
    assert Values.model_validate([2, 8, 16]).grid() == (2, 8, 16)


@pytest.mark.parametrize(
    ("given_", "grid"),
    [
        ({"low": 1, "high": 4}, (1, 2, 3, 4)),
        ({"low": 1, "high": 8, "step": 3}, (1, 4, 7)),
        ({"low": 8, "high": 100, "log": True}, (8, 16, 32, 64, 100)),
        ({"low": 0.7, "high": 0.9, "step": 0.1}, (0.7, 0.8, 0.9)),
        ({"low": 0.0, "high": 1.0}, (0.0, 0.25, 0.5, 0.75, 1.0)),
        ({"low": 3, "high": 3}, (3,)),
    ],
)
def test_a_range_has_a_grid(given_, grid):
    assert Values.model_validate(given_).grid() == grid


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({}, "needs choices"),
        ({"low": 1}, "both low and high"),
        ({"low": 4, "high": 1}, "above high"),
        ({"low": 0, "high": 8, "log": True}, "low above 0"),
        ({"choices": [1], "high": 3}, "one of them"),
        ([], "at least 1"),
        ([4, 4], "twice"),
        ({"low": 1, "high": float("inf")}, "finite"),
        ({"low": 1, "high": 2, "max": 3}, "Extra"),
    ],
)
def test_a_malformed_range_is_refused_and_says_why(given_, says):
    with pytest.raises(ValidationError, match=says):
        Values.model_validate(given_)


def test_true_is_not_one():
    assert not Values.model_validate([0, 1]).holds(True)
    assert Values.model_validate([True, 1, "1"]).grid() == (True, 1, "1")


def test_a_range_holds_what_lies_on_its_steps():
    stepped = Values(low=0.7, high=0.95, step=0.05)
    assert stepped.holds(0.85)
    assert not stepped.holds(0.86)
    assert Values(low=0.1, high=0.9).holds(0.123)
    assert not Values(low=1, high=8).holds(2.5)
    assert not Values(low=1, high=8).holds("2")


@given(low=st.integers(1, 50), span=st.integers(0, 400), log=st.booleans())
def test_a_grid_stays_within_its_range_and_every_neighbour_may_be_chosen(low, span, log):
    values = Values(low=low, high=low + span, log=log)
    grid = values.grid()
    assert all(values.holds(one) for one in grid)
    assert len(set(grid)) == len(grid)
    for one in grid[:: max(1, len(grid) // 7)]:
        assert one not in values.near(one)
        assert all(values.holds(other) for other in values.near(one))


def test_neighbours_are_the_next_values_or_every_other_choice_where_none_is_larger():
    assert Values(low=1, high=8).near(4) == (3, 5)
    assert Values.model_validate([2, 8, 16]).near(16) == (8,)
    assert Values(low=8, high=64, log=True).near(16) == (8, 32)
    assert Values.model_validate(["a", "b", "c"]).near("b") == ("a", "c")
    assert Values.model_validate([False, True]).near(False) == (True,)


def test_neighbours_in_a_wide_range_are_an_eighth_of_it_away():
    assert Values(low=0, high=800).near(400) == (300, 500)


def test_the_nearest_value_is_itself_or_the_closest_number():
    assert Values.model_validate([2, 8, 16]).nearest(6) == 8
    assert Values(low=1, high=8).nearest(20) == 8
    assert Values.model_validate(["a", "b"]).nearest("z") == "a"
    assert Values.model_validate([4, 5]).nearest(None) == 4
