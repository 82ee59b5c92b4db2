"""What was measured on one stack, gathered by configuration as launch means for one target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from search_spaces.configuration import Configuration
from trackers.records import Ending, Estimate, Frozen, TrialRecord

from .launch_noise import LaunchNoise, disagree, logs, mean_log, pooled
from .stability import StabilityRule, in_launch_variance, judge_windows, launch_values, worst_ending

__all__ = ["Candidate", "Target", "candidates", "noise_of"]


class Target(Frozen):
    """What a peak is a peak of: a metric on one workload, or over several their geometric mean or the worst.

    `weights` go with `workloads`; none means all alike.
    """

    name: str
    metric: str
    workloads: tuple[str, ...]
    lower_is_better: bool = False
    join: Literal["mean", "worst"] = "mean"
    weights: tuple[float, ...] = ()

    def share(self, values: Sequence[float]) -> NDArray[np.float64]:
        """What each workload's value (metric's unit) weighs in the joined one; sums to 1."""
        if self.join == "worst":
            worst = np.argmax(values) if self.lower_is_better else np.argmin(values)
            return np.asarray(np.arange(len(values)) == worst, dtype=np.float64)
        weights = np.asarray(self.weights or [1.0] * len(values))
        return np.asarray(weights / weights.sum())

    def score(self, launches: Sequence[float]) -> float:
        """Mean log of launch means, higher is better."""
        return mean_log(launches) * (-1 if self.lower_is_better else 1)


class Candidate(Frozen):
    """One configuration's launch means for a target, in its unit: those of the search and the fresh ones.

    The search picked its best by its own luck, so only `fresh` launches (the finals) speak where there
    are any. `error` is the in-launch sd of a launch's mean (log units), `veto` why it cannot be a peak, `left_out`
    what is said of fresh launches that did not settle and are not among them. `restated`: the variance, in those of one
    launch, of the factor that brought its values to another day.
    """

    configuration: Configuration
    searched: tuple[float, ...] = ()
    fresh: tuple[float, ...] = ()
    windows: int = 0
    error: float = 0.0
    ending: Ending = "stable"
    veto: str = ""
    left_out: str = ""
    restated: float = 0.0

    @property
    def evidence(self) -> tuple[float, ...]:
        return self.fresh or self.searched

    def estimate(self, noise: LaunchNoise) -> Estimate:
        """The number in the metric's unit, +-1.96 sqrt((sL^2 + in-launch error^2) / launches + sL^2 restated)."""
        n, value = len(self.evidence), math.exp(mean_log(self.evidence))
        half = 1.96 * math.sqrt((noise.sd**2 + self.error**2) / n + noise.sd**2 * self.restated)
        return Estimate(
            value=value,
            half_width=value * math.expm1(half),
            launches=n,
            windows=self.windows,
            ending=self.ending,
        )


class _Scored(NamedTuple):
    score: float
    variance: float
    windows: int
    ending: Ending


def candidates(
    records: Sequence[TrialRecord], target: Target, rule: StabilityRule, *, in_turn: bool = False
) -> tuple[Candidate, ...]:
    """Gather the records of one stack by configuration, in the order first seen.

    Only `measured` records give values: those of its own study, or those taken in turn with another stack. A
    finalist that fails or is disproved when launched afresh vetoes its configuration, unless its environment was to
    blame; so does one that does not settle, unless at least two of its launches did for each that did not: these
    are `left_out`.
    """
    found: dict[Configuration, tuple[list[_Scored], list[_Scored]]] = {}
    vetoes: dict[Configuration, str] = {}
    unsettled: dict[Configuration, list[str]] = {}
    for record in records:
        if (record.role == "in_turn") is not in_turn:
            continue
        if record.state == "measured":
            scored = found.setdefault(record.configuration, ([], []))
            scored[record.role == "finalist"].extend(_scores(record, target, rule))
        elif record.role == "finalist" and record.state == "unsettled":
            unsettled.setdefault(record.configuration, []).append(_told(record))
        elif record.role == "finalist" and _against(record):
            vetoes[record.configuration] = _told(record)
    left_out: dict[Configuration, str] = {}
    for configuration, told in unsettled.items():
        # One that jumps or drifts may have met a busy machine; more than a third are the configuration's.
        settled = len(found.get(configuration, ((), ()))[1])
        if settled < 2 * len(told):
            vetoes.setdefault(configuration, told[-1])
        else:
            left_out[configuration] = f"{len(told)} of {settled + len(told)} fresh launches: {told[-1]}"
    return tuple(
        _candidate(configuration, searched, fresh).model_copy(
            update={"veto": vetoes.get(configuration, ""), "left_out": left_out.get(configuration, "")}
        )
        for configuration, (searched, fresh) in found.items()
        if searched or fresh
    )


def _against(record: TrialRecord) -> bool:
    if record.state == "engine_failed":
        return record.failure is None or record.failure.kind == "infeasible"
    return record.state == "disproved"


def _told(record: TrialRecord) -> str:
    return f"{record.state} when launched afresh: {record.reason}"


def _candidate(configuration: Configuration, searched: Sequence[_Scored], fresh: Sequence[_Scored]) -> Candidate:
    speaking = fresh or searched
    return Candidate(
        configuration=configuration,
        searched=tuple(x.score for x in searched),
        fresh=tuple(x.score for x in fresh),
        windows=sum(x.windows for x in speaking),
        error=math.sqrt(np.mean([x.variance for x in speaking])),
        ending=worst_ending([x.ending for x in speaking]),
    )


def _scores(record: TrialRecord, target: Target, rule: StabilityRule) -> list[_Scored]:
    """One score for each launch that has windows of every workload of the target."""
    boards = [launch_values(record.windows, workload, target.metric) for workload in target.workloads]
    scored = []
    for launch in sorted(set.intersection(*(set(board) for board in boards))):
        values = [board[launch] for board in boards]
        verdicts = [judge_windows(windows, rule) for windows in values]
        errors = [in_launch_variance([x], [v]) / len(v.used) for x, v in zip(values, verdicts, strict=True)]
        share = target.share([v.value for v in verdicts])
        score = math.exp(share @ logs([v.value for v in verdicts]))
        ending = worst_ending([v.ending or "capped" for v in verdicts])
        windows = sum(len(v.used) for v in verdicts)
        scored.append(_Scored(score, float(share**2 @ errors), windows, ending))
    return scored


def noise_of(field: Sequence[Candidate], prior_sd: float, prior_dof: float = 4.0) -> LaunchNoise:
    """The launch noise of these candidates, pooled over those launched more than once.

    Search and finals make two groups: what the search picked was lucky in it, which is no launch noise. Where
    they lie further apart than luck could put them they are one, as then it is.
    """
    floor = math.sqrt(np.mean([c.error**2 for c in field])) if field else 0.0
    apart = [(c.searched, c.fresh) for c in field]
    noise = pooled(prior_sd, [group for pair in apart for group in pair], prior_dof, floor)
    joined = [[s + f] if s and f and disagree(s + f, noise.sd) else [s, f] for s, f in apart]
    return pooled(prior_sd, [group for groups in joined for group in groups], prior_dof, floor)
