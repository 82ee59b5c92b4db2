"""What a study looks for: from a trial's record to goals (larger is better, in logs) and limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trackers.records import TrialRecord

from .candidates import Target
from .plan import Objective

__all__ = ["goal_names", "goals", "limits", "targets"]


def goal_names(objective: Objective, workloads: Sequence[str]) -> tuple[str, ...]:
    """One name per goal: a workload each, or the one number they are joined to."""
    return tuple(workloads) if objective.over == "per_workload" else (objective.over,)


def goals(record: TrialRecord, objective: Objective, workloads: Sequence[str]) -> tuple[float, ...] | None:
    """The values told to the searcher: log of each goal, flipped where less is better; None without one."""
    logs = [_log(record, objective, name) for name in workloads]
    if record.state != "measured" or any(value is None for value in logs):
        return None
    return _join(objective, [value for value in logs if value is not None], workloads)


def targets(objective: Objective, workloads: Sequence[str]) -> tuple[Target, ...]:
    """What peaks are declared of: each workload, or the one number they are joined to."""
    lower = objective.goal == "minimize"
    if objective.over == "per_workload":
        return tuple(
            Target(name=name, metric=objective.metric, workloads=(name,), lower_is_better=lower) for name in workloads
        )
    joined = Target(
        name=objective.over,
        metric=objective.metric,
        workloads=tuple(workloads),
        lower_is_better=lower,
        join="worst" if objective.over == "robust" else "mean",
        weights=tuple(objective.weights.get(name, 0.0) for name in workloads) if objective.weights else (),
    )
    return (joined,)


def limits(record: TrialRecord, objective: Objective, workloads: Sequence[str]) -> dict[str, float]:
    """Each limit as a constraint: met at or under zero, in units of the bound; unseen metrics are not met."""
    found: dict[str, float] = {}
    for limit in objective.limits:
        values = [record.estimates.get(f"{name}/{limit.metric}") for name in workloads]
        seen = [estimate.value for estimate in values if estimate is not None]
        if not seen:
            found[str(limit)] = 1.0
        else:
            worst = max(limit.excess(value) for value in seen)
            found[str(limit)] = worst
    return found


def _join(objective: Objective, logs: Sequence[float], workloads: Sequence[str]) -> tuple[float, ...]:
    if objective.over == "per_workload":
        return tuple(logs)
    if objective.over == "robust":
        return (min(logs),)
    weights = [objective.weights.get(name, 0.0 if objective.weights else 1.0) for name in workloads]
    return (sum(weight * value for weight, value in zip(weights, logs, strict=True)) / sum(weights),)


def _sign(objective: Objective) -> int:
    return 1 if objective.goal == "maximize" else -1


def _log(record: TrialRecord, objective: Objective, workload: str) -> float | None:
    estimate = record.estimates.get(f"{workload}/{objective.metric}")
    return _sign(objective) * math.log(estimate.value) if estimate and estimate.value > 0 else None
