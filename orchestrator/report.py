"""Report: one model of a plan's studies, from their records alone, that feeds terminal and HTML alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from trackers.records import Frozen, TrialRecord

from .audit_facts import AuditRow
from .candidates import Target
from .compare import Compared, compare, lens_of, peaks_of
from .compare_text import attributed_text, compared_text
from .errors import PlanError
from .export import as_line, launches_said, serving
from .library import Shelf
from .neighbours import neighbours_said
from .peak import Peak
from .peak_factors import Attributed, Ends, attributed
from .plan import TuningPlan
from .report_charts import Chart, charts_of
from .tables import WIDTH, ratio, value

__all__ = ["Answer", "Report", "build_report", "report_text"]


class Answer(Frozen):
    """One peak as four answers: what to run, how much better, how sure, on what evidence; and a retune's advice."""

    engine: str
    stack: str
    target: Target
    peak: Peak
    command: str
    better: str
    sure: str
    evidence: str
    advice: str = ""


class Report(Frozen):
    """All that is told of a plan, the latest engine's answers first; no number that is not in the records."""

    plan: str
    model: str
    machine: str
    simulated: bool
    at: float
    answers: tuple[Answer, ...]
    moves: tuple[Compared, ...]
    effects: tuple[Attributed, ...]
    charts: tuple[Chart, ...]
    audits: dict[str, tuple[AuditRow, ...]]
    failures: dict[str, int]
    stacks: dict[str, dict[str, str]]
    trials: dict[str, tuple[TrialRecord, ...]]
    metric: str


def build_report(shelves: Sequence[Shelf], plan: TuningPlan | None) -> Report:
    """Of all studies of a plan, in the order in which they were opened.

    Raises:
        PlanError: None of them has a peak.
    """
    have = {_engine(shelf): shelf for shelf in shelves if peaks_of(shelf)}
    named = {_engine(shelf): shelf for shelf in shelves} | have
    if not have:
        hint = "`repeak show PLAN` tells what became of its trials."
        raise PlanError("No study of this plan has a peak: there is nothing to report yet.", hint)
    order = list(have.values())
    first = order[0].opened
    peaks = peaks_of(order[-1])
    metric = next(iter(peaks.values())).target.metric
    everything = [record for shelf in order for record in shelf.records]
    moves = tuple(compare(old, new, plan) for old, new in pairwise(order))
    effects = tuple(_effects(order, plan)) if len(order) > 1 else ()
    return Report(
        plan=first.plan,
        model=first.model,
        machine=first.machine,
        simulated=any("simulated" in shelf.opened.fingerprint.items.get("vllm", "") for shelf in order),
        at=max(shelf.closed.at for shelf in order if shelf.closed),
        answers=tuple(
            _answer(shelf, peak, plan, neighbours_said(shelf.records, everything, peak.target.metric))
            for shelf in order[::-1]
            for peak in peaks_of(shelf).values()
        ),
        moves=moves,
        effects=effects,
        charts=tuple(charts_of(have, plan, effects)),
        audits=dict(_audits(have)),
        failures=_failures(named),
        stacks={engine: shelf.opened.fingerprint.items for engine, shelf in named.items()},
        trials={
            engine: tuple(r.model_copy(update={"windows": ()}) for r in shelf.records)
            for engine, shelf in named.items()
        },
        metric=metric,
    )


def _engine(shelf: Shelf) -> str:
    return shelf.opened.facts.get("engine", shelf.opened.fingerprint.engine)


def _effects(order: Sequence[Shelf], plan: TuningPlan | None) -> Iterator[Attributed]:
    old, new = order[0], order[-1]
    at = {_engine(old): old, _engine(new): new}
    for name, peak in peaks_of(old).items():
        after = peaks_of(new).get(name)
        if after is not None and after.configuration != peak.configuration:
            ends = Ends(old=_engine(old), new=_engine(new), old_peak=peak, new_peak=after)
            found = attributed(ends, ends.design(), lambda one: at[one].records, lens_of(plan, after))
            if found.found is not None:
                yield found


