"""Showing that a number did not move: equality within a margin, and controls that no knob can touch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from trackers.records import Check, Frozen

from .launch_noise import LaunchNoise, launches_for_equivalence, mean_log

__all__ = ["Equivalence", "control", "equivalent", "untouched"]

# Metrics a knob cannot touch with one stream and a cold cache: if they move, engine or machine did.
_UNTOUCHED: Mapping[str, frozenset[str]] = {
    "k": frozenset({"prefill_tok_s", "mean_ttft_ms"}),
    "gpu_memory_utilization": frozenset({"decode_tok_s", "prefill_tok_s", "mean_ttft_ms"}),
    "enable_prefix_caching": frozenset({"prefill_tok_s"}),
}


class Equivalence(Frozen):
    """Whether two things are equal within a relative margin: ratio a / b with its 90 % interval."""

    ratio: float
    low: float
    high: float
    margin: float
    verdict: Literal["unchanged", "changed", "cannot tell"]
    launches_to_decide: int | None = None


def equivalent(a: Sequence[float], b: Sequence[float], noise: LaunchNoise, margin: float) -> Equivalence:
    """Test launch means a and b for equality within a relative margin (TOST), noise being this metric's own.

    `unchanged` needs the 90 % interval inside the margin, `changed` a reading outside it that is no noise
    (99 %). That a difference was not shown is neither.
    """
    gap, se = mean_log(a) - mean_log(b), noise.sd * math.sqrt(1 / len(a) + 1 / len(b))
    half, bound = noise.t(0.90) * se, math.log1p(margin)
    verdict: Literal["unchanged", "changed", "cannot tell"] = "cannot tell"
    if abs(gap) + half < bound:
        verdict = "unchanged"
    elif abs(gap) > bound and abs(gap) > noise.t(0.99) * se:
        verdict = "changed"
    return Equivalence(
        ratio=math.exp(gap),
        low=math.exp(gap - half),
        high=math.exp(gap + half),
        margin=margin,
        verdict=verdict,
        launches_to_decide=launches_for_equivalence(bound, noise.sd) if verdict == "cannot tell" else None,
    )


def untouched(knobs: Iterable[str]) -> frozenset[str]:
    """Metrics that none of these knobs can touch (one stream, cold cache): the controls of a comparison."""
    sets = [_UNTOUCHED.get(knob, frozenset[str]()) for knob in knobs]
    return frozenset[str]().union(*sets[:1]).intersection(*sets)


def control(metric: str, a: Sequence[float], b: Sequence[float], noise: LaunchNoise, margin: float) -> Check:
    """Check a metric that was declared untouched: failed where it moved, None where that cannot be told."""
    found = equivalent(a, b, noise, margin)
    words = {"unchanged": "unchanged", "changed": "control failed", "cannot tell": "cannot tell"}
    passed = {"unchanged": True, "changed": False, "cannot tell": None}[found.verdict]
    interval = f"{found.low:.3f} to {found.high:.3f}"
    detail = f"{words[found.verdict]}: ratio {found.ratio:.3f} ({interval}), margin {margin:.1%}"
    return Check(name=f"control {metric}", passed=passed, detail=detail)
