"""The journal: every number on disk and synced before anything else hears of it; one writes, many read."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel

from .entries import Orphan, StudyClosed, StudyOpened, TrialStarted
from .journal_file import JournalFile
from .problems import JournalProblem
from .record_json import Line, Scan, encode, key_bytes
from .records import Launch, Measurement, TrialRecord

__all__ = ["Journal"]

T = TypeVar("T", bound=BaseModel)

# Said once; of the other kinds one may say more later, and the last word counts.
_ONCE = ("begin", "window", "trial")


class Journal:
    """`<directory>/journal.jsonl`, held by one driver at a time until `close`; safe to write from threads.

    Opening drops a torn last line; damaged and repeated lines are left out but stay in the file; `messages`
    says so. A line is on disk when its call returns: True where it was not there before. Where it cannot be
    written the call raises JournalProblem and the file is as it was.

    Args:
        directory: One for each plan; made where it is absent.
        read_only: Take no lock and repair nothing.
        now: Seconds since the epoch.
        write: As `os.write`.

    Raises:
        JournalBusy: Another driver holds it.
        JournalProblem: It is of another version, is no journal, or cannot be opened.
    """

    def __init__(
        self,
        directory: Path,
        *,
        read_only: bool = False,
        now: Callable[[], float] = time.time,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        self.directory = directory
        self.path = directory / "journal.jsonl"
        self.messages: list[str] = []
        self._now = now
        self._mutex = threading.RLock()
        self._lines: dict[str, dict[bytes, list[Line]]] = {}
        self._trials: dict[bytes, TrialRecord] = {}
        self._sent: dict[str, set[str]] = {}
        try:
            self._file = JournalFile(self.path, read_only=read_only, write=write)
        except OSError as error:
            hint = "Check the path, its permissions and the free space."
            raise JournalProblem(f"The journal {self.path} cannot be opened: {error}.", hint) from error
        self._accept(self._file.found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another driver have it; twice is once."""
        self._file.close()

    def folder(self, trial_id: str) -> Path:
        """The trial's own directory: what lies there when it ends goes with it to the tracker."""
        return self.directory / "trials" / trial_id

    def study(self, opened: StudyOpened) -> bool:
        return self._append("study", (opened.study,), opened)

    def begin(self, start: TrialStarted) -> bool:
        return self._append("begin", (start.trial_id,), start)

    def launch(self, trial_id: str, launch: Launch) -> bool:
        return self._append("launch", (trial_id, launch.launch), launch)

    def window(self, trial_id: str, window: Measurement) -> bool:
        """A metric that is not finite is left out, and `messages` says so."""
        return self._append("window", _window_key(trial_id, window), self._finite(trial_id, window))

    def trial(self, record: TrialRecord) -> bool:
        windows = tuple(self._finite(record.trial_id, window) for window in record.windows)
        record = record.model_copy(update={"windows": windows})
        new = self._append("trial", (record.trial_id,), record)
        # Not read back: whoever remembers it holds the same object.
        self._trials.setdefault(key_bytes(record.trial_id), record)
        return new

    def peak(self, closed: StudyClosed) -> bool:
        return self._append("peak", (closed.study, repr(closed.at)), closed)

    def note(self, facts: Mapping[str, Any], kind: Literal["note", "shift"] = "note") -> bool:
        return self._append(kind, (repr(self._now()),), facts)

    def sent(self, store: str, uid: str, run_id: str) -> bool:
        """Remember that a tracker's store holds the run of `uid`."""
        new = self._append("sent", (store, uid), {"run_id": run_id})
        with self._mutex:
            self._sent.get(store, set()).add(uid)
        return new

    def studies(self) -> dict[str, StudyOpened]:
        found = (self._last("study", key, StudyOpened) for key in self._of("study"))
        return {opened.study: opened for opened in found}

    def closings(self, study: str) -> list[StudyClosed]:
        """Each ending of a study, in the order in which they were written."""
        return [self._last("peak", key, StudyClosed) for key in self._of("peak", study)]

    def notes(self, kind: Literal["note", "shift"] = "note") -> list[dict[str, Any]]:
        lines = [line for every in self._of(kind).values() for line in every]
        return [json.loads(self._body(line)) for line in lines]

    def records(self, study: str | None = None) -> list[TrialRecord]:
        """Every trial that ended, in the order in which they ended."""
        keys = self._of("trial")
        collecting = gc.isenabled()
        # Millions of new objects and no garbage among them: collecting would be most of the time.
        gc.disable()
        try:
            for key in keys.keys() - self._trials.keys():
                self._trials[key] = self._last("trial", key, TrialRecord)
        finally:
            if collecting:
                gc.enable()
        return [self._trials[key] for key in keys if study in (None, self._trials[key].study)]

    def launches(self, trial_id: str) -> list[Launch]:
        found = [self._last("launch", key, Launch) for key in self._of("launch", trial_id)]
        return sorted(found, key=lambda launch: launch.launch)

    def windows(self, trial_id: str) -> list[Measurement]:
        """Each finished window once, whether its trial ended or not, in the order of measuring."""
        found = {key: self._last("window", key, Measurement) for key in self._of("window", trial_id)}
        if (ended := key_bytes(trial_id)) in self._of("trial"):
            record = self._last("trial", ended, TrialRecord)
            found |= {key_bytes(*_window_key(trial_id, window)): window for window in record.windows}
        return sorted(found.values(), key=lambda window: (window.launch, window.started_at, window.window))

    def orphans(self) -> list[Orphan]:
        """Trials that began and never ended, for whoever resumes to close."""
        ended = self._of("trial")
        starts = [self._last("begin", key, TrialStarted) for key in self._of("begin") if key not in ended]
        return [
            Orphan(
                start=start,
                launches=tuple(self.launches(start.trial_id)),
                windows=tuple(self.windows(start.trial_id)),
            )
            for start in starts
        ]

    def sent_uids(self, store: str) -> set[str]:
        """The runs that `sent` was told of, without a look at the disk."""
        with self._mutex:
            if store not in self._sent:  # asked after every trial: keys are read once
                self._sent[store] = {json.loads(key)[1] for key in self._of("sent", store)}
            return set(self._sent[store])

    def sent_runs(self, store: str) -> dict[str, str]:
        """What `sent` was told of this store: uid -> run id."""
        found = {key: every[-1] for key, every in self._of("sent", store).items()}
        return {json.loads(key)[1]: json.loads(self._body(line))["run_id"] for key, line in found.items()}

    def _finite(self, trial_id: str, window: Measurement) -> Measurement:
        metrics = {name: value for name, value in window.metrics.items() if math.isfinite(value)}
        if len(metrics) == len(window.metrics):
            return window
        wrong = ", ".join(sorted(window.metrics.keys() - metrics.keys()))
        message = f"{trial_id}, window {window.window}: {wrong} is not finite and is left out."
        if message not in self.messages:
            self.messages.append(message)
        return window.model_copy(update={"metrics": metrics})

    def _of(self, kind: str, first: str | None = None) -> dict[bytes, list[Line]]:
        """Where the lines of a kind lie, by key; with `first`, only keys that have more after it."""
        start = b"" if first is None else key_bytes(first)[:-1] + b","
        with self._mutex:
            lines = self._lines.get(kind, {})
            return {key: every for key, every in lines.items() if key.startswith(start)}

    def _last(self, kind: str, key: bytes, model: type[T]) -> T:
        line = self._lines[kind][key][-1]
        try:
            return model.model_validate_json(self._body(line))
        except ValueError as error:
            raise JournalProblem(
                f"Line {line.number} of {self.path} holds a {kind} that this version cannot read: {error}",
                "Use the version of repeak that wrote it.",
            ) from error

    def _body(self, line: Line) -> bytes:
        return self._file.read(line.offset, line.length)

    def _append(self, kind: str, key: tuple[str | int, ...], entry: BaseModel | Mapping[str, Any]) -> bool:
        raw, body = key_bytes(*key), _as_json(kind, entry)
        with self._mutex:
            known = self._lines.get(kind, {}).get(raw)
            if known and self._body(known[-1]) == body:
                return False
            if known and kind in _ONCE:
                raise JournalProblem(
                    f"The journal {self.path} already holds another {kind} {raw.decode()}.",
                    "A trial and a window are written once; this one needs an id of its own.",
                )
            text, start = encode(kind, self._now(), raw, body)
            line = Line(self._count + 1, kind, raw, self._file.end + start, len(body))
            self._file.put(text)
            self._count += 1
            self._lines.setdefault(kind, {}).setdefault(raw, []).append(line)
        return True

    def _accept(self, found: Scan) -> None:
        repeated = [line.number for line in found.lines if not self._index(line)]
        self._count = max([*found.damaged, *(line.number for line in found.lines)], default=0)
        for what, numbers in (("damaged", found.damaged), ("repeated", repeated)):
            if numbers:
                which = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
                self.messages.append(f"{self.path}: left out as {what}: line {which}; all others are read.")
        begun = self._of("begin").keys() | self._of("trial").keys()
        strays = {json.loads(key)[0] for kind in ("launch", "window") for key in self._of(kind)}
        for trial_id in sorted(trial_id for trial_id in strays if key_bytes(trial_id) not in begun):
            self.messages.append(f"{self.path}: {trial_id} has windows or launches but no beginning; not used.")
        if found.torn:
            self.messages.append(f"{self.path}: the last line was cut short ({len(found.torn)} bytes) and is dropped.")

    def _index(self, line: Line) -> bool:
        known = self._lines.setdefault(line.kind, {}).setdefault(line.key, [])
        if known and (line.kind in _ONCE or self._body(known[-1]) == self._body(line)):
            return False
        known.append(line)
        return True


def _window_key(trial_id: str, window: Measurement) -> tuple[str | int, ...]:
    return trial_id, window.launch, window.workload.name, window.window


def _as_json(kind: str, entry: BaseModel | Mapping[str, Any]) -> bytes:
    """JSON that the same model reads back, proved before it is written."""
    try:
        if not isinstance(entry, BaseModel):
            return json.dumps(dict(entry), allow_nan=False).encode()
        body = entry.model_dump_json().encode()
        type(entry).model_validate_json(body)
    except (ValueError, TypeError) as error:
        hint = "A number must be finite, a text must be Unicode."
        raise JournalProblem(f"A {kind} cannot be kept as JSON: {error}", hint) from error
    return body
