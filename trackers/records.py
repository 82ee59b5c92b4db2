"""The nouns one remembers: fingerprint, measurement, launch, trial record; frozen, with units in names."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from search_spaces.configuration import Configuration

__all__ = [
    "AGAIN",
    "Acceptance",
    "Check",
    "Ending",
    "Estimate",
    "Failure",
    "Frozen",
    "Launch",
    "Measurement",
    "Role",
    "StackFingerprint",
    "TrialRecord",
    "TrialState",
    "WorkloadRef",
]

TrialState = Literal[
    "measured",
    "unsettled",
    "disproved",
    "engine_failed",
    "refused",
    "client_bound",
    "interrupted",
    "lost",
    "imported",
]
AGAIN: frozenset[TrialState] = frozenset({"interrupted", "lost", "client_bound"})
"""States that say nothing of their configuration: it is measured again."""
Role = Literal["incumbent", "search", "finalist", "anchor", "in_turn", "probe", "attribute", "reproduce", "imported"]
"""`in_turn`: launched in turn with another stack on its day: what it says is of the two, not of its own study."""
Ending = Literal["stable", "noisy", "drifting", "bimodal", "capped", "failed"]
FailureKind = Literal["infeasible", "environment", "transient"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class StackFingerprint(Frozen):
    """Everything under a number that could move it, as plain text by name.

    Names are dotted (`vllm`, `torch`, `driver`, `gpu`, `model.revision`, `env.VLLM_USE_V2_MODEL_RUNNER`).
    """

    items: dict[str, str]

    @property
    def key(self) -> str:
        """Twelve hex digits over all items, whatever their order."""
        text = json.dumps(self.items, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def engine(self) -> str:
        """The engine as people say it, such as `vllm 0.32.0`."""
        return f"vllm {self.items.get('vllm', '?')}"

    def diff(self, other: StackFingerprint) -> dict[str, tuple[str | None, str | None]]:
        """What moved from this stack to the other: name -> (here, there); None where it is absent."""
        names = sorted(self.items.keys() | other.items.keys())
        pairs = {name: (self.items.get(name), other.items.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class WorkloadRef(Frozen):
    """The traffic a number belongs to: its name and the hash of its content, seed included."""

    name: str
    sha256: str


class Check(Frozen):
    """One proof of the instrument: `passed` is None where it does not apply or could not be seen."""

    name: str
    passed: bool | None
    detail: str = ""


class Acceptance(Frozen):
    """Draft counters of one window: differences of the server's own counters (tokens, passes)."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()

    @property
    def length(self) -> float | None:
        """Mean acceptance length: tokens a target pass yields, the sure one included; None without drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None


class Measurement(Frozen):
    """What one window of one workload gave.

    `metrics` keys carry their unit and are written as `vllm bench serve` writes them (`mean_ttft_ms`,
    `median_tpot_ms`, `p99_itl_ms`, `output_throughput`), beside `decode_tok_s` (output tokens after the
    first, over the time after the first token, averaged over requests, tok/s), `prefill_tok_s`,
    `acceptance_length`, `passes_s`, `request_goodput`.
    """

    workload: WorkloadRef
    launch: int
    window: int
    started_at: float
    duration_s: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    metrics: dict[str, float]
    acceptance: Acceptance | None = None
    checks: tuple[Check, ...] = ()
    client: dict[str, float] = Field(default_factory=dict)
    extra: dict[str, str] = Field(default_factory=dict)

    @property
    def disproved(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)


class Failure(Frozen):
    """Why an engine did not run: the cause by name, whose property it is, and the log line that says so."""

    cause: str
    kind: FailureKind
    message: str
    evidence: str = ""
    needed_gib: float | None = None
    available_gib: float | None = None
    exit_code: int | None = None


class Launch(Frozen):
    """One engine start: how it was started, what it said of itself, how it ended. Windows stand beside it."""

    launch: int
    started_at: float
    ready_s: float | None
    stopped_s: float | None = None
    argv: tuple[str, ...] = ()
    reported: dict[str, str] = Field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    failure: Failure | None = None
    log_path: str = ""
    cold_caches: bool = False


class Estimate(Frozen):
    """A number with what stands behind it: 95 % half-width, launches, windows, and how repeating ended."""

    value: float
    half_width: float
    launches: int
    windows: int
    ending: Ending

    @property
    def relative(self) -> float:
        """Half-width over the value; infinite at zero."""
        return self.half_width / abs(self.value) if self.value else float("inf")


class TrialRecord(Frozen):
    """One configuration measured on one stack until its numbers settled, or the reason why it was not.

    `estimates` is keyed `workload/metric`; `beside` is the study that an `in_turn` trial took turns with. Immutable
    once written; measuring again makes another record.
    """

    trial_id: str
    study: str
    number: int
    role: Role
    state: TrialState
    reason: str
    configuration: Configuration
    fingerprint: StackFingerprint
    workloads: tuple[WorkloadRef, ...]
    launches: tuple[Launch, ...] = ()
    windows: tuple[Measurement, ...] = ()
    estimates: dict[str, Estimate] = Field(default_factory=dict)
    started_at: float
    duration_s: float
    beside: str = ""

    @property
    def failure(self) -> Failure | None:
        """The last launch's failure, where there was one."""
        return self.launches[-1].failure if self.launches else None
