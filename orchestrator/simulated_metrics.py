"""The counters of a simulated engine, and the page at /metrics that shows them under vLLM's names."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

__all__ = ["BOUNDS_S", "BOUNDS_TOKENS", "COUNTERS", "Counters"]

BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
BOUNDS_TOKENS = (1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0)
COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
)
_SPECULATION = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
_REASONS = ("stop", "length", "abort", "error")
_TIMES = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
_SIZES = ("request_prompt_tokens", "request_generation_tokens")


class Counters:
    """What an engine counts from its start on; `k` is 0 where nothing is drafted."""

    def __init__(self, model_name: str, k: int) -> None:
        self.labels = {"engine": "0", "model_name": model_name}
        self.count: dict[str, float] = defaultdict(float)
        self.finished: dict[str, float] = dict.fromkeys(_REASONS, 0.0)
        self.accepted_at = [0.0] * k
        self.seen: dict[str, list[float]] = {name: [] for name in (*_TIMES, *_SIZES)}
        self.created = time.time()

    def page(self, gauges: Mapping[str, float], cache: Mapping[str, str]) -> str:
        """The whole exposition: `gauges` by name, `cache` the labels of cache_config_info."""
        names = (*_SPECULATION, *COUNTERS) if self.accepted_at else COUNTERS
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.created!r}"]
        lines += [line for name in names for line in self._counter(name, [({}, self.count[name])])]
        if self.accepted_at:
            rows = [({"position": str(at)}, value) for at, value in enumerate(self.accepted_at)]
            lines += self._counter("spec_decode_num_accepted_tokens_per_pos", rows)
        rows = [({"finished_reason": reason}, value) for reason, value in self.finished.items()]
        lines += self._counter("request_success", rows)
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", self._row(name, {}, value)]
        for name, values in self.seen.items():
            lines += self._histogram(name, values, BOUNDS_TOKENS if name in _SIZES else BOUNDS_S)
        lines += [
            "# TYPE vllm:cache_config_info gauge",
            self._row("cache_config_info", cache, 1.0, model=False),
        ]
        return "\n".join(lines) + "\n"

    def _counter(self, name: str, rows: list[tuple[dict[str, str], float]]) -> Iterator[str]:
        yield f"# TYPE vllm:{name}_total counter"
        yield from (self._row(f"{name}_total", labels, value) for labels, value in rows)
        yield f"# TYPE vllm:{name}_created gauge"
        yield from (self._row(f"{name}_created", labels, self.created) for labels, _ in rows)

    def _histogram(self, name: str, values: list[float], bounds: tuple[float, ...]) -> Iterator[str]:
        yield f"# TYPE vllm:{name} histogram"
        for bound in bounds:
            below = sum(1 for value in values if value <= bound)
            yield self._row(f"{name}_bucket", {"le": str(bound)}, below)
        yield self._row(f"{name}_bucket", {"le": "+Inf"}, len(values))
        yield self._row(f"{name}_count", {}, len(values))
        yield self._row(f"{name}_sum", {}, sum(values))

    def _row(self, name: str, extra: Mapping[str, str], value: float, *, model: bool = True) -> str:
        labels = {**(self.labels if model else {"engine": "0"}), **extra}
        text = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
        return f"vllm:{name}{{{text}}} {float(value)!r}"
