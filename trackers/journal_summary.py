"""A short copy beside a long journal, for whoever looks: trials without windows, and where they lie whole."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from .entries import StudyClosed, StudyOpened
from .record_json import scan
from .records import TrialRecord

__all__ = ["Summary", "summary"]

_KINDS = ("study", "peak", "trial")
_NAME, _HEAD = "summary.tsv", "repeak summary 1"
# What tables and comparisons show; a metric that a peak is of is kept beside them.
_SHOWN = frozenset(
    {"decode_tok_s", "prefill_tok_s", "output_throughput", "request_goodput", "median_ttft_ms"}
    | {"p99_ttft_ms", "median_tpot_ms", "acceptance_length", "passes_s"}
)


class _Entry(NamedTuple):
    kind: str
    key: str
    offset: int
    length: int
    body: bytes


class Summary:
    """A journal's studies, their last closings, and its trials without windows, in the order they ended."""

    def __init__(self, path: Path, entries: Sequence[_Entry]) -> None:
        self._path = path
        collecting = gc.isenabled()
        gc.disable()  # as in the journal: many new objects and no garbage
        try:
            of = {kind: [e for e in entries if e.kind == kind] for kind in _KINDS}
            found = [StudyOpened.model_validate_json(e.body) for e in of["study"]]
            self.studies = {one.study: one for one in found}
            ends = [StudyClosed.model_validate_json(e.body) for e in of["peak"]]
            self.closings = {one.study: one for one in ends}
            first = {e.key: e for e in reversed(of["trial"])}
            self.trials = [TrialRecord.model_validate_json(e.body) for e in reversed(first.values())]
            self._places = {t.trial_id: e for t, e in zip(self.trials, reversed(first.values()), strict=True)}
        finally:
            gc.freeze()  # later collections would walk through all of them again
            if collecting:
                gc.enable()

    def whole(self, trial_ids: Collection[str]) -> list[TrialRecord]:
        """These trials as they were written, windows and all."""
        with self._path.open("rb") as file:
            bodies = [os.pread(file.fileno(), e.length, e.offset) for e in map(self._places.__getitem__, trial_ids)]
        return [TrialRecord.model_validate_json(body) for body in bodies]


def summary(directory: Path) -> Summary:
    """The summary of the journal there, brought up to date and kept for the next who looks.

    Only what was written since is read; a summary that does not fit the journal is made anew.

    Raises:
        OSError, ValueError: The journal cannot be read this way; open it as a Journal, which says why.
    """
    path, side = directory / "journal.jsonl", directory / _NAME
    covered, entries = _kept(side, path.stat().st_size)
    fresh, end = _read(path, covered)
    known, now = _metrics(entries), _metrics([*entries, *fresh])
    if entries and now != known:
        # A peak of a number that the trials so far were kept without.
        entries, (fresh, end) = [], _read(path, 0)
    entries += [e._replace(body=_slim(e.body, now)) if e.kind == "trial" else e for e in fresh]
    if fresh:
        with contextlib.suppress(OSError):  # whoever may not write there reads it all each time
            _keep(side, end, entries)
    return Summary(path, entries)


def _read(path: Path, start: int) -> tuple[list[_Entry], int]:
    """What was written from there on, whole, and where that ends."""
    with path.open("rb") as file:
        file.seek(start)
        found = scan(file)
        if found.foreign or found.damaged or found.open_ended:
            raise ValueError(f"{path} has lines that are not a journal's")
        entries = []
        for line in found.lines:
            if line.kind in _KINDS:
                at = start + line.offset
                body = os.pread(file.fileno(), line.length, at)
                entries.append(_Entry(line.kind, line.key.decode(), at, line.length, body))
    return entries, start + found.end


def _metrics(entries: Sequence[_Entry]) -> set[str]:
    peaks = [StudyClosed.model_validate_json(e.body).peak or {} for e in entries if e.kind == "peak"]
    return set(_SHOWN) | {str(one["target"]["metric"]) for peak in peaks for one in peak.values()}


def _slim(body: bytes, metrics: Collection[str]) -> bytes:
    """Only launches that say when, how long and why not; only estimates of the metrics shown."""
    record = TrialRecord.model_validate_json(body)
    launches = [one.model_copy(update={"argv": (), "reported": {}, "checks": ()}) for one in record.launches]
    estimates = {key: one for key, one in record.estimates.items() if key.rpartition("/")[2] in metrics}
    update = {"windows": (), "launches": tuple(launches), "estimates": estimates}
    return record.model_copy(update=update).model_dump_json().encode()


def _kept(side: Path, size: int) -> tuple[int, list[_Entry]]:
    """Bytes of the journal that the summary covers, and its entries; nothing where it does not fit."""
    try:
        head, *lines = side.read_bytes().splitlines()
        name, _, end = head.decode().rpartition("\t")
        rows = [line.split(b"\t", 4) for line in lines]
        entries = [_Entry(r[0].decode(), r[1].decode(), int(r[2]), int(r[3]), r[4]) for r in rows]
        covered = int(end)
    except (OSError, ValueError, IndexError):
        return 0, []
    whole = name == _HEAD and covered <= size and all(e.offset + e.length < covered for e in entries)
    return (covered, entries) if whole else (0, [])


def _keep(side: Path, covered: int, entries: Sequence[_Entry]) -> None:
    part = side.with_name(f".{side.name}.{os.getpid()}")
    lines = [f"{_HEAD}\t{covered}".encode()]
    lines += [f"{e.kind}\t{e.key}\t{e.offset}\t{e.length}\t".encode() + e.body for e in entries]
    part.write_bytes(b"\n".join(lines) + b"\n")
    part.replace(side)
