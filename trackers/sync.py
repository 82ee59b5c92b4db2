"""Bring a store to what the journal says: one call after a trial, after an outage and at every start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from .entries import StudyClosed, StudyOpened
from .journal import Journal
from .mlflow_layout import uid_of
from .problems import JournalProblem, TrackerProblem
from .records import Frozen, TrialRecord

__all__ = ["SyncCounts", "Tracker", "sync"]


class Tracker(Protocol):
    """A store where people look; each call is idempotent and raises TrackerProblem where it fails."""

    store: str

    def open_study(self, opened: StudyOpened) -> tuple[str, str]: ...

    def record(self, trial: TrialRecord, opened: StudyOpened, folder: Path | None = None) -> str: ...

    def close_study(self, closed: StudyClosed, opened: StudyOpened) -> str: ...

    def known(self, opened: StudyOpened) -> dict[str, str]: ...


class SyncCounts(Frozen):
    """Runs written now, there already, not written; `outage` where the store stopped answering."""

    sent: int = 0
    present: int = 0
    failed: int = 0
    outage: bool = False
    problems: tuple[str, ...] = ()


def sync(journal: Journal, tracker: Tracker, *, verify: bool = False) -> SyncCounts:
    """Send what the store lacks; a refused run is passed over, an outage ends the call.

    Without `verify` the journal's memory of what was sent is believed, and with nothing new the store is not
    touched; with it the store itself is asked, which also mends what was lost there.

    Raises:
        JournalProblem: The journal could not be read, or not be told what was sent.
    """
    done = journal.sent_uids(tracker.store)
    counts, problems = Counter[str](), list[str]()
    studies = journal.studies()
    homeless = {record.study for record in journal.records()} - studies.keys()
    problems += [f"The journal has trials of {study} but not its opening: not sent." for study in sorted(homeless)]
    for opened in studies.values():
        try:
            have = tracker.known(opened) if verify else done
            for uid, send in _sendings(journal, tracker, opened):
                if uid in have:
                    counts["present"] += 1
                elif run_id := _try(send, problems):
                    counts["sent"] += 1
                    journal.sent(tracker.store, uid, run_id)
                else:
                    counts["failed"] += 1
        except JournalProblem:
            raise
        except TrackerProblem as problem:
            return SyncCounts(**counts, outage=True, problems=(*problems, f"{problem.message} {problem.hint}"))
    return SyncCounts(**counts, problems=tuple(problems))


def _sendings(journal: Journal, tracker: Tracker, opened: StudyOpened) -> Iterator[tuple[str, Callable[[], str]]]:
    def record(trial: TrialRecord) -> str:
        return tracker.record(trial, opened, journal.folder(trial.trial_id))

    for trial in journal.records(opened.study):
        yield uid_of(trial.trial_id), partial(record, trial)
    for closed in journal.closings(opened.study):
        yield f"{uid_of(closed.study)}@{closed.at!r}", partial(tracker.close_study, closed, opened)


def _try(send: Callable[[], str], problems: list[str]) -> str:
    try:
        return send()
    except TrackerProblem as problem:
        if problem.outage:
            raise
        problems.append(problem.message)
        return ""
