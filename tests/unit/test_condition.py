"""Conditions over configurations."""

from __future__ import annotations

import pytest

from search_spaces.condition import bare_words, holds

VALUES = {"drafter": "dspark", "k": 8, "max_num_seqs": 128, "enforce_eager": True}
KNOBS = {*VALUES, "watermark"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_num_seqs > 64 and drafter == dspark", True),
        ("max_num_seqs > 64 and drafter == 'mtp'", False),
        ("drafter in [mtp, dspark]", True),
        ("drafter not in [mtp, dspark]", False),
        ("not enforce_eager or k == 8", True),
        ("k * max_num_seqs > 1000", True),
        ("2 <= k < 8", False),
        ("enforce_eager == true", True),
        ("-k + 8 / 2 == -4", True),
        ("watermark > 0", False),
        ("not watermark > 0", True),
        ("watermark", False),
    ],
)
def test_a_condition_is_worked_out(text, expected):
    assert holds(text, VALUES, KNOBS) is expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/x')",
        "drafter.upper() == 'X'",
        "[x for x in drafter]",
        "(lambda: 1)() == 1",
        "k ** 9 ** 9",
        "drafter * 9",
        "k if k else k",
        "drafter[0] == 'd'",
        "f'{k}'",
        "k == ",
        "",
        "k > 'a'",
        "k / 0 > 1",
        "dspark",
        "k and drafter == dspark",
        "max_num_seqs > 64 or drafter",
        "(" * 300 + "1" + ")" * 300,
        "k == 1 or " * 100 + "k == 1",
    ],
)
def test_what_is_no_condition_is_refused_and_nothing_runs(text):
    with pytest.raises(ValueError, match="`"):
        holds(text, VALUES, KNOBS)


def test_both_sides_are_looked_at_so_that_a_mistake_is_found_at_once():
    with pytest.raises(ValueError, match="worked out"):
        holds("k == 8 or k > drafter", VALUES, KNOBS)


def test_bare_words_are_those_without_quotes():
    assert bare_words("a > 1 and b == 'c' and d == true") == {"a", "b", "d"}
