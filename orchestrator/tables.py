"""Tables for a terminal of 80 columns: no number without its interval, its launches and its stack."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from search_spaces.configuration import Configuration, Scalar
from trackers.records import Estimate, StackFingerprint, TrialRecord

from .library import Shelf

if TYPE_CHECKING:  # they bring arithmetic that no table of records needs
    from .peak import Comparison, Peak
    from .shift import PeakShift

__all__ = ["WIDTH", "closing", "columns", "drawn", "history", "ratio", "trial_page", "trials", "value"]

WIDTH = 80
_SHOWN = (
    "decode_tok_s",
    "prefill_tok_s",
    "median_ttft_ms",
    "median_tpot_ms",
    "acceptance_length",
    "passes_s",
)


def value(estimate: Estimate) -> str:
    """A number as it may be shown: with its 95 % half-width."""
    return f"{estimate.value:.4g} ± {estimate.half_width:.2g}"


def ratio(comparison: Comparison) -> str:
    return f"{comparison.ratio:.2f}x ({comparison.low:.2f} to {comparison.high:.2f})"


def closing(
    peaks: Mapping[str, Mapping[str, Peak]],
    shifts: Sequence[PeakShift],
    stacks: Mapping[str, StackFingerprint],
    ended: Mapping[str, str],
) -> str:
    """What a tune found: a block per target with a row per engine, then whether the peak moved."""
    names = list(dict.fromkeys(name for by_target in peaks.values() for name in by_target))
    blocks = [_target(name, peaks, stacks) for name in names]
    if not names:
        blocks.append("No peak: nothing was measured.\n")
    moved = [_shift(shift) for shift in shifts]
    if moved:
        blocks.append("Between the engines\n" + "\n".join(moved) + "\n")
    why = [f"  {engine}: {reason}" for engine, reason in ended.items()]
    if why:
        blocks.append("The searches ended\n" + "\n".join(why) + "\n")
    return "\n".join(blocks)


def _target(name: str, peaks: Mapping[str, Mapping[str, Peak]], stacks: Mapping[str, StackFingerprint]) -> str:
    first = next(by_target[name] for by_target in peaks.values() if name in by_target)
    held = _common([one for by_target in peaks.values() if name in by_target for one in _named(by_target[name])])
    table = columns("engine", "peak", first.target.metric, "launches", "stack")
    notes = []
    for engine, by_target in peaks.items():
        peak = by_target.get(name)
        stack = stacks[engine]
        if peak is None:
            table.add_row(engine, "no peak", "", "", stack.key)
            continue
        estimate = peak.estimate
        label = peak.configuration.label(held)
        table.add_row(engine, label, value(estimate), str(estimate.launches), stack.key)
        notes += [f"{engine}: {note}" for note in _notes(peak, held)]
    text = "\n".join(line for note in notes for line in wrap(note, WIDTH, subsequent_indent="    "))
    return f"{name}\n{drawn(table)}{text}\n"


def _named(peak: Peak) -> list[Configuration]:
    """Every configuration that a peak speaks of."""
    return [peak.configuration, *peak.ties, *peak.open, *(one.configuration for one in peak.runners_up)]


def _common(configurations: Sequence[Configuration]) -> dict[str, Scalar]:
    """What all of them share: it stands in the plan and need not stand in every cell."""
    return {
        name: value
        for name, value in (configurations[0].values if configurations else {}).items()
        if name not in ("drafter", "k") and all(one.values.get(name) == value for one in configurations)
    }


def _notes(peak: Peak, held: Mapping[str, Scalar]) -> list[str]:
    notes: list[str] = [peak.verdict]
    if not peak.confirmed:
        notes = ["not launched afresh yet, so not confirmed"]
    if peak.better_than_incumbent is not None:
        notes[0] += f"; {ratio(peak.better_than_incumbent)} of the incumbent"
    if peak.ties:
        notes.append("cannot be told from " + ", ".join(one.label(held) for one in peak.ties))
    if peak.open:
        notes.append("not launched afresh, not ruled out: " + ", ".join(one.label(held) for one in peak.open[:4]))
    shown = [runner for runner in peak.runners_up if runner.configuration not in peak.ties]
    if shown:
        against = ", ".join(f"{one.configuration.label(held)} {ratio(one.against_peak)}" for one in shown[:4])
        notes.append(f"behind it: {against}")
    for what, told in (("set aside", peak.set_aside), ("left out of", peak.left_out)):
        notes += [f"{what} {label}: {why}" for label, why in list(told.items())[:4]]
    return notes


def _shift(shift: PeakShift) -> str:
    """The verdict in one sentence, with what it rests on."""
    said = f"{shift.target.name}: {shift.said}"
    if shift.speed.ratio is not None:
        low, high = shift.speed.low, shift.speed.high
        said += f"; the new engine runs at {shift.speed.ratio:.2f}x ({low:.2f} to {high:.2f}) of the old"
    if shift.verdict == "peak moved" and shift.new_peak is not None:
        said += f"; from {shift.old_peak.label()} to {shift.new_peak.label()}"
    return "\n".join(wrap(said + shift.decides, WIDTH, initial_indent="  ", subsequent_indent="    "))


def trials(records: Iterable[TrialRecord], metric: str, workloads: Sequence[str]) -> str:
    """One row per trial: state, launches, and the metric of each workload with its interval."""
    table = columns("#", "role", "configuration", "launches", *workloads, "")
    for column in (table.columns[1], *table.columns[3:-1]):
        column.no_wrap = True
    records = list(records)
    held = _common([record.configuration for record in records])
    for record in records:
        cells = [record.estimates.get(f"{name}/{metric}") for name in workloads]
        table.add_row(
            str(record.number),
            record.role,
            record.configuration.label(held),
            str(len(record.launches)),
            *(value(cell) if cell else "" for cell in cells),
            "" if record.state == "measured" else f"{record.state}: {record.reason[:60]}",
        )
    kept = ", ".join(f"{name}={value}" for name, value in held.items())
    return drawn(table) + (f"all of them: {kept}\n" if kept else "")


def history(found: Mapping[str, Sequence[Shelf]]) -> str:
    """Peaks over engine versions: a block per plan and target, a row per study, the oldest first."""
    blocks = []
    for plan, shelf_list in found.items():
        ends = [(shelf.opened, shelf.closed.peak or {}) for shelf in shelf_list if shelf.closed]
        for name in dict.fromkeys(name for _, peaks in ends for name in peaks):
            table = columns("engine", "peak", "value", "launches", "stack")
            shown = [(opened, *_stated(peaks[name])) for opened, peaks in ends if name in peaks]
            held = _common([configuration for _, configuration, _ in shown])
            for opened, configuration, estimate in shown:
                table.add_row(
                    opened.facts.get("engine", opened.fingerprint.engine),
                    configuration.label(held),
                    value(estimate),
                    str(estimate.launches),
                    opened.fingerprint.key,
                )
            first, metric = next((opened, peaks[name]["target"]["metric"]) for opened, peaks in ends if name in peaks)
            blocks.append(f"{plan}: {name}, {metric}; {first.model} on {first.machine}\n{drawn(table)}")
    return "\n".join(blocks)


def _stated(peak: Mapping[str, Any]) -> tuple[Configuration, Estimate]:
    return Configuration.model_validate(peak["configuration"]), Estimate.model_validate(peak["estimate"])


def trial_page(record: TrialRecord) -> str:
    """All of one trial that a person asks for: what, why, numbers, checks, stack, command."""
    lines = [
        f"trial {record.trial_id}  {record.state.upper()}  {record.configuration.label()}",
        *wrap(f"reason: {record.reason}", WIDTH, subsequent_indent="    "),
    ]
    lines += [
        f"  {name}: {value(estimate)}  ({estimate.launches} x {estimate.windows} windows, {estimate.ending})"
        for name, estimate in record.estimates.items()
        if name.split("/")[-1] in _SHOWN
    ]
    checks = [check for launch in record.launches for check in launch.checks]
    checks += [check for window in record.windows for check in window.checks]
    names = dict.fromkeys(check.name for check in checks)
    for name in names:
        same = [check for check in checks if check.name == name]
        bad = [check for check in same if check.passed is False]
        unseen = all(check.passed is None for check in same)
        word = "FAILED" if bad else "not seen" if unseen else "ok"
        lines.append(f"  {name:22} {word:8} {(bad or same)[0].detail[:46]}")
    lines += [f"  {name}: {text}" for name, text in record.fingerprint.items.items()]
    for launch in record.launches:
        failed = f", failed: {launch.failure.cause}" if launch.failure else ""
        ready = f"ready after {launch.ready_s:.0f} s" if launch.ready_s is not None else "not ready"
        lines.append(f"  launch {launch.launch}: {ready}{failed}; log: {launch.log_path}")
        lines.append("  " + shlex.join(launch.argv))
    return "\n".join(lines) + "\n"


def columns(*headers: str) -> Table:
    """An empty table without lines; cells are taken as they are, not as markup."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def drawn(table: Table) -> str:
    """A table as text of at most 80 columns."""
    buffer = StringIO()
    Console(file=buffer, width=WIDTH, color_system=None, markup=False, emoji=False, highlight=False).print(table)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines) + "\n"
