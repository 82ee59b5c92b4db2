"""What can go wrong in remembering: each problem says what happened and what to do about it."""

from __future__ import annotations

__all__ = ["JournalBusy", "JournalProblem", "TrackerProblem"]


class TrackerProblem(Exception):
    """The store cannot be used, or refused something.

    Args:
        message: What happened, in one sentence.
        hint: What to do about it.
        outage: True where the store as a whole did not answer, so that the next call would fail too.
    """

    def __init__(self, message: str, hint: str = "", *, outage: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.outage = outage


class JournalProblem(TrackerProblem):
    """The record on disk cannot be read or written."""


class JournalBusy(JournalProblem):
    """Another driver writes this journal."""
