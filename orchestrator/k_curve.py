"""Decode speed at every number of draft tokens, from two launches and the acceptance of each position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trackers.records import Acceptance, Frozen

__all__ = ["Depth", "KCurve", "KPrediction", "fit_k_curve"]

_Array = NDArray[np.float64]
_DRIFT = 0.05  # relative difference of tokens a pass, at the same positions, that k itself may not make
_SPREAD = 0.05  # relative difference of drafted tokens under which no cost per token can be read
_DEAREST = 0.5  # target passes a draft token may cost before the fit is doubted


class Depth(Frozen):
    """What launches at one k gave on one workload: decode tok/s, and the draft counters of its windows.

    `output_tokens` (after each request's first, over the same windows) tells passes without a draft apart,
    which ngram and suffix have; without it every pass is taken to draft. k = 0 has no counters.
    """

    k: int
    decode_tok_s: float
    acceptance: Acceptance | None = None
    output_tokens: int | None = None


class KPrediction(Frozen):
    """`extrapolated`: outside the launched k, so that the cost there is an assumption."""

    k: int
    decode_tok_s: float
    measured_tok_s: float | None = None
    extrapolated: bool = False


class KCurve(Frozen):
    """A proposal for the next k, never a result: the launch decides.

    `cost_per_draft_token` and `overhead` are in target passes; the overhead is None where k = 0 was not
    launched, and the cost then counts in passes that contain it. `refused` says why there is no curve.
    """

    predictions: tuple[KPrediction, ...] = ()
    best_k: int | None = None
    cost_per_draft_token: float | None = None
    overhead: float | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


class _Seen(Frozen):
    """Per target pass of one k: acceptance of each position, and tokens drafted."""

    k: int
    tok_s: float
    rates: tuple[float, ...]
    drafted: float
    passes: float

    @property
    def pass_s(self) -> float:
        return (1 + sum(self.rates)) / self.tok_s

    def tokens(self, positions: int) -> tuple[float, float]:
        """Tokens a pass up to this position, and the standard error of that."""
        rates = np.array(self.rates[:positions])
        variance = ((2 * np.arange(positions) + 1) @ rates) - rates.sum() ** 2
        return 1 + float(rates.sum()), math.sqrt(max(0.0, float(variance)) / self.passes)


def fit_k_curve(depths: Sequence[Depth], launch_sd: float = 0.02) -> KCurve:
    """Predict decode tok/s at every k up to the last position known.

    Tokens a pass are E(k) = 1 + the sum of the first k acceptance rates; a pass lasts t0 (1 + o + c drafted).
    Two drafting depths give t0 (1 + o) and t0 c, k = 0 gives t0; one depth beside k = 0 takes o as 0.

    Args:
        depths: One entry a k, all of one stack, workload and drafter.
        launch_sd: Launch noise, log units: what a measured k may be off before it is noted.
    """
    base = next((d.decode_tok_s for d in depths if d.k == 0), None)
    drafting = sorted((d for d in depths if d.k > 0), key=lambda d: d.k)
    if refused := _unreadable(drafting, base):
        return KCurve(refused=refused)
    seen = [_see(d) for d in drafting]
    if refused := _inconsistent(seen):
        return KCurve(refused=refused)
    floor, cost, notes = _pass_cost(seen, base)
    if floor <= 0:
        return KCurve(refused="pass times do not fit a pass and a cost per draft token")
    t0 = 1 / base if base else floor
    ks = np.arange(1, max(len(s.rates) for s in seen) + 1)
    fill = np.interp(ks, [s.k for s in seen], [s.drafted / s.k for s in seen])
    curve = (1 + np.cumsum(_rates(seen))) / (floor + cost * fill * ks)
    measured = {d.k: d.decode_tok_s for d in depths}
    fewest = 0 if base else seen[0].k
    predictions = [KPrediction(k=0, decode_tok_s=base, measured_tok_s=base)] if base else []
    for k, tok_s in zip(ks.tolist(), curve.tolist(), strict=True):
        off = not fewest <= k <= seen[-1].k
        predictions.append(KPrediction(k=k, decode_tok_s=tok_s, measured_tok_s=measured.get(k), extrapolated=off))
    return KCurve(
        predictions=tuple(predictions),
        best_k=max(predictions, key=lambda p: p.decode_tok_s).k,
        cost_per_draft_token=cost / t0,
        overhead=floor / t0 - 1 if base else None,
        notes=(*notes, *_doubts(predictions, cost / t0, launch_sd)),
    )


def _unreadable(drafting: Sequence[Depth], base: float | None) -> str:
    if len({d.k for d in drafting}) < (1 if base else 2):
        return "it takes launches at two k, or at one k and without drafting"
    if len({d.k for d in drafting}) < len(drafting):
        return "two entries for one k: join their counters and speeds first"
    for d in drafting:
        if d.acceptance is None or not d.acceptance.drafts:
            return f"no draft counters at k = {d.k}"
        if len(d.acceptance.accepted_per_position) < d.k:
            known = len(d.acceptance.accepted_per_position)
            return f"acceptance of {known} positions is known at k = {d.k}"
    return ""


def _see(depth: Depth) -> _Seen:
    counters = depth.acceptance or Acceptance(drafts=1, draft_tokens=0, accepted_tokens=0)
    undrafted = (depth.output_tokens or 0) - counters.accepted_tokens - counters.drafts
    passes = counters.drafts + max(0, undrafted)
    return _Seen(
        k=depth.k,
        tok_s=depth.decode_tok_s,
        rates=tuple(accepted / passes for accepted in counters.accepted_per_position[: depth.k]),
        drafted=counters.draft_tokens / passes,
        passes=passes,
    )


def _inconsistent(seen: Sequence[_Seen]) -> str:
    """Why one depth's acceptance does not hold at another: then nothing follows for a third."""
    first, last = seen[0], seen[-1]
    for other in seen[1:]:
        (a, a_error), (b, b_error) = first.tokens(first.k), other.tokens(first.k)
        if abs(a - b) > max(_DRIFT * a, 3 * math.hypot(a_error, b_error)):
            texts = f"{a:.2f} tokens a pass at k = {first.k}, {b:.2f} at k = {other.k}"
            return f"acceptance depends on k itself: over the first {first.k} positions {texts}"
    if first is not last and last.drafted < (1 + _SPREAD) * first.drafted:
        return f"k = {last.k} drafts no more tokens than k = {first.k}: a cost per token cannot be read"
    return ""


def _rates(seen: Sequence[_Seen]) -> _Array:
    """Acceptance of each position, over all passes that drafted so far."""
    longest = max(len(s.rates) for s in seen)
    weights = np.array([[s.passes if j < len(s.rates) else 0.0 for s in seen] for j in range(longest)])
    rates = np.array([[s.rates[j] if j < len(s.rates) else 0.0 for s in seen] for j in range(longest)])
    return np.asarray((weights * rates).sum(axis=1) / weights.sum(axis=1))


def _pass_cost(seen: Sequence[_Seen], base: float | None) -> tuple[float, float, list[str]]:
    """Seconds of a drafting pass without its draft tokens, seconds of each token, and what was assumed."""
    times, drafted = np.array([s.pass_s for s in seen]), np.array([s.drafted for s in seen])
    if len(seen) == 1:
        floor = 1 / (base or math.inf)
        return (
            floor,
            max(0.0, (times[0] - floor) / drafted[0]),
            ["one k: the drafter's overhead is taken as 0"],
        )
    # Relative errors are alike at every k, so each time counts in its own unit.
    rows = np.column_stack([np.ones(len(seen)), drafted]) / times[:, None]
    floor, cost = np.linalg.lstsq(rows, np.ones(len(seen)), rcond=None)[0]
    if cost < 0:
        return float(times.mean()), 0.0, ["no cost of a draft token shows above launch noise"]
    return float(floor), float(cost), [] if base else ["k = 0 was not launched: overhead and pass are one"]


def _doubts(predictions: Sequence[KPrediction], cost: float, launch_sd: float) -> list[str]:
    notes = [f"a draft token seems to cost {cost:.2f} passes: doubt the fit"] if cost > _DEAREST else []
    off = {p.k: math.log(p.measured_tok_s / p.decode_tok_s) for p in predictions if p.measured_tok_s}
    far = {k: gap for k, gap in off.items() if abs(gap) > 3 * launch_sd}
    notes += [f"k = {k} measures {gap:+.1%} from the curve: something changes there" for k, gap in far.items()]
    return notes
