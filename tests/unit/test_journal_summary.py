"""The summary says what the journal says, whatever happened to either since."""

from __future__ import annotations

from pathlib import Path

import pytest
from trial_records import study, trial

from orchestrator import library
from orchestrator.library import glances, shelves, whole
from trackers.entries import StudyClosed
from trackers.journal import Journal
from trackers.journal_summary import summary
from trackers.records import Estimate, TrialRecord


def write(folder: Path, first: int, last: int, **changes: object) -> None:
    with Journal(folder) as journal:
        journal.study(study())
        for number in range(first, last):
            journal.trial(trial(f"t{number}", number, **changes))


def test_trials_come_without_windows_and_whole_when_asked(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    found = summary(tmp_path)
    assert [one.trial_id for one in found.trials] == ["t0", "t1", "t2"]
    assert not any(one.windows for one in found.trials)
    assert found.trials[1].estimates == trial("t1", 1).estimates
    assert found.whole(["t1"]) == [trial("t1", 1)]


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    summary(tmp_path)
    journal = tmp_path / "journal.jsonl"
    before = journal.read_bytes()
    write(tmp_path, 2, 3)
    grown = journal.read_bytes()
    # What is covered already is not looked at again: here it is blotted out.
    journal.write_bytes(b" " * len(before) + grown[len(before) :])
    assert [one.trial_id for one in summary(tmp_path).trials] == ["t0", "t1", "t2"]


def test_a_summary_of_another_journal_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path, 0, 5)
    summary(tmp_path)
    (tmp_path / "journal.jsonl").unlink()
    write(tmp_path, 7, 8)
    assert [one.trial_id for one in summary(tmp_path).trials] == ["t7"]


@pytest.mark.parametrize("damage", [b"", b"nonsense\n", b"repeak summary 1\tx\n", b"repeak summary 1\t99\nstudy\n"])
def test_a_damaged_summary_costs_nothing_but_time(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path, 0, 2)
    summary(tmp_path)
    (tmp_path / "summary.tsv").write_bytes(damage)
    assert len(summary(tmp_path).trials) == 2


def test_a_closing_on_another_metric_brings_that_metric_back(tmp_path: Path) -> None:
    odd = Estimate(value=3.0, half_width=0.1, launches=1, windows=3, ending="stable")
    write(tmp_path, 0, 2, estimates={"edit/p42_ttft_ms": odd})
    assert not summary(tmp_path).trials[0].estimates
    with Journal(tmp_path) as journal:
        peak = {"edit": {"target": {"metric": "p42_ttft_ms"}}}
        journal.peak(StudyClosed(study="s", at=1.0, verdict="v", peak=peak))
    found = summary(tmp_path)
    assert found.trials[0].estimates == {"edit/p42_ttft_ms": odd}
    assert found.closings["s"].verdict == "v"


def test_a_damaged_journal_is_left_to_the_journal(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b"{broken}\n")
    with pytest.raises(ValueError, match="not a journal's"):
        summary(tmp_path)


def test_a_torn_last_line_is_not_covered(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"v":1,"kind":"trial","at"')
    assert len(summary(tmp_path).trials) == 2
    write(tmp_path, 2, 3)
    assert len(summary(tmp_path).trials) == 3


def test_a_long_journal_is_glanced_at_and_a_short_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    write(tmp_path / "journals" / "plan", 0, 3)
    assert glances("plan") == shelves("plan")
    monkeypatch.setattr(library, "_LONG", 10)
    (short,) = glances("plan")
    assert not short.records[0].windows
    records: list[TrialRecord] = whole("plan", short.records[1:])
    assert records == list(shelves("plan")[0].records[1:])
