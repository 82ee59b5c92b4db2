"""A window ends where the wall clock or its length says so, whatever is done to the clocks."""

from __future__ import annotations

import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from clocks import Clocks

from orchestrator.budget import Budget
from orchestrator.window import Window, moment

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0


def hours(now: str, until: str) -> float:
    """From a local time in Berlin (`fold` by a trailing +) to the next time of day."""
    begun = datetime.fromisoformat(now.rstrip("+")).replace(tzinfo=BERLIN, fold=now.endswith("+"))
    return (moment(until, begun.timestamp(), BERLIN) - begun.timestamp()) / HOUR


@pytest.mark.parametrize(
    ("now", "until", "expected"),
    [
        ("2026-11-10 02:00", "06:00", 4.0),
        ("2026-11-10 06:00", "06:00", 24.0),
        ("2026-11-10 23:30", "00:15", 0.75),
        ("2026-03-28 23:00", "06:00", 6.0),  # an hour is skipped that night
        ("2026-03-29 01:00", "02:30", 0.5),  # and with it this time, which then counts early
        ("2026-10-24 23:00", "06:00", 8.0),  # an hour comes twice
        ("2026-10-25 02:00", "02:30", 0.5),
        ("2026-10-25 02:45", "02:30", 0.75),  # its second time
        ("2026-10-25 02:45+", "02:30", 23.75),
    ],
)
def test_the_next_time_of_day_over_changes_of_the_clocks(now: str, until: str, expected: float) -> None:
    assert hours(now, until) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["6:00", "24:00", "", "06:00:00", "soon"])
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time of day"):
        moment(text, 0.0)


def test_a_clock_that_is_set_back_does_not_lengthen_the_window() -> None:
    clocks = Clocks()
    window = Window(clocks, until=clocks.wall + HOUR)
    clocks.wall -= 2 * HOUR
    clocks.pass_by(HOUR + 1)
    assert window.ended == "the window of time has ended"


def test_a_clock_that_is_set_forward_and_a_machine_that_slept_end_it_where_the_wall_clock_says() -> None:
    clocks = Clocks()
    window = Window(clocks, until=clocks.wall + HOUR, length_s=2 * HOUR)
    clocks.wall += HOUR
    assert window.ended
    unhurried = Window(clocks, length_s=HOUR)
    clocks.wall += HOUR
    assert not unhurried.ended, "its length runs on the steady clock"


def test_nothing_starts_that_would_not_end_within_the_window() -> None:
    clocks = Clocks()
    budget = Budget(
        launches=None, time_s=None, before=(), clock=clocks, window=Window(clocks, length_s=600.0), launch_s=240.0
    )
    assert budget.take()
    clocks.pass_by(300.0)
    assert budget.take()
    clocks.pass_by(100.0)
    assert not budget.take()
    assert "3 minutes are left of the window, a launch takes 4" in (budget.spent() or "")


def test_who_asks_for_a_stop_between_launches_gets_it() -> None:
    clocks = Clocks()
    window = Window(clocks)
    budget = Budget(launches=9, time_s=None, before=(), clock=clocks, window=window)
    assert budget.take()
    window.stop()
    assert (budget.take(), budget.spent()) == (False, "it was asked to stop")


def test_what_runs_past_the_end_is_ended_and_what_has_no_end_is_left_alone() -> None:
    clocks, ended = Clocks(), threading.Event()
    with Window(clocks).closing(lambda: pytest.fail("has no end")), Window(clocks, length_s=0.5).closing(ended.set):
        clocks.pass_by(1.0)
        assert ended.wait(5)


def test_what_ends_in_time_is_not_aborted() -> None:
    clocks, ended = Clocks(), threading.Event()
    with Window(clocks, length_s=60.0).closing(ended.set):
        pass
    clocks.pass_by(100.0)
    assert not ended.is_set()
