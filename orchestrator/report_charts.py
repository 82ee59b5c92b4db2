"""What a report draws, as plain data: k curves, launch spread, trade-offs, peaks over engines, effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from trackers.records import Estimate, Frozen, TrialRecord

from .candidates import Target, candidates
from .compare import lens_of, peaks_of
from .library import Shelf
from .peak import Peak
from .peak_factors import Attributed
from .plan import TuningPlan
from .tables import value

__all__ = ["Bar", "Chart", "Series", "charts_of"]

_ROWS = 12  # configurations in one picture of launches


class Bar(Frozen):
    """One point with its interval: `at` is its place, a number or one of several names."""

    at: float | str
    value: float
    low: float | None = None
    high: float | None = None


class Series(Frozen):
    name: str
    bars: tuple[Bar, ...]


class Chart(Frozen):
    """`line` joins the points of a series, `dots` does not, `sideways` has names up the side.

    `says` tells the same in words, for whoever does not see it.
    """

    title: str
    says: str
    kind: Literal["line", "dots", "sideways"]
    x: str
    y: str
    series: tuple[Series, ...]
    zero: bool = False


def charts_of(have: Mapping[str, Shelf], plan: TuningPlan | None, effects: Sequence[Attributed]) -> Iterator[Chart]:
    """Every picture that has something to show; `have` is engine -> its study, in order, each with a peak."""
    latest = list(have)[-1]
    metric = next(iter(peaks_of(have[latest]).values())).target.metric
    found = [_history(have, name) for name in dict.fromkeys(n for s in have.values() for n in peaks_of(s))]
    workloads = dict.fromkeys(ref.name for s in have.values() for r in s.records for ref in r.workloads)
    for name in workloads:
        found.append(_k_curve(have, name, metric))
        found.append(_spread(latest, have[latest], name, metric, plan))
        found += [_two(have, name, metric, other) for other in ("prefill_tok_s", "median_ttft_ms")]
    found += [_effect_bars(one) for one in effects]
    yield from (chart for chart in found if any(one.bars for one in chart.series))


def _bar(at: float | str, one: Estimate) -> Bar:
    return Bar(at=at, value=one.value, low=one.value - one.half_width, high=one.value + one.half_width)


def _measured(shelf: Shelf) -> list[TrialRecord]:
    return [record for record in shelf.records if record.state == "measured" and record.role != "in_turn"]


def _any_peak(shelf: Shelf) -> Peak:
    return next(iter(peaks_of(shelf).values()))


def _history(have: Mapping[str, Shelf], target: str) -> Chart:
    found = [(name, peaks_of(shelf)[target]) for name, shelf in have.items() if target in peaks_of(shelf)]
    bars = tuple(_bar(engine, peak.estimate) for engine, peak in found)
    said = [f"{name} {value(peak.estimate)} with {peak.configuration.label()}" for name, peak in found]
    return Chart(
        title=f"Peaks over engines: {target}",
        says="; ".join(said),
        kind="line",
        x="",
        y=found[0][1].target.metric,
        series=(Series(name="peak", bars=bars),),
    )


def _k_curve(have: Mapping[str, Shelf], workload: str, metric: str) -> Chart:
    """The best number at each k, a line for each drafter and engine; nothing drafted is k = 0."""
    best: dict[str, dict[int, Estimate]] = {}
    for engine, shelf in have.items():
        sign = -1 if _any_peak(shelf).target.lower_is_better else 1
        for record in _measured(shelf):
            one, k = record.estimates.get(f"{workload}/{metric}"), record.configuration.k
            name = record.configuration.drafter + (f", {engine}" if len(have) > 1 else "")
            line = best.setdefault(name, {})
            if one and (k not in line or sign * line[k].value < sign * one.value):
                line[k] = one
    series = tuple(
        Series(name=name, bars=tuple(_bar(float(k), line[k]) for k in sorted(line))) for name, line in best.items()
    )
    said = [f"{s.name}: " + ", ".join(f"k={bar.at:g} {bar.value:.4g}" for bar in s.bars) for s in series]
    title = f"Draft tokens: {workload}"
    return Chart(title=title, says="; ".join(said), kind="line", x="k", y=metric, series=series)


def _spread(engine: str, shelf: Shelf, workload: str, metric: str, plan: TuningPlan | None) -> Chart:
    """Every launch of what was launched more than once: launch noise to be seen."""
    target = Target(name=workload, metric=metric, workloads=(workload,))
    times = Counter(r.configuration.key for r in _measured(shelf) for _ in r.launches)
    often = [r for r in _measured(shelf) if times[r.configuration.key] > 1]
    field = candidates(often, target, lens_of(plan, _any_peak(shelf)).rule)[:_ROWS]
    kinds = (("search", [c.searched for c in field]), ("launched afresh", [c.fresh for c in field]))
    labels = [c.configuration.label() for c in field]
    series = tuple(
        Series(
            name=name,
            bars=tuple(Bar(at=at, value=v) for at, row in zip(labels, rows, strict=True) for v in row),
        )
        for name, rows in kinds
    )
    said = [f"{c.configuration.label()}: " + ", ".join(f"{v:.4g}" for v in c.searched + c.fresh) for c in field]
    return Chart(
        title=f"Launch to launch: {workload} on {engine}",
        says="; ".join(said),
        kind="sideways",
        x=metric,
        y="",
        series=series,
    )


def _two(have: Mapping[str, Shelf], workload: str, metric: str, other: str) -> Chart:
    """Two numbers of every trial, an engine a series."""
    series = []
    for engine, shelf in have.items():
        both = [[r.estimates.get(f"{workload}/{name}") for name in (other, metric)] for r in _measured(shelf)]
        bars = tuple(_bar(a.value, b) for a, b in both if a and b and other != metric)
        series.append(Series(name=engine, bars=bars))
    return Chart(
        title=f"{metric} against {other}: {workload}",
        says="; ".join(f"{one.name}: {len(one.bars)} trials, all in the table below" for one in series),
        kind="dots",
        x=other,
        y=metric,
        series=tuple(series),
    )


def _effect_bars(one: Attributed) -> Chart:
    effects = [*(main.averaged for main in one.found.mains), *one.found.interactions] if one.found else []
    bars = tuple(Bar(at=e.name, value=100 * e.change, low=100 * e.low, high=100 * e.high) for e in effects)
    return Chart(
        title=f"What moved {one.target.name}: {one.old_peak.label()} to {one.new_peak.label()}",
        says="; ".join(map(str, effects)),
        kind="sideways",
        x="change of the number, %",
        y="",
        series=(Series(name="effect", bars=bars),),
        zero=True,
    )
