"""Which number of draft tokens to launch next: where the curve that a drafter's launches predict is highest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from search_spaces.configuration import Configuration, Scalar
from search_spaces.space import SearchSpace
from trackers.records import Acceptance, Measurement, TrialRecord

from .k_curve import Depth, KCurve, fit_k_curve

__all__ = ["METRIC", "curve_through", "k_probe"]

METRIC = "decode_tok_s"
_NEAR = 0.02  # how far under the best a curve may end that is still rising

_Family = dict[int, TrialRecord]
"""Trials that differ in k alone, by k; 0 is the one that drafts nothing beside the same other settings."""


def k_probe(
    records: Sequence[TrialRecord], space: SearchSpace, targets: Sequence[Sequence[str]]
) -> tuple[Configuration, float] | None:
    """The configuration that promises most, and the decode tok/s it promises; None where none promises more.

    A curve ends at the deepest launch. Where it is highest there, a launch twice as deep tells how it goes on.
    What is promised is to be measured: it is never a result. Trials that did not settle have their say in it.

    Args:
        records: Of one study.
        space: What may be chosen.
        targets: The workloads that are judged together, target by target.
    """
    measured = [one for one in records if one.state in ("measured", "unsettled")]
    known = {one.configuration for one in records}
    families = _families(measured)
    found: list[tuple[float, Configuration, float]] = []
    for names in targets if families else ():
        best = max((_mean(one, names) for one in measured if one.state == "measured"), default=-math.inf)
        for family in _fastest(families, names):
            curve = _joined([curve_through(family, name) for name in names])
            drafting = family[max(family)].configuration
            knob = next((one for one in space.knobs if one.name == "k" and one.active(drafting.values)), None)
            if len(curve) < 2 or knob is None:
                continue
            deepest, peak = max(curve), max(curve, key=lambda k: curve[k])
            allowed = [int(value) for value in knob.grid() if isinstance(value, int)]
            deeper = [k for k in allowed if k > deepest]
            near = min(allowed, key=lambda k: abs(k - peak))
            if peak == deepest and deeper:
                near = min(deeper, key=lambda k: abs(k - 2 * deepest))
            own = space.complete({**drafting.values, "k": near})
            gain = curve.get(near, curve[peak]) - best
            if own not in known and space.contains(own) and gain > (-_NEAR if near > deepest else 0):
                found.append((gain, own, math.exp(gain + best)))
    return max(found, key=lambda each: each[0])[1:] if found else None


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


def _families(measured: Sequence[TrialRecord]) -> list[_Family]:
    drafting: dict[frozenset[tuple[str, Scalar]], _Family] = {}
    bases: dict[frozenset[tuple[str, Scalar]], TrialRecord] = {}
    for one in measured:
        values = one.configuration.values.items()
        if one.configuration.k:
            same = frozenset(pair for pair in values if pair[0] != "k")
            drafting.setdefault(same, {}).setdefault(one.configuration.k, one)
        elif one.configuration.drafter == "none":
            bases.setdefault(_beside(values), one)
    for same, family in drafting.items():
        if base := bases.get(_beside(same)):
            family[0] = base
    return list(drafting.values())


def _beside(values: Iterable[tuple[str, Scalar]]) -> frozenset[tuple[str, Scalar]]:
    """What stands beside the drafter and its settings."""
    return frozenset(pair for pair in values if pair[0].partition(".")[0] not in ("drafter", "k"))


def _fastest(families: Sequence[_Family], names: Sequence[str]) -> list[_Family]:
    """Of each drafter the family with the fastest trial: a large study has hundreds, and a fit takes its time."""
    found: dict[str, tuple[float, _Family]] = {}
    for family in families:
        speed = max(_mean(one, names) for k, one in family.items() if k)
        drafter = family[max(family)].configuration.drafter
        if drafter not in found or speed > found[drafter][0]:
            found[drafter] = (speed, family)
    return [family for _, family in found.values()]


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
