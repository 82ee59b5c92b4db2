"""Versions of engines."""

from __future__ import annotations

import pytest

from search_spaces.versions import lacks, parsed


def test_a_local_label_and_a_pre_release_change_nothing():
    assert parsed("0.32.0+cpu") == (0, 32, 0)
    assert parsed("v0.27.1rc2") == (0, 27, 1)
    assert parsed("dev") is None


@pytest.mark.parametrize(
    ("version", "since", "until", "expected"),
    [
        ("0.9.1", "0.33.0", None, True),  # not as text, where 9 follows 3
        ("0.33.0", "0.33.0", None, False),
        ("0.27.1", None, "0.27.1", True),
        ("0.26.0", None, "0.27.1", False),
        ("0.26.0", None, None, False),
    ],
)
def test_a_version_lacks_what_came_later_or_was_removed(version, since, until, expected):
    assert lacks(version, since, until) is expected


@pytest.mark.parametrize("version", [None, "nightly"])
def test_an_unknown_version_lacks_nothing(version):
    assert not lacks(version, "0.33.0", "0.1.0")
