"""The error tree: each error says what happened and what to do about it.

RepeakError
├── PlanError            the plan (or another file of the user's) cannot be used as it is
├── EnvironmentBroken    an engine environment cannot be built, adopted or trusted
├── EngineFailed         an engine did not start, or died (carries the classified failure)
├── MeasurementFailed    a server could not be measured at all (unreachable, refused, stalled)
├── JournalError         the record on disk cannot be read or written
├── TrackerError         the MLflow store cannot be used
├── ClusterError         Ray did not start, or has not what the plan asks for
├── SlotLost             the worker that held an engine died under it
├── LockHeld             another run holds the lock
└── Interrupted          the user asked to stop
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "EngineFailed",
    "EnvironmentBroken",
    "Interrupted",
    "JournalError",
    "LockHeld",
    "MeasurementFailed",
    "PlanError",
    "RepeakError",
    "SlotLost",
    "TrackerError",
]


class RepeakError(Exception):
    """Something went wrong that a person can act on.

    Args:
        message: What happened, in one sentence.
        hint: What to do about it; empty when nothing can be said.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Crosses process boundaries (Ray) whole: message and hint, not the joined text.
        return (type(self), (self.message, self.hint))


class PlanError(RepeakError):
    pass


class EnvironmentBroken(RepeakError):
    exit_code = 3


class EngineFailed(RepeakError):
    exit_code = 3


class MeasurementFailed(RepeakError):
    exit_code = 4


class JournalError(RepeakError):
    pass


class TrackerError(RepeakError):
    pass


class ClusterError(RepeakError):
    pass


class SlotLost(RepeakError):
    exit_code = 3


class LockHeld(RepeakError):
    exit_code = 6


class Interrupted(RepeakError):
    exit_code = 130
