"""What a window leaves behind for its proofs, and what was launched as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from trackers.records import Acceptance, Check, Frozen

from .load_metrics import Sample
from .metrics_page import MetricsPage, grown
from .workload import Workload

__all__ = ["Evidence", "ServerExpectation", "Verdict"]

Verdict = tuple[bool | None, str] | None
"""Passed (None: could not be seen) and what was seen; None as a whole where the proof does not apply."""


class ServerExpectation(Frozen):
    """The claims a window is checked against.

    `settings` are requested values by knob name, `reported` what the engine's log says of them. `drafter` is
    `none` without drafting, None where it is not known. `listener` is the caller's own check of the port.
    """

    model: str
    version: str | None = None
    settings: dict[str, str] = Field(default_factory=dict)
    reported: dict[str, str] = Field(default_factory=dict)
    drafter: str | None = None
    prefix_caching: bool | None = None
    engine_pids: tuple[int, ...] = ()
    listener: Check | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """`models`: served name -> max_model_len. `turns`: how tool turns ended -> how many."""

    workload: Workload
    samples: Sequence[Sample]
    metrics: Mapping[str, float] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    before: MetricsPage | None = None
    after: MetricsPage | None = None
    models: Mapping[str, str] | None = None
    version: str | None = None
    client: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    expected: ServerExpectation | None = None

    @property
    def whole(self) -> list[Sample]:
        return [each for each in self.samples if not each.error]

    def grown(self, name: str) -> float | None:
        return grown(self.before, self.after, f"vllm:{name}")
