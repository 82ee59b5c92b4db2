"""Sync sends what a store lacks, once, and says what it could not send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trial_records import study, trial

from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.problems import JournalProblem, TrackerProblem
from trackers.records import TrialRecord
from trackers.sync import SyncCounts, sync


class Store:
    """A tracker in memory that can be down, or refuse one trial."""

    def __init__(self, store: str = "memory:") -> None:
        self.store = store
        self.runs: dict[str, str] = {}
        self.told: list[str] = []
        self.down_after = 10**9
        self.refused = ""

    def _tell(self, what: str) -> str:
        if len(self.told) >= self.down_after:
            raise TrackerProblem("the store is down", "wait", outage=True)
        self.told.append(what)
        return self.runs.setdefault(what, f"run-{what}")

    def open_study(self, opened: StudyOpened) -> tuple[str, str]:
        return "1", self._tell(f"open {opened.study}")

    def record(self, trial: TrialRecord, opened: StudyOpened, folder: Path | None = None) -> str:
        assert folder is not None
        assert folder.name == trial.trial_id
        assert opened.study == trial.study
        if trial.trial_id == self.refused:
            raise TrackerProblem("refused it")
        return self._tell(trial.trial_id)

    def close_study(self, closed: StudyClosed, opened: StudyOpened) -> str:
        return self._tell(closed.verdict)

    def known(self, opened: StudyOpened) -> dict[str, str]:
        return {uid: run for uid, run in self.runs.items() if uid.startswith("t")}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as made:
        made.study(study())
        for number in range(3):
            made.trial(trial(f"t{number}", number))
        made.peak(StudyClosed(study="s", at=1.0, verdict="peak"))
        yield made


def test_everything_is_sent_once_in_order_whatever_is_asked_later(journal: Journal) -> None:
    store = Store()
    assert sync(journal, store) == SyncCounts(sent=4)
    assert sync(journal, store) == SyncCounts(present=4)
    assert store.told == ["t0", "t1", "t2", "peak"]


def test_a_new_journal_object_remembers_what_was_sent(journal: Journal, tmp_path: Path) -> None:
    store = Store()
    sync(journal, store)
    journal.close()
    with Journal(tmp_path) as again:
        assert sync(again, store) == SyncCounts(present=4)


def test_another_store_gets_everything(journal: Journal) -> None:
    sync(journal, Store())
    other = Store("other:")
    assert sync(journal, other).sent == 4


def test_an_outage_ends_the_call_and_the_next_one_goes_on(journal: Journal) -> None:
    store = Store()
    store.down_after = 1
    counts = sync(journal, store)
    assert (counts.sent, counts.outage, counts.problems) == (1, True, ("the store is down wait",))
    store.down_after = 10**9
    assert sync(journal, store) == SyncCounts(sent=3, present=1)
    assert store.told == ["t0", "t1", "t2", "peak"]


def test_a_refused_trial_is_named_and_the_others_go(journal: Journal) -> None:
    store = Store()
    store.refused = "t1"
    counts = sync(journal, store)
    assert (counts.sent, counts.failed, counts.outage, counts.problems) == (3, 1, False, ("refused it",))


def test_verify_asks_the_store_and_mends_what_it_lost(journal: Journal) -> None:
    store = Store()
    sync(journal, store)
    del store.runs["t1"]
    assert sync(journal, store).sent == 0
    assert sync(journal, store, verify=True) == SyncCounts(sent=2, present=2)
    assert "t1" in store.runs


def test_trials_without_a_study_are_named(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(trial())
        counts = sync(journal, Store())
    assert counts.sent == 0
    assert "trials of s but not its opening" in counts.problems[0]


def test_a_journal_that_cannot_be_written_is_no_outage(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise JournalProblem("the disk is full")

    monkeypatch.setattr(journal, "sent", full)
    with pytest.raises(JournalProblem, match="the disk is full"):
        sync(journal, Store())
