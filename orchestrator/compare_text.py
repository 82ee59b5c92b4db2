"""A comparison and an attribution as text for 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from .compare import Compared, TargetMove
from .peak import Comparison
from .peak_factors import Attributed
from .tables import WIDTH, columns, drawn, ratio, value

__all__ = ["attributed_text", "compared_text", "drift_text", "gain_text"]


def _folded(text: str, indent: str = "  ") -> str:
    return "\n".join(wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  "))


def compared_text(found: Compared) -> str:
    """The stack first, then a block for each target, then where to look further."""
    lines = [f"{found.old} ({found.old_study}) -> {found.new} ({found.new_study})"]
    lines += [f"{found.model} on {found.machine}", ""]
    if found.moved:
        table = columns("moved in the stack", "old", "new")
        for name, (old, new) in found.moved.items():
            table.add_row(name, old or "-", new or "-")
        lines.append(drawn(table))
    else:
        lines.append("Nothing moved in the stack.\n")
    lines += [block for move in found.targets for block in _move(move)]
    lines += [_folded(note, "") for note in found.notes]
    return "\n".join([*lines, found.link]).rstrip() + "\n"


def _move(move: TargetMove) -> Iterator[str]:
    yield f"{move.target.name}, {move.target.metric}: {move.shift.said}"
    table = columns("", "old engine", "new engine", "new / old")
    for step in move.steps:
        change = step.new_over_old
        table.add_row(
            step.name,
            value(step.old) if step.old else "not measured",
            value(step.new) if step.new else "not measured",
            ratio(change) + (" cannot tell" if change.verdict == "cannot tell" else "") if change else "",
        )
    yield drawn(table).rstrip()
    yield from (_folded(f"{step.name}: {step.configuration.label()}") for step in move.steps)
    yield gain_text(move)
    if move.drift:
        yield _folded(drift_text(move.drift))
    if move.shift.would_decide and not move.shift.missed:
        yield _folded(f"would decide: {move.shift.would_decide}")
    yield _folded(f"shape {move.shift.shape}: {move.shift.shape_evidence}")
    if move.stayed:
        table = columns("what stayed", "", "ratio", "90 % interval", "on what grounds")
        for one in move.stayed:
            failed = one.declared and one.found.verdict == "changed"
            said = "CONTROL FAILED" if failed else one.found.verdict
            interval = f"{one.found.low:.3f} to {one.found.high:.3f}"
            name = one.metric if len(move.target.workloads) == 1 else f"{one.workload}/{one.metric}"
            table.add_row(name, said, f"{one.found.ratio:.3f}", interval, one.claim)
        yield drawn(table)


def gain_text(move: TargetMove) -> str:
    """What the new peak gives over keeping the old settings, in a sentence."""
    if move.gain is None and move.steps[0].new is None:
        return _folded("The old settings were not measured on the new engine: the gain over them is not known.")
    if move.gain is None:
        return _folded("On the new engine nothing is shown to be a better choice than the old settings.")
    words = {
        "better": "a gain",
        "worse": "a loss",
        "same": "no difference worth a change",
        "cannot tell": f"cannot tell; {move.gain.launches_to_decide} launches a side would",
    }
    said = words[move.gain.verdict]
    return _folded(f"new peak over old settings, both on the new engine: {ratio(move.gain)}: {said}")


def drift_text(drift: Comparison) -> str:
    """By what the old engine's numbers are restated, where it was launched in turn with the new one."""
    return f"the old engine as of the day of the new one: launched in turn it ran at {ratio(drift)} of its own study"


def attributed_text(found: Attributed) -> str:
    """Effects of one target, the largest first; averaged over the others' levels, and at either end."""
    lines = [f"{found.target.name}, {found.target.metric}: from {found.old_peak.label()}"]
    lines[0] += f" ({found.old}) to {found.new_peak.label()} ({found.new})"
    lines = wrap(lines[0], WIDTH, subsequent_indent="  ")
    if found.found is None:
        lines.append(_folded(found.refused))
    else:
        table = columns("what moved", "averaged", "others old", "others new")
        for main in sorted(found.found.mains, key=lambda one: -abs(one.averaged.change)):
            ends = [_after_name(str(end)) if end else "" for end in (main.at_old, main.at_new)]
            table.add_row(main.factor, _after_name(str(main.averaged)), *ends)
        for effect in found.found.interactions:
            table.add_row(effect.name, _after_name(str(effect)), "interaction", "")
        for whole in filter(None, (found.found.total, found.found.drift)):
            table.add_row(whole.name, _after_name(str(whole)), "", "")
        lines += [drawn(table).rstrip(), f"  {found.found.launches} launches; {found.design}"]
        lines += [_folded(note) for note in (*found.found.notes, *found.notes)]
    if found.lacking:
        lines.append(f"  launches of the design that were not made: {found.lacking}")
    return "\n".join(lines) + "\n"


def _after_name(text: str) -> str:
    return text.rpartition(": ")[2]
