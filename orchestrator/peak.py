"""The best configuration of one stack, so declared that neither noise nor choosing makes a false winner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Literal

from pydantic import Field

from search_spaces.configuration import Configuration, Scalar
from trackers.records import Estimate, Frozen

from .candidates import Candidate, Target
from .launch_noise import LaunchNoise, disagree, launches_for_gap, mean_log

__all__ = [
    "Comparison",
    "Peak",
    "RunnerUp",
    "beats",
    "contenders",
    "declare_peak",
    "finalist_order",
    "simplicity",
]

PeakVerdict = Literal["beats the incumbent", "incumbent stays", "no incumbent measured", "unconfirmed"]
_ZONE = 1.5  # indifference zones under the best reading within which a configuration is relaunched


class Comparison(Frozen):
    """One configuration against another: ratio of the metric with its interval, and what may be said.

    `launches_to_decide` is per side and in total; None where the verdict is in.
    """

    ratio: float
    low: float
    high: float
    verdict: Literal["better", "worse", "same", "cannot tell"]
    launches_to_decide: int | None = None
    note: str = ""


class RunnerUp(Frozen):
    configuration: Configuration
    against_peak: Comparison


class Peak(Frozen):
    """What one stack does best for one target, and everything the claim rests on.

    `ties` cannot be told apart from it; `open` were not launched afresh, and what the search read of them does not
    rule them out; `set_aside` could not be judged (configuration label -> why), of what was judged some launches
    were `left_out` (likewise);
    `better_than_incumbent` is None where the peak is the incumbent or none was measured.
    """

    target: Target
    configuration: Configuration
    estimate: Estimate
    verdict: PeakVerdict
    confirmed: bool
    ties: tuple[Configuration, ...] = ()
    open: tuple[Configuration, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()
    better_than_incumbent: Comparison | None = None
    set_aside: dict[str, str] = Field(default_factory=dict)
    left_out: dict[str, str] = Field(default_factory=dict)
    noise: LaunchNoise
    delta: float


def beats(
    a: Sequence[float],
    b: Sequence[float],
    noise: LaunchNoise,
    delta: float,
    *,
    lower_is_better: bool = False,
    comparisons: int = 1,
    restated: float = 0.0,
) -> Comparison:
    """Compare launch means of two configurations (metric's unit): significant and large enough, or not told.

    `better` needs a 95 % interval on the log ratio, with the pooled launch noise, that leaves out zero and
    a reading beyond the indifference zone `delta` (relative). With `comparisons` made from one choice the
    interval is Bonferroni's. `same` needs the 90 % interval within the zone. Launches of one
    configuration that disagree among themselves decide nothing. `restated` is the variance, in those of one launch, of
    what a side's values were multiplied by.
    """
    gap = mean_log(a) - mean_log(b)
    se, zone = noise.sd * math.sqrt(1 / len(a) + 1 / len(b) + restated), math.log1p(delta)
    half = noise.t(1 - 0.05 / max(1, comparisons)) * se
    verdict: Literal["better", "worse", "same", "cannot tell"] = "cannot tell"
    split = disagree(a, noise.sd) or disagree(b, noise.sd)
    if not split and abs(gap) >= zone and abs(gap) > half:
        verdict = "better" if (gap > 0) != lower_is_better else "worse"
    elif not split and abs(gap) + noise.t(0.90) * se < zone:
        verdict = "same"
    wanted = max(launches_for_gap(max(abs(gap), zone), noise.sd), min(len(a), len(b)) + 1)
    return Comparison(
        ratio=math.exp(gap),
        low=math.exp(gap - half),
        high=math.exp(gap + half),
        verdict=verdict,
        launches_to_decide=wanted if verdict == "cannot tell" else None,
        note="launches of one configuration disagree" if split else "",
    )


def contenders(
    boards: Sequence[tuple[Target, Sequence[Candidate]]],
    delta: float,
    at_most: int = 3,
    incumbent: Configuration | None = None,
) -> tuple[Configuration, ...]:
    """The configurations worth launching afresh: within 1.5 delta of the best, best first, at most so many.

    With several boards (one a workload) each gives its best in turn, in their order. The incumbent, where it
    was measured, comes on top: it is what the others are compared with.
    """
    lists = []
    for target, field in boards:
        standing = sorted((c for c in field if not c.veto), key=lambda c: -target.score(c.evidence))
        best = target.score(standing[0].evidence) if standing else 0.0
        zone = best - _ZONE * math.log1p(delta)
        lists.append([c.configuration for c in standing if target.score(c.evidence) >= zone])
    turns = chain.from_iterable(zip_longest(*lists))
    chosen = list(dict.fromkeys(c for c in turns if c is not None))[:at_most]
    measured = {c.configuration for _, field in boards for c in field}
    return tuple(dict.fromkeys([*chosen, *([incumbent] if incumbent in measured else [])]))


def finalist_order(finalists: Sequence[Configuration], launches: int) -> tuple[Configuration, ...]:
    """Launch order in which a drift of the machine falls on all alike: there and back (ABBA)."""
    rounds = [finalists[:: 1 if turn % 2 == 0 else -1] for turn in range(launches)]
    return tuple(chain.from_iterable(rounds))


def simplicity(configuration: Configuration, defaults: Mapping[str, Scalar]) -> tuple[int, int, int]:
    """Sorts the simplest first: no drafter, fewer draft tokens, fewer settings off their default."""
    others = {n: v for n, v in configuration.values.items() if n.split(".")[0] not in ("drafter", "k")}
    changed = sum(n not in defaults or defaults[n] != v for n, v in others.items())
    return int(configuration.drafter != "none"), configuration.k, changed


def declare_peak(
    field: Sequence[Candidate],
    target: Target,
    noise: LaunchNoise,
    delta: float,
    *,
    incumbent: Configuration | None = None,
    defaults: Mapping[str, Scalar] | None = None,
) -> Peak | None:
    """Declare the peak of one stack; None where nothing can be one.

    All are compared at once (Bonferroni over the field), on fresh launches where there are any. The
    incumbent stays unless the best is shown to beat it. Without it, or past it, the simplest wins among
    those within `delta` of the best that cannot be told from it (and, past it, beat it themselves).
    """
    standing, aside = _stand(field, noise, incumbent)
    confirmed = any(c.fresh for c in standing)
    judged = [c for c in standing if c.fresh or not confirmed or c.configuration == incumbent]
    if not judged:
        return None
    judged.sort(key=lambda c: -target.score(c.evidence))
    among = {c.configuration for c in judged}
    unranked = [c for c in standing if c.configuration not in among]

    def against(a: Candidate, b: Candidate) -> Comparison:
        lower, rivals = target.lower_is_better, len(judged if b.configuration in among else standing) - 1
        return beats(a.evidence, b.evidence, noise, delta, lower_is_better=lower, comparisons=rivals)

    def runner_up(c: Candidate, peak: Candidate) -> RunnerUp:
        return RunnerUp(configuration=c.configuration, against_peak=against(c, peak))

    best, old = judged[0], next((c for c in judged if c.configuration == incumbent), None)
    level = [best, *(c for c in judged[1:] if against(best, c).verdict != "better")]
    zone = target.score(best.evidence) - math.log1p(delta)
    near = [c for c in level[1:] if target.score(c.evidence) >= zone]
    shown = [best, *(c for c in near if old is None or against(c, old).verdict == "better")]
    simplest = min(shown, key=lambda c: simplicity(c.configuration, defaults or {}))
    chosen = old if old is not None and old in level else simplest
    return Peak(
        target=target,
        configuration=chosen.configuration,
        estimate=chosen.estimate(noise),
        verdict=_verdict(confirmed, chosen, old),
        confirmed=confirmed,
        ties=tuple(c.configuration for c in level if c is not chosen),
        open=tuple(c.configuration for c in unranked if against(chosen, c).verdict != "better"),
        runners_up=tuple(runner_up(c, chosen) for c in judged if c is not chosen),
        better_than_incumbent=None if old is None or chosen is old else against(chosen, old),
        set_aside=aside,
        left_out={c.configuration.label(): c.left_out for c in judged if c.left_out},
        noise=noise,
        delta=delta,
    )


def _stand(
    field: Sequence[Candidate], noise: LaunchNoise, incumbent: Configuration | None
) -> tuple[list[Candidate], dict[str, str]]:
    """Who can be a peak, and why the others cannot. The incumbent is kept to be compared with."""
    aside = {c.configuration.label(): c.veto for c in field if c.veto}
    standing = []
    for c in field:
        if c.configuration != incumbent and not c.veto and disagree(c.evidence, noise.sd):
            aside[c.configuration.label()] = "its launches disagree beyond launch noise: two modes?"
        elif not c.veto:
            standing.append(c)
    return standing, aside


def _verdict(confirmed: bool, chosen: Candidate, old: Candidate | None) -> PeakVerdict:
    if not confirmed:
        return "unconfirmed"
    if old is None:
        return "no incumbent measured"
    return "incumbent stays" if chosen is old else "beats the incumbent"
