"""The journal's file: locked, read to its end and repaired, then grown line by line or left as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from .problems import JournalBusy, JournalProblem
from .record_json import HEAD, VERSION, Scan, scan

__all__ = ["JournalFile"]


class JournalFile:
    """Open until `close`; `found` is what it held, `end` its length in bytes.

    Raises:
        JournalBusy, JournalProblem, OSError: It cannot be opened for the purpose.
    """

    def __init__(self, path: Path, *, read_only: bool, write: Callable[[int, memoryview], int]) -> None:
        self.path = path
        self._write = write
        self._lock = self._file = -1
        self._dirty = False
        try:
            self.found = self._open(read_only=read_only)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another driver have it; twice is once."""
        files, self._file, self._lock = (self._file, self._lock), -1, -1
        for file in files:
            if file >= 0:
                os.close(file)

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file, length, offset)

    def put(self, line: bytes) -> None:
        """All of it on disk, or the file as it was."""
        rest = memoryview(line)
        try:
            self._mend()
            while rest:
                rest = rest[self._write(self._file, rest) :]
            os.fdatasync(self._file)
        except OSError as error:
            self._dirty = True
            with contextlib.suppress(OSError):
                self._mend()
            raise JournalProblem(
                f"The journal {self.path} could not be written: {error.strerror}. What it held is untouched.",
                "Free space on its disk, then run the same command again: it goes on from here.",
            ) from error
        self.end += len(line)

    def _mend(self) -> None:
        if self._dirty:
            os.ftruncate(self._file, self.end)
            self._dirty = False
        if os.fstat(self._file).st_size != self.end:
            raise JournalProblem(
                f"The journal {self.path} was changed by somebody else.",
                "Run the same command again: it reads it afresh.",
            )

    def _open(self, *, read_only: bool) -> Scan:
        if not read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _hold(self.path.with_suffix(".lock"))
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        with os.fdopen(self._file, "rb", closefd=False) as raws:
            found = scan(raws)
        self._recognise(found)
        self.end = found.end
        if not read_only:
            os.ftruncate(self._file, found.end)
            if found.open_ended:
                self.put(b"\n")
            _sync_directory(self.path.parent)
        return found

    def _recognise(self, found: Scan) -> None:
        if found.foreign:
            number, version = found.foreign
            raise JournalProblem(
                f"Line {number} of {self.path} is of journal version {version}; this repeak reads {VERSION}.",
                "Use the version of repeak that wrote it, or another directory.",
            )
        start = found.torn[: len(HEAD)].rstrip(b"\0")
        if not found.lines and (found.damaged or not HEAD.startswith(start)):
            raise JournalProblem(f"{self.path} is not a journal.", "Move it away, or use another directory.")


def _hold(path: Path) -> int:
    """A file descriptor that holds the lock; the kernel lets go of it with the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(file, 100, 0).decode(errors="replace") or "unknown"
        os.close(file)
        hint = "Wait for it to end, or stop it."
        raise JournalBusy(f"Another run (process {holder}) is using {path.parent}.", hint) from error
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
