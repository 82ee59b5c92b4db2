"""The audit: what the engine reports, what arithmetic expects, what was measured; side by side, judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from trackers.records import Frozen

from .audit_facts import AuditFacts, AuditRow, NullCheck, counters_between
from .audit_pool import pool_rows
from .audit_speed import speed_rows

__all__ = ["AuditFacts", "AuditMove", "AuditRow", "NullCheck", "audit", "compare_audits", "counters_between"]

Column = Literal["reported", "expected", "measured"]
COLUMNS: tuple[Column, ...] = ("reported", "expected", "measured")
MOVED = 0.001
# What a reported pool follows besides the memory itself: row -> how to say that it moved.
CAUSES = {
    "prefix caching": "prefix caching keeps states too",
    "max_model_len": "the report depends on max_model_len",
    "pool formula": "the version reports by another formula",
}


def audit(facts: AuditFacts) -> tuple[AuditRow, ...]:
    """Every row that these facts allow; pure, and never an error: what is missing is said in its row."""
    return (
        *pool_rows(facts),
        *speed_rows(facts),
        _caching(facts),
        *_requested(facts),
        *_context(facts),
        *(_null(check) for check in facts.nulls),
    )


def _caching(facts: AuditFacts) -> AuditRow:
    said = {True: "on", False: "off"}
    asked = facts.requested.get("enable_prefix_caching")
    queries, hits = (
        facts.counters.get("prefix_cache_queries", 0.0),
        facts.counters.get("prefix_cache_hits", 0.0),
    )
    found = AuditRow(
        name="prefix caching",
        reported=said.get(facts.caching) if facts.caching is not None else None,
        expected=None if asked is None else said[_plain(asked) == "true"],
        measured=hits / queries if queries else 0.0 if facts.counters else None,
        unit="share of hits",
        tolerance=0.05,
        verdict="agrees",
        sentence="As asked for." if asked is not None else "Not asked for: this engine's default.",
    )
    if facts.cold and hits > 0:
        sentence = f"The run claims to be cold, yet {hits:.0f} of its prompt tokens came from the prefix cache."
        return found.judged("premise differs", sentence)
    if facts.caching is False and hits > 0:
        sentence = "Said to be off, yet prompts were served from it."
        return found.judged("report differs", sentence)
    if found.expected and found.reported and found.expected != found.reported:
        sentence = f"Asked for {found.expected}, in effect {found.reported}."
        return found.judged("report differs", sentence)
    if facts.caching is None:
        return found.judged("cannot tell", "The engine does not say.")
    return found


def _plain(value: str) -> str:
    """A flag's value in one spelling, so that `True`, `8k`... and what the engine echoes can be compared."""
    text = str(value).strip().lower().removeprefix("torch.")
    try:
        return f"{float(text):g}" if not text.isdigit() else str(int(text))
    except ValueError:
        return text


def _requested(facts: AuditFacts) -> Iterator[AuditRow]:
    """One row per flag that did not take effect as asked, or one that says all did."""
    resolved = {**facts.cache_config, **facts.resolved}
    seen = [name for name in facts.requested if name in resolved and name != "enable_prefix_caching"]
    moved = [name for name in seen if _plain(facts.requested[name]) != _plain(resolved[name])]
    for name in moved:
        yield AuditRow(
            name=f"requested {name}",
            reported=resolved[name],
            expected=facts.requested[name],
            verdict="report differs",
            sentence=f"Asked for {facts.requested[name]}, in effect {resolved[name]}.",
        )
    if not moved:
        unseen = ", ".join(sorted(facts.requested.keys() - seen - {"enable_prefix_caching"})) or "none"
        yield AuditRow(
            name="requested configuration",
            verdict="agrees" if seen else "cannot tell",
            sentence=f"{len(seen)} of {len(facts.requested)} seen in effect as asked; not echoed: {unseen}.",
        )