def _answer(shelf: Shelf, peak: Peak, plan: TuningPlan | None, neighbours: str) -> Answer:
    try:
        command = as_line(serving(shelf, peak, plan))
    except (PlanError, IndexError, ValueError) as error:
        command = f"# {error}\n"
    estimate, gain = peak.estimate, peak.better_than_incumbent
    better = "No incumbent was measured: there is nothing to compare with."
    if peak.verdict == "incumbent stays":
        better = "Keep what you run: nothing is shown to beat it."
    elif gain is not None:
        better = f"{ratio(gain)} of what you run now ({gain.verdict})."
    sure = f"{value(estimate)} {peak.target.metric}: 95 % interval over {launches_said(estimate.launches)}"
    sure += f"; launches differ by {peak.noise.sd:.1%} from one to the next."
    if not peak.confirmed:
        sure += " Unconfirmed: no fresh launch speaks for it yet."
    if peak.ties:
        sure += f" Cannot be told from {', '.join(one.label() for one in peak.ties)}."
    if peak.open:
        sure += f" Not launched afresh and not ruled out: {', '.join(one.label() for one in peak.open)}."
    for what, told in (("Set aside", peak.set_aside), ("Left out of", peak.left_out)):
        sure += "".join(f" {what} {label}: {why}." for label, why in told.items())
    states = Counter(record.state for record in shelf.records)
    evidence = ", ".join(f"{count} {state}" for state, count in states.items())
    evidence = f"{sum(states.values())} trials ({evidence}), {estimate.windows} windows behind this number"
    behind = [f"{one.configuration.label()} at {ratio(one.against_peak)}" for one in peak.runners_up[:3]]
    return Answer(
        engine=_engine(shelf),
        stack=shelf.opened.fingerprint.key,
        target=peak.target,
        peak=peak,
        command=command,
        better=better,
        sure=sure,
        evidence=" ".join([evidence + (f"; behind it: {'; '.join(behind)}." if behind else "."), neighbours]).strip(),
        advice=(shelf.closed.facts if shelf.closed else {}).get(f"advice.{peak.target.name}", ""),
    )


def _audits(have: dict[str, Shelf]) -> Iterator[tuple[str, tuple[AuditRow, ...]]]:
    """What the closing's audit file holds; a file that is gone or foreign is passed over."""
    for engine, shelf in have.items():
        file = Path((shelf.closed.files if shelf.closed else {}).get("audit.json", "/nonexistent"))
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))
            for target, found in rows.items():
                yield f"{target} on {engine}", tuple(AuditRow.model_validate(row) for row in found)
        except (OSError, ValueError, AttributeError):
            continue


def _failures(named: dict[str, Shelf]) -> dict[str, int]:
    """Why trials have no number, told as it was the first time, and how often."""
    counts: Counter[str] = Counter()
    told: dict[str, str] = {}
    for engine, shelf in named.items():
        for record in shelf.records:
            if record.state != "measured":
                kind = f"{engine}: {record.state}: {record.reason.partition(':')[0]}"
                counts[kind] += 1
                told.setdefault(kind, f"{engine}: {record.state}: {record.reason}")
    return {told[kind]: count for kind, count in counts.most_common()}


def report_text(report: Report) -> str:
    """For a terminal of 80 columns: answers, then what moved, then what failed."""
    lines = [f"{report.plan}: {report.model} on {report.machine}"]
    lines += ["REHEARSAL: simulated engines, these numbers mean nothing"] if report.simulated else []
    for one in report.answers:
        head = f"{one.target.name} on {one.engine} (stack {one.stack}): {one.peak.configuration.label()}"
        lines += ["", *wrap(head, WIDTH, subsequent_indent="  ")]
        for said in filter(None, (one.advice, one.better, one.sure, one.evidence)):
            lines += wrap(said, WIDTH, initial_indent="  ", subsequent_indent="    ")
        lines += [f"  {line}" for line in one.command.splitlines()]
    lines += [f"\n{compared_text(move)}" for move in report.moves]
    lines += [attributed_text(effect) for effect in report.effects]
    if report.failures:
        lines.append("Without a number")
        for why, count in report.failures.items():
            lines += wrap(f"{count} x {why}", WIDTH, initial_indent="  ", subsequent_indent="    ")[:4]
    return "\n".join(lines).rstrip() + "\n"
