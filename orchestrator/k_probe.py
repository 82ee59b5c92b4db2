"""Which number of draft tokens to launch next: where the curve that a drafter's launches predict is highest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from search_spaces.configuration import Configuration, Scalar
from search_spaces.space import SearchSpace
from trackers.records import AGAIN, Acceptance, Measurement, TrialRecord

from .k_curve import Depth, KCurve, fit_k_curve

__all__ = ["METRIC", "KProbe", "curve_through"]

METRIC = "decode_tok_s"
_NEAR = 0.02  # how far under the best a curve may end that is still rising

_Family = dict[int, TrialRecord]
"""Trials that differ in k alone, by k; 0 is the one that drafts nothing beside the same other settings."""
_Settings = frozenset[tuple[str, Scalar]]


class KProbe:
    """The curves of one study's drafters; each record is read once, for a long study asks a thousand times.

    Args:
        space: What may be chosen.
        targets: The workloads that are judged together, target by target.
    """

    def __init__(self, space: SearchSpace, targets: Sequence[Sequence[str]]) -> None:
        self._space, self._read = space, 0
        self._known = set[Configuration]()
        self._families: dict[_Settings, _Family] = {}
        self._bases: dict[_Settings, TrialRecord] = {}
        self._best = {tuple(names): -math.inf for names in targets}
        # Of each drafter the family with the fastest trial: a large study has hundreds, and a fit takes its time.
        self._fastest: dict[tuple[str, ...], dict[str, tuple[float, _Settings]]] = {one: {} for one in self._best}

    def next(self, records: Sequence[TrialRecord]) -> tuple[Configuration, float] | None:
        """The configuration that promises most, and the decode tok/s it promises; None where none promises more.

        A curve ends at the deepest launch. Where it is highest there, a launch twice as deep tells how it goes on.
        What is promised is to be measured: it is never a result. Trials that did not settle have their say in it.

        Args:
            records: Of the study: those it was shown before and, after them, those since.
        """
        for one in records[self._read :]:
            self._take(one)
        self._read = len(records)
        found: list[tuple[float, Configuration, float]] = []
        for names, best in self._best.items():
            for _, settings in self._fastest[names].values():
                found += self._promise(settings, names, best)
        return max(found, key=lambda each: each[0])[1:] if found else None

    def _take(self, one: TrialRecord) -> None:
        at = one.configuration
        if one.state not in AGAIN:
            self._known.add(at)
        if one.state not in ("measured", "unsettled") or one.role == "in_turn":
            return
        settings = frozenset(pair for pair in at.values.items() if pair[0] != "k")
        first = at.k > 0 and self._families.setdefault(settings, {}).setdefault(at.k, one) is one
        if at.drafter == "none":
            self._bases.setdefault(_beside(settings), one)
        for names, fastest in self._fastest.items():
            speed = _mean(one, names)
            if first and (at.drafter not in fastest or speed > fastest[at.drafter][0]):
                fastest[at.drafter] = speed, settings
            if one.state == "measured":
                self._best[names] = max(self._best[names], speed)

    def _promise(
        self, settings: _Settings, names: tuple[str, ...], best: float
    ) -> Iterator[tuple[float, Configuration, float]]:
        """What a family's curve promises over the best (log units), where, and how many decode tok/s that is."""
        base = self._bases.get(_beside(settings))
        family = {**self._families[settings], **({0: base} if base else {})}
        curve = _joined([curve_through(family, name) for name in names])
        drafting = family[max(family)].configuration
        knob = next((one for one in self._space.knobs if one.name == "k" and one.active(drafting.values)), None)
        if len(curve) < 2 or knob is None:
            return
        deepest, peak = max(curve), max(curve, key=lambda k: curve[k])
        allowed = [int(value) for value in knob.grid() if isinstance(value, int)]
        deeper = [k for k in allowed if k > deepest]
        near = min(allowed, key=lambda k: abs(k - peak))
        if peak == deepest and deeper:
            near = min(deeper, key=lambda k: abs(k - 2 * deepest))
        own = self._space.complete({**drafting.values, "k": near})
        gain = curve.get(near, curve[peak]) - best
        if own not in self._known and self._space.contains(own) and gain > (-_NEAR if near > deepest else 0):
            yield gain, own, math.exp(gain + best)


def curve_through(family: Mapping[int, TrialRecord], workload: str) -> KCurve:
    """The curve of one workload through these trials, by k."""
    found = []
    for k, one in family.items():
        windows = [each for each in one.windows if each.workload.name == workload]
        if speed := _speed(one, workload):
            found.append(_depth(k, speed, windows))
    return fit_k_curve(found)


def _depth(k: int, decode_tok_s: float, windows: Sequence[Measurement]) -> Depth:
    seen = [one.acceptance for one in windows if one.acceptance]
    if not k or not seen:
        return Depth(k=k, decode_tok_s=decode_tok_s)
    positions = [one.accepted_per_position for one in seen]
    longest = max(map(len, positions))
    return Depth(
        k=k,
        decode_tok_s=decode_tok_s,
        acceptance=Acceptance(
            drafts=sum(one.drafts for one in seen),
            draft_tokens=sum(one.draft_tokens for one in seen),
            accepted_tokens=sum(one.accepted_tokens for one in seen),
            accepted_per_position=tuple(sum(row[at] for row in positions if at < len(row)) for at in range(longest)),
        ),
        output_tokens=sum(one.total_output_tokens - one.completed for one in windows if one.acceptance),
    )


def _beside(settings: _Settings) -> _Settings:
    """What stands beside the drafter and its settings."""
    return frozenset(pair for pair in settings if pair[0].partition(".")[0] not in ("drafter", "k"))


def _joined(found: Sequence[KCurve]) -> dict[int, float]:
    """Log decode tok/s by k over workloads that count alike; empty where one of them has no curve."""
    curve = [{each.k: math.log(each.decode_tok_s) for each in one.predictions if each.k} for one in found]
    ks = set.intersection(*map(set, curve)) if curve else set()
    return {k: sum(one[k] for one in curve) / len(curve) for k in sorted(ks)}


def _mean(one: TrialRecord, names: Sequence[str]) -> float:
    found = [_speed(one, name) for name in names]
    return sum(map(math.log, found)) / len(names) if all(found) else -math.inf


def _speed(one: TrialRecord, workload: str) -> float:
    """Of all windows, so that it is there also where the trial has no estimate."""
    found = [each.metrics[METRIC] for each in one.windows if each.workload.name == workload and METRIC in each.metrics]
    return sum(found) / len(found) if found else 0.0
