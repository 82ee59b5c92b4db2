"""The catalog, against the flags that the real parsers of five engine versions accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.catalog import CATALOG, READY_MADE, catalog_flags
from search_spaces.serve_args import BARE
from search_spaces.versions import lacks

FOLDER = Path(__file__).parent.parent / "fixtures" / "flags"
VERSIONS = ["0.19.1", "0.26.0", "0.27.1", "0.32.0", "0.33.0"]


def parser(version: str) -> dict[str, str]:
    """Option or variable -> `on/off`, `on`, its choices joined by |, or nothing."""
    lines = (FOLDER / f"{version}.txt").read_text(encoding="utf-8").splitlines()
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_is_in_the_parsers_that_it_says_and_in_no_other(version):
    known = parser(version)
    wrong = {
        flag: (since, until)
        for flag, (since, until) in catalog_flags().items()
        if "." not in flag and (flag in known) == lacks(version, since, until)
    }
    assert not wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_flags_with_keys_are_flags_of_every_version(version):
    assert {flag.split(".")[0] for flag in catalog_flags() if "." in flag} <= parser(version).keys()


def test_some_knob_is_missing_in_the_oldest_version_and_some_was_removed_in_the_newest():
    assert any(knob.absent_in("0.19.1") and not knob.absent_in("0.33.0") for knob in CATALOG.values())
    assert any(knob.absent_in("0.33.0") and not knob.absent_in("0.19.1") for knob in CATALOG.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_values_have_the_form_that_the_parser_reads(version):
    known = parser(version)
    for knob in CATALOG.values():
        says = known.get(knob.flag or "")
        if not says:
            continue
        asked = {one for one in knob.grid() if one != "default"}
        if says == "on/off":
            assert asked <= {True, False}, knob.name
        else:
            assert {str(one) for one in asked} <= set(says.split("|")), knob.name


@pytest.mark.parametrize("version", VERSIONS)
def test_flags_without_a_negative_form_are_known(version):
    assert {flag for flag, says in parser(version).items() if says == "on"} <= BARE


def test_every_knob_says_what_it_does():
    assert all(knob.says.endswith(".") and len(knob.says) > 10 for knob in CATALOG.values())


def test_every_first_value_may_be_chosen():
    assert all(knob.holds(knob.first) for knob in CATALOG.values())


def test_no_knob_stands_in_two_ready_made_spaces():
    names = [name for space in READY_MADE.values() for name in space]
    assert len(names) == len(set(names))
