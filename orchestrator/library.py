"""The library: every journal of this user, read without a lock, for whoever looks."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.journal_summary import Summary, summary
from trackers.records import Frozen, TrialRecord

from .errors import PlanError
from .home import home

__all__ = ["Shelf", "find_plan", "find_trial", "glances", "plan_names", "reading", "shelves", "whole"]

_LONG = 5_000_000  # bytes of a journal that is not read whole to be looked at


class Shelf(Frozen):
    """One study: how it was opened, what it measured, and how it last ended."""

    opened: StudyOpened
    records: tuple[TrialRecord, ...]
    closed: StudyClosed | None = None


def plan_names() -> list[str]:
    """Plans with a journal here, the latest first."""
    files = sorted((home() / "journals").glob("*/journal.jsonl"), key=lambda file: -file.stat().st_mtime)
    return [file.parent.name for file in files]


@contextmanager
def reading(plan: str) -> Iterator[Journal]:
    journal = Journal(home() / "journals" / plan, read_only=True)
    try:
        yield journal
    finally:
        journal.close()


def shelves(plan: str) -> list[Shelf]:
    """The studies of a plan, in the order in which they were opened."""
    with reading(plan) as journal:
        found = []
        for key, opened in journal.studies().items():
            closings = journal.closings(key)
            found.append(
                Shelf(
                    opened=opened,
                    records=tuple(journal.records(key)),
                    closed=closings[-1] if closings else None,
                )
            )
    return sorted(found, key=lambda shelf: shelf.opened.started_at)


def glances(plan: str) -> list[Shelf]:
    """The same for whoever looks: a long journal's trials come without their windows (see `whole`)."""
    short = _short(plan)
    if short is None:
        return shelves(plan)
    found = [
        Shelf(
            opened=opened,
            records=tuple(record for record in short.trials if record.study == key),
            closed=short.closings.get(key),
        )
        for key, opened in short.studies.items()
    ]
    return sorted(found, key=lambda shelf: shelf.opened.started_at)


def whole(plan: str, records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Trials with their windows, as they were written."""
    ids = [record.trial_id for record in records if not record.windows and record.launches]
    short = _short(plan) if ids else None
    read = {record.trial_id: record for record in short.whole(ids)} if short else {}
    return [read.get(record.trial_id, record) for record in records]


@functools.lru_cache(maxsize=4)
def _summary(directory: Path, _size: int) -> Summary:
    return summary(directory)


def _short(plan: str) -> Summary | None:
    """The summary of a journal long enough to need one."""
    directory = home() / "journals" / plan
    size = (directory / "journal.jsonl").stat().st_size
    try:
        return _summary(directory, size) if size > _LONG else None
    except (OSError, ValueError):
        return None


def find_plan(what: str) -> str | None:
    """A plan's name from its name or its file; None where no journal has it."""
    names = plan_names()
    if what in names:
        return what
    path = Path(what)
    if path.suffix in (".yaml", ".yml") and path.exists():
        from .plan_file import load_plan  # noqa: PLC0415 - looking at a record needs no plan

        name = load_plan(path).name
        return name if name in names else None
    return None


def find_trial(what: str) -> tuple[Shelf, TrialRecord]:
    """A trial by its id, or by enough of its beginning; first where it stands: plans may share a study.

    Raises:
        PlanError: None or several have it.
    """
    found = [
        (shelf, record)
        for plan in plan_names()
        for shelf in shelves(plan)
        for record in shelf.records
        if record.trial_id.startswith(what)
    ]
    if len(found) != 1:
        raise PlanError(
            f"{what!r} is {'no plan and no trial' if not found else 'the beginning of several trials'} here.",
            f"Plans: {', '.join(plan_names()) or 'none yet'}. `repeak show PLAN` lists its trials.",
        )
    return found[0]
