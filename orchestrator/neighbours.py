"""Whether engines that ran side by side on one machine moved each other's numbers: the anchor, beside and alone."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from trackers.records import Measurement, TrialRecord

__all__ = ["neighbours_said"]


def neighbours_said(records: Sequence[TrialRecord], everything: Sequence[TrialRecord], metric: str) -> str:
    """One sentence; empty where nothing was measured side by side.

    The search runs side by side and the finals alone, so the incumbent, which is in both and was not chosen for its
    number, is the anchor. The other finalists were: a search that picks the best reads high.

    Args:
        records: Of one engine.
        everything: Of all engines of the plan: these, and the neighbours.
        metric: What is compared.
    """
    own = [one for one in records if one.state == "measured" and one.role != "in_turn"]
    measured = _by_machine(everything)
    shares = {one.trial_id: _beside(one, measured) for one in own}
    beside = [one for one in records if shares.get(one.trial_id, 0) >= 0.5]
    if not beside:
        return ""
    anchor = next((one for one in beside if one.role == "incumbent"), None)
    same = [one for one in records if anchor and one.configuration == anchor.configuration]
    alone = [one for one in same if shares.get(one.trial_id) == 0]
    keys = [name for name in anchor.estimates if name.endswith(f"/{metric}")] if anchor else []
    if anchor is None or not alone or not keys:
        return "Measured beside neighbours, which no anchor measured alone speaks for."
    moves, spread = [], 0.0
    for key in keys:
        quiet = [one.estimates[key] for one in alone if key in one.estimates]
        if quiet:
            moves.append(anchor.estimates[key].value / (sum(one.value for one in quiet) / len(quiet)) - 1)
            spread += anchor.estimates[key].relative ** 2 + sum(one.relative**2 for one in quiet) / len(quiet) ** 2
    moved, half = sum(moves) / len(moves), math.sqrt(spread) / len(moves)
    said = f"Beside a neighbour the anchor read {moved:+.1%} (within {half:.1%}) of what it reads alone"
    return said + ("; neighbours move it: set slots.isolate." if abs(moved) > half else ".")


def _beside(record: TrialRecord, measured: Mapping[str | None, _Spans]) -> float:
    """The share of a trial's windows during which another engine of its machine was measured."""
    everyone, own = measured[record.fingerprint.items.get("machine")], _Spans([record])
    met = [everyone.met(window) > own.met(window) for window in record.windows]
    return sum(met) / len(met) if met else 0.0


class _Spans:
    """When windows were measured, sorted: a long study has thousands, and each is asked about all."""

    def __init__(self, records: Iterable[TrialRecord]) -> None:
        spans = [_span(window) for record in records for window in record.windows]
        self._begun, self._ended = sorted(begun for begun, _ in spans), sorted(ended for _, ended in spans)

    def met(self, window: Measurement) -> int:
        """How many of them overlap this one."""
        begun, ended = _span(window)
        return bisect_left(self._begun, ended) - bisect_right(self._ended, begun)


def _span(window: Measurement) -> tuple[float, float]:
    return window.started_at, window.started_at + window.duration_s


def _by_machine(records: Sequence[TrialRecord]) -> dict[str | None, _Spans]:
    found: dict[str | None, list[TrialRecord]] = {}
    for one in records:
        found.setdefault(one.fingerprint.items.get("machine"), []).append(one)
    return {machine: _Spans(there) for machine, there in found.items()}