def _context(facts: AuditFacts) -> Iterator[AuditRow]:
    """Not claims but what reported numbers depend on; kept as rows so that comparing sees them move."""
    length = facts.reported.get("effective.max_model_len") or facts.reported.get("max_model_len")
    rule = "blocks / groups" if facts.version < (0, 20, 2) else "concurrency x length"
    yield AuditRow(name="max_model_len", reported=length, verdict="agrees" if length else "cannot tell")
    yield AuditRow(name="pool formula", reported=rule, verdict="agrees" if facts.version else "cannot tell")


def _null(check: NullCheck) -> AuditRow:
    """Equivalence within the margin at 90 %: `agrees` needs evidence, not the absence of a difference."""
    moved = math.log(check.after / check.before)
    reach = 1.645 * check.noise
    found = AuditRow(
        name=f"untouched {check.metric}",
        expected=check.before,
        measured=check.after,
        tolerance=check.margin,
        sentence=f"Moved {math.expm1(moved):+.1%}, +-{reach:.1%}: more launches would tell.",
    )
    if abs(moved) + reach <= check.margin:
        return found.model_copy(update={"verdict": "agrees", "sentence": f"Did not move by {check.margin:.0%}."})
    if abs(moved) - reach > check.margin:
        sentence = f"Moved {math.expm1(moved):+.1%} though the changed knob cannot touch it: the control failed."
        return found.judged("premise differs", sentence)
    return found


class AuditMove(Frozen):
    """One row that moved between two audits, in which columns, and what that means."""

    name: str
    columns: tuple[Column, ...]
    old: AuditRow
    new: AuditRow
    sentence: str


def compare_audits(old: Sequence[AuditRow], new: Sequence[AuditRow]) -> tuple[AuditMove, ...]:
    """Rows of both audits that moved; where only the report of a pool did, the sentence says by what."""
    before = {found.name: found for found in old}
    pairs = [(before[found.name], found) for found in new if found.name in before]
    moved = {b.name: (columns, a, b) for a, b in pairs if (columns := _moved(a, b))}
    known = {b.name for a, b in pairs if a.reported is not None and b.reported is not None}
    still = {"blocks", "pool bytes"} & (known - moved.keys())
    causes = [text for name, text in CAUSES.items() if name in moved]
    return tuple(
        AuditMove(name=name, columns=columns, old=a, new=b, sentence=_sentence(columns, a, b, still, causes))
        for name, (columns, a, b) in moved.items()
    )


def _moved(old: AuditRow, new: AuditRow) -> tuple[Column, ...]:
    # What is measured moves by itself within the row's tolerance; words and arithmetic do not.
    widths = {"measured": max(MOVED, new.tolerance)}
    pairs = {column: (getattr(old, column), getattr(new, column)) for column in COLUMNS}
    return tuple(column for column, pair in pairs.items() if _differ(*pair, widths.get(column, MOVED)))


def _differ(old: float | str | None, new: float | str | None, width: float) -> bool:
    if isinstance(old, float | int) and isinstance(new, float | int):
        return abs(new - old) > width * max(abs(old), abs(new))
    return old is not None and new is not None and old != new


def _sentence(columns: Sequence[Column], old: AuditRow, new: AuditRow, still: set[str], causes: Sequence[str]) -> str:
    text = "; ".join(f"{column} {_change(getattr(old, column), getattr(new, column))}" for column in columns)
    if new.name == "prefix caching" and "reported" in columns:
        asked = old.expected is not None or new.expected is not None
        return f"{text}: {'as asked for' if asked else 'a default moved, nobody asked for it'}."
    if new.name in ("pool report", "pool tokens", "state blocks", "full-length requests") and len(still) == 2:
        why = "; ".join(causes) or "nothing seen explains it"
        return f"{text}. Blocks and bytes did not move: {why}."
    return f"{text}."


def _change(old: float | str | None, new: float | str | None) -> str:
    if isinstance(old, float | int) and isinstance(new, float | int) and old:
        word = "fell" if new < old else "rose"
        return f"{word} {abs(new / old - 1):.1%} ({old:,.6g} -> {new:,.6g})"
    return f"{old} -> {new}"
