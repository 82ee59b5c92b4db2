"""The response surface of a simulated engine: what a configuration gives, and why it cannot start.

Standard library only, since the simulated engine imports it at every start. Formulas are plain arithmetic:
every knob but `drafter` and `k` may be a numpy array as well as a number, so that one call covers a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GIB", "Drafter", "Surface", "Traffic", "expected_length", "release", "surface_from"]

GIB = 1024**3
Values = Mapping[str, Any]


def release(version: str) -> tuple[int, ...]:
    """`0.27.1+cpu` -> (0, 27, 1)."""
    return tuple(int(part) for part in version.partition("+")[0].split("."))


def _least(one: Any, other: Any) -> Any:
    return (one + other - abs(one - other)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a workload asks for: requests in flight, tokens of each, and the share of a prompt seen before."""

    name: str = "generate"
    streams: int = 1
    input_tokens: int = 512
    output_tokens: int = 256
    shared: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Costs in target passes; `acceptance`: workload -> (first position, decay from one to the next).

    A block drafter accepts next to nothing beyond `block` tokens; `slots` (`parallel`: k - 1) is what it
    takes out of the token budget for each request.
    """

    cost: float
    overhead: float = 0.03
    acceptance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: {"generate": (0.85, 0.94)})
    gib: float = 0.0
    block: int = 0
    slots: int = 0
    parallel: bool = False
    supported: bool = True

    def positions(self, k: int, workload: str) -> list[float]:
        """Chance that draft token 1..k is accepted; never increasing."""
        first, decay = self.acceptance.get(workload) or next(iter(self.acceptance.values()))
        if self.block and k > self.block:
            first, decay = 0.04, 0.5
        return [first**j * decay ** (j * (j - 1) / 2) for j in range(1, k + 1)]


def expected_length(drafter: Drafter, k: int, workload: str) -> float:
    """Tokens that a target pass yields, the sure one included."""
    return 1 + sum(drafter.positions(k, workload))


_NONE = Drafter(cost=0.0, overhead=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One engine version on one machine with one model; speeds in tok/s at the reference settings.

    `steps`: (tokens in a pass, share lost beyond). `effects`: knob -> value as text -> factor on decode.
    `pairs`: (knob, value, knob, value, factor on decode), where a number holds for all above it as well.
    """

    version: str = "0.26.0"
    base_tok_s: float = 83.8
    prefill_max_tok_s: float = 6800.0
    prefill_half_tokens: float = 700.0
    slope: float = 0.004
    cache_cost: float = 0.0525
    cache_cost_k: float = 0.036
    budget_best: float = 8192.0
    budget_loss: float = 0.004
    steps: tuple[tuple[int, float], ...] = ()
    effects: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pairs: tuple[tuple[str, Any, str, Any, float], ...] = ()
    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    memory_gib: float = 96.0
    weights_gib: float = 28.7
    activation_gib_per_ktoken: float = 0.35
    activation_cliff_tokens: float = 1e9
    activation_cliff_gib: float = 200.0
    graph_gib: float = 1.0
    graph_gib_per_seq: float = 0.02
    graph_gib_per_token: float = 0.001
    unprofiled_gib: float = 3.0
    kv_bytes_per_token: int = 32768
    block_size: int = 640
    state_groups: int = 3
    max_model_len: int = 262144

    def value(self, values: Values, name: str) -> Any:
        """A knob's value, or what the engine takes when it is not set."""
        if name in values:
            return values[name]
        known = {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "gpu_memory_utilization": 0.9 if release(self.version) < (0, 20) else 0.92,
            "enable_prefix_caching": not self.state_groups or release(self.version) >= (0, 28),
            "max_model_len": self.max_model_len,
        }
        return known.get(name)

    def drafter(self, values: Values) -> tuple[Drafter, int]:
        name = str(values.get("drafter", "none"))
        if name == "none":
            return _NONE, 0
        missing = Drafter(cost=1.0, supported=False)
        return self.drafters.get(name, missing), int(values.get("k", 0))

    def acceptance_length(self, values: Values, workload: str) -> float:
        return expected_length(*self.drafter(values), workload)

    def passes_s(self, values: Values, streams: Any = 1) -> Any:
        """Target passes a second with that many requests in each."""
        drafter, k = self.drafter(values)
        tokens = streams * (k + 1)
        ratio = self.value(values, "max_num_batched_tokens") / self.budget_best
        caching = self.value(values, "enable_prefix_caching") * 1
        speed = self.base_tok_s / (1 + (drafter.overhead if k else 0) + drafter.cost * k)
        speed = speed / (1 + self.slope * (tokens - 1)) * (1 - self.budget_loss * (ratio + 1 / ratio - 2))
        speed = speed * (1 - self.cache_cost * (1 + self.cache_cost_k * k) * caching)
        for limit, loss in self.steps:
            speed = speed * (1 - loss * (tokens > limit))
        for name, table in self.effects.items():
            if name in values:
                speed = speed * table.get(str(values[name]), 1.0)
        for one, here, other, there, factor in self.pairs:
            both = self._holds(values, one, here) * self._holds(values, other, there)
            speed = speed * (1 - (1 - factor) * both)
        return speed

    def _holds(self, values: Values, name: str, wanted: Any) -> Any:
        have = self.value(values, name)
        if have is None:
            return 0
        number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
        return (have >= wanted) * 1 if number else (have == wanted) * 1

    def decode_tok_s(self, values: Values, traffic: Traffic) -> Any:
        """Output tokens a second of one stream, while as many run as fit."""
        running = self.running(values, traffic)
        return self.passes_s(values, running) * self.acceptance_length(values, traffic.name)

    def prefill_tok_s(self, values: Values) -> Any:
        """Prompt tokens a second that are not in the cache; k and the pool have no part in it."""
        budget = self.value(values, "max_num_batched_tokens")
        return self.prefill_max_tok_s * budget / (budget + self.prefill_half_tokens)

    def running(self, values: Values, traffic: Traffic) -> Any:
        """Requests that run at once: those in flight, as far as max_num_seqs and the pool let them."""
        need = self.request_blocks(values, traffic.input_tokens + traffic.output_tokens)
        fit = _least(self.value(values, "max_num_seqs"), self.blocks(values) // need)
        return _least(traffic.streams, fit)

    def score(self, values: Values, traffic: Traffic) -> Any:
        """Output tokens a second of all streams together, prompts included."""
        running = self.running(values, traffic)
        caching = self.value(values, "enable_prefix_caching") * 1
        prompt = traffic.input_tokens * (1 - traffic.shared * caching) / self.prefill_tok_s(values)
        decode = traffic.output_tokens / self.decode_tok_s(values, traffic)
        return running * traffic.output_tokens / (decode + running * prompt)

    def activation_gib(self, values: Values) -> Any:
        budget = self.value(values, "max_num_batched_tokens")
        cliff = self.activation_cliff_gib * (budget > self.activation_cliff_tokens)
        return budget / 1024 * self.activation_gib_per_ktoken + cliff

    def pool_gib(self, values: Values) -> Any:
        """Memory left for KV; negative where the rest does not even fit."""
        if values.get("kv_cache_memory_bytes"):
            return values["kv_cache_memory_bytes"] / GIB
        graphs = self.graph_gib + self.graph_gib_per_seq * self.value(values, "max_num_seqs")
        used = self.weights_gib + self.drafter(values)[0].gib + self.activation_gib(values) + graphs
        return self.value(values, "gpu_memory_utilization") * self.memory_gib - used

    def bytes_per_token(self, values: Values) -> float:
        return self.kv_bytes_per_token / (2 if str(values.get("kv_cache_dtype", "")).startswith("fp8") else 1)

    def blocks(self, values: Values) -> Any:
        return self.pool_gib(values) * GIB // (self.block_size * self.bytes_per_token(values))

    def request_blocks(self, values: Values, tokens: Any) -> Any:
        """Blocks that one request holds: its tokens in whole blocks, and its state (twice under caching)."""
        states = self.state_groups * (1 + self.value(values, "enable_prefix_caching") * 1)
        return -(-tokens // self.block_size) + states

    def kv_tokens(self, values: Values) -> Any:
        """Tokens that requests of full length can hold together."""
        length = self.value(values, "max_model_len")
        return self.blocks(values) / self.request_blocks(values, length) * length

    def margins(self, values: Values) -> dict[str, Any]:
        """What is left over at each thing that can stop a start, in the order met; negative stops it."""
        drafter, k = self.drafter(values)
        budget = self.value(values, "max_num_batched_tokens")
        widest = self.value(values, "max_num_seqs") * (k + 1)
        headroom = self.memory_gib * (1 - self.value(values, "gpu_memory_utilization"))
        fixed = self.memory_gib - self.weights_gib - drafter.gib
        length = self.value(values, "max_model_len")
        return {
            "unsupported_drafter": 0 if drafter.supported else -1,
            "batch_below_seqs": budget - self.value(values, "max_num_seqs"),
            "draft_slots_over_budget": self._slots_left(values, budget),
            "out_of_memory_weights": fixed,
            "out_of_memory_activation": fixed - self.activation_gib(values),
            "out_of_memory_kv": self.pool_gib(values),
            "kv_below_max_model_len": self.blocks(values) - self.request_blocks(values, length),
            "out_of_memory_graphs": headroom - self.unprofiled_gib - self.graph_gib_per_token * widest,
        }

    def slots(self, values: Values) -> int:
        """Draft slots that each request takes out of the token budget."""
        drafter, k = self.drafter(values)
        parallel = drafter.parallel and release(self.version) < (0, 33)
        return drafter.slots + (k - 1 if parallel else 0)

    def _slots_left(self, values: Values, budget: Any) -> Any:
        version, slots = release(self.version), self.slots(values)
        if version < (0, 20) or not slots:
            return 0
        return budget - 1 - slots * (self.value(values, "max_num_seqs") if version < (0, 28) else 1)

    def failure(self, values: Values) -> str | None:
        """Why a configuration cannot start; None where it can."""
        return next((cause for cause, left in self.margins(values).items() if left < 0), None)


def surface_from(data: Mapping[str, Any]) -> Surface:
    """A surface out of its JSON form (`dataclasses.asdict`)."""
    drafters = {
        name: Drafter(**{**drafter, "acceptance": {key: tuple(two) for key, two in drafter["acceptance"].items()}})
        for name, drafter in data.get("drafters", {}).items()
    }
    tuples = {name: tuple(map(tuple, data[name])) for name in ("steps", "pairs")}
    return Surface(**{**data, **tuples, "drafters": drafters})
