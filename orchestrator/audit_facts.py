"""What an audit is made of: the facts gathered, rows of three columns, the verdict between the columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from trackers.records import Frozen, Measurement

from .audit_probe import CapacityProbe
from .card import Card
from .metrics_page import counters_between
from .model_arithmetic import Weights
from .model_shape import Attention, ModelShape

__all__ = [
    "AuditFacts",
    "AuditRow",
    "NullCheck",
    "Verdict",
    "compare_columns",
    "counters_between",
    "number",
    "row",
]

Verdict = Literal["agrees", "report differs", "premise differs", "slow path?", "impossible", "cannot tell"]
Value = float | str | None


class AuditRow(Frozen):
    """One claim: what the engine reported, what arithmetic expects, what was measured; None: not to be had.

    `tolerance` is relative. `report differs`: the engine's word is against the other columns. `premise
    differs`: the arithmetic is, or it and the report agree and the measurement does not bear them out.
    """

    name: str
    reported: Value = None
    expected: Value = None
    measured: Value = None
    unit: str = ""
    tolerance: float = 0.0
    verdict: Verdict = "cannot tell"
    sentence: str = ""

    @property
    def finding(self) -> bool:
        return self.verdict not in ("agrees", "cannot tell")

    def judged(self, verdict: Verdict, sentence: str, **columns: Value) -> AuditRow:
        return self.model_copy(update={"verdict": verdict, "sentence": sentence, **columns})


class NullCheck(Frozen):
    """A metric that the changed knob cannot touch, before and after; `noise` is the sd of their log ratio."""

    metric: str
    before: float
    after: float
    noise: float
    margin: float = 0.03


class AuditFacts(Frozen):
    """Everything one audit reads; what could not be gathered stays empty and its rows say `cannot tell`.

    `reported` holds the engine log's facts, `cache_config` the labels of `vllm:cache_config_info`,
    `requested` the flags somebody asked for, `resolved` what took effect (both with underscores),
    `counters` how far the server's own counters moved over the windows. `k` and `method` are the drafter's,
    `drafter` the layers it adds to the pool. `cold` says whether the workload claims to share no prefix.
    """

    engine: str
    model_dtype: str = "auto"
    shape: ModelShape | None = None
    weights: Weights | None = None
    card: Card | None = None
    cards: int = 1
    method: str = "none"
    k: int = 0
    drafter: Attention | None = None
    drafter_block: int | None = None
    reported: dict[str, str] = Field(default_factory=dict)
    cache_config: dict[str, str] = Field(default_factory=dict)
    requested: dict[str, str] = Field(default_factory=dict)
    resolved: dict[str, str] = Field(default_factory=dict)
    probe: CapacityProbe | None = None
    windows: tuple[Measurement, ...] = ()
    counters: dict[str, float] = Field(default_factory=dict)
    in_flight: int = 1
    prompt_tokens: float = 0.0
    cold: bool | None = None
    nulls: tuple[NullCheck, ...] = ()

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.engine.partition("+")[0])[:3])

    @property
    def caching(self) -> bool | None:
        """Whether prefix caching took effect, by the server's labels or else its log."""
        if self.reported.get("effective.prefix_caching") == "Disabling":
            return False
        said = self.cache_config.get("enable_prefix_caching") or self.reported.get("prefix_caching")
        return {"True": True, "False": False}.get(said or "")

    def mean(self, metric: str) -> float | None:
        """A client metric over the windows; None where no window has it."""
        found = [window.metrics[metric] for window in self.windows if metric in window.metrics]
        return sum(found) / len(found) if found else None


def number(values: Mapping[str, str], *names: str) -> float | None:
    """The first of the names that holds a number."""
    for name in names:
        try:
            return float(values[name].replace(",", ""))
        except (KeyError, ValueError):
            continue
    return None


def close(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other)) + 1e-12


def compare_columns(
    reported: float | None, expected: float | None, measured: float | None, tolerance: float
) -> Verdict:
    """The verdict of three numbers; a measurement outweighs the others, one number alone tells nothing."""
    known = [value for value in (reported, expected, measured) if value is not None]
    if len(known) < 2:
        return "cannot tell"
    if all(close(one, other, tolerance) for one in known for other in known):
        return "agrees"
    if measured is None or reported is None:
        return "report differs" if measured is None else "premise differs"
    if expected is None or close(measured, expected, tolerance) or not close(reported, expected, tolerance):
        return "premise differs" if close(measured, reported, tolerance) else "report differs"
    return "premise differs"


def row(
    name: str,
    columns: tuple[float | None, float | None, float | None],
    unit: str,
    tolerance: float,
    *,
    finding: str = "The columns differ.",
    agrees: str = "The columns agree.",
) -> AuditRow:
    """A row whose verdict follows from its numbers; `finding` is said where they do not agree."""
    verdict = compare_columns(*columns, tolerance)
    words = {"agrees": agrees, "cannot tell": "Fewer than two of the three numbers are known."}
    return AuditRow(
        name=name,
        reported=columns[0],
        expected=columns[1],
        measured=columns[2],
        unit=unit,
        tolerance=tolerance,
        verdict=verdict,
        sentence=words.get(verdict, finding),
    )
