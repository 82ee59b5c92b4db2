"""The instrument alone: windows of a workload against any server, until they are stable or named why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from trackers.records import Acceptance, Check, Ending, Frozen, Measurement

from .errors import MeasurementFailed
from .evidence import ServerExpectation
from .load_client import bench_json, measure_window
from .stability import StabilityRule, judge_windows
from .workload import Workload

__all__ = ["Measured", "measure_url"]

_UNSCORED = 6


class Measured(Frozen):
    """Windows of one workload; `counted` are those that the number rests on, `reason` why they ended.

    `ending` is `failed` where a proof failed or the server could not be asked any more.
    """

    windows: tuple[Measurement, ...]
    counted: tuple[int, ...]
    ending: Ending
    reason: str

    @property
    def checks(self) -> tuple[Check, ...]:
        """Each proof once: failed where it failed in any window, unseen where it never could be seen."""
        order = {False: 0, True: 1, None: 2}
        every = sorted((check for one in self.windows for check in one.checks), key=lambda c: order[c.passed])
        names = dict.fromkeys(check.name for one in self.windows for check in one.checks)
        return tuple(next(check for check in every if check.name == name) for name in names)

    @property
    def pooled(self) -> Measurement:
        """One measurement over the counted windows: counts and times summed, metrics averaged."""
        used = [self.windows[number] for number in self.counted]
        shared = set.intersection(*(set(one.metrics) for one in used))
        drafted = [one.acceptance for one in used if one.acceptance is not None]
        summed = ("duration_s", "completed", "failed", "total_input_tokens", "total_output_tokens")
        changes: dict[str, Any] = {name: sum(getattr(one, name) for one in used) for name in summed}
        changes["metrics"] = {name: fmean(one.metrics[name] for one in used) for name in sorted(shared)}
        return used[0].model_copy(update=changes | {"acceptance": _joined(drafted), "checks": self.checks})

    def as_json(self) -> dict[str, Any]:
        """As `vllm bench serve` saves a result, with what stands behind it."""
        kept = {"ending": self.ending, "reason": self.reason, "windows": len(self.counted)}
        checks = [check.model_dump() for check in self.checks]
        return {
            **bench_json(self.pooled),
            **kept,
            "checks": checks,
            "seed": self.windows[0].extra.get("seed"),
        }


def _joined(drafted: Sequence[Acceptance]) -> Acceptance | None:
    if not drafted:
        return None
    positions = zip(*(one.accepted_per_position for one in drafted), strict=False)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in drafted) for name in names}
    return Acceptance(**sums, accepted_per_position=tuple(map(sum, positions)))


def measure_url(
    url: str,
    workload: Workload,
    *,
    model: str,
    rule: StabilityRule,
    metric: str = "decode_tok_s",
    api_key: str | None = None,
    timeout_s: float = 600.0,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measure windows until `metric` settles, a proof fails, or the server cannot be asked any more.

    Raises:
        MeasurementFailed: Nothing at all was measured.
    """
    windows: list[Measurement] = []
    number = unscored = 0
    while True:
        try:
            found = measure_window(
                url, workload, model=model, window=number, server=ServerExpectation(model=model),
                api_key=api_key, timeout_s=timeout_s, stall_s=min(120.0, timeout_s),
            )  # fmt: skip
        except MeasurementFailed as error:
            if not windows:
                raise
            return _ended(windows, "failed", error.message)
        number += 1
        failed = [check.name for check in found.disproved]
        if failed == ["client_bound"] and unscored < _UNSCORED:
            unscored += 1
            continue
        windows.append(found)
        if failed or found.metrics.get(metric, 0.0) <= 0:
            return _ended(windows, "failed", ", ".join(failed) or f"no {metric} was measured")
        verdict = judge_windows([one.metrics[metric] for one in windows], rule)
        say(f"window {number}: {metric} {found.metrics[metric]:.4g}")
        if verdict.decision == "settled":
            counted = tuple(verdict.used)
            ending = verdict.ending or "capped"
            return Measured(windows=tuple(windows), counted=counted, ending=ending, reason=verdict.reason)


def _ended(windows: Sequence[Measurement], ending: Ending, reason: str) -> Measured:
    whole = tuple(number for number, one in enumerate(windows) if one.completed)
    counted = whole or tuple(range(len(windows)))
    return Measured(windows=tuple(windows), counted=counted, ending=ending, reason=reason)
