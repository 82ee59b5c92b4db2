"""From answered requests to numbers: each stream is read once its window is over, then named and counted."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from trackers.records import Acceptance

from .http_wire import Exchange
from .metrics_page import MetricsPage, grown
from .workload import Request, Workload, parse_goodput

__all__ = ["Sample", "Span", "client_metrics", "percentile", "read_sample", "server_metrics"]

_QUANTILES = (50, 90, 95, 99)
_SPOKEN = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(slots=True)
class Sample:
    """One request as the numbers need it; times in monotonic ns, counts from the server's `usage` alone.

    `token_ns` has one time for each event that carried tokens, which may be several at once. `error` is empty
    for an answer that is whole.
    """

    request: Request
    sent_ns: int
    token_ns: list[int] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    finish: str = ""
    text: str = ""
    reasoned: bool = False
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    detail: str = ""

    @property
    def first_ms(self) -> float:
        return (self.token_ns[0] - self.sent_ns) / 1e6

    @property
    def decode_ms(self) -> float:
        return (self.token_ns[-1] - self.token_ns[0]) / 1e6


def read_sample(request: Request, exchange: Exchange) -> Sample:
    """Reads a stream; never raises: what is wrong with it stands in `error`, what came before is kept."""
    sample = Sample(request, exchange.sent_ns, error=exchange.error, detail=exchange.detail)
    if exchange.status not in (0, 200):
        sample.error, sample.detail = f"http_{exchange.status}", _message(exchange.body)
        return sample
    if exchange.reads and exchange.reads[0][1][:1] == b"{":
        sample.error, sample.detail = "not_streamed", _message(exchange.body)
        return sample
    counted = False
    for at, data in exchange.events():
        if data == b"[DONE]":
            continue
        try:
            counted |= _read_chunk(sample, at, json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _fault(sample, "malformed_sse", f"{error}: {data[:80]!r}")
    if not sample.finish:
        _fault(sample, "not_finished", "the stream ended without a finish reason")
    if not counted or not sample.token_ns:
        _fault(sample, "no_usage", "the server sent no token counts with the stream")
    return sample


def _fault(sample: Sample, error: str, detail: str) -> None:
    if not sample.error:
        sample.error, sample.detail = error, detail


def _read_chunk(sample: Sample, at: int, chunk: dict[str, Any]) -> bool:
    """Adds one chunk; True when it carried the usage of the whole request."""
    if "error" in chunk:
        _fault(sample, "stream_error", _message(json.dumps(chunk).encode()))
        return False
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        sample.finish = choice.get("finish_reason") or sample.finish
        sample.text += choice.get("text") or delta.get("content") or ""
        sample.reasoned |= bool(delta.get("reasoning_content") or delta.get("reasoning"))
        sample.tool_calls += delta.get("tool_calls") or []
        # A chat opens with the role alone, which is no token; an empty text may be one (half a character).
        if not ("role" in delta and not any(delta.get(key) for key in _SPOKEN)):
            sample.token_ns.append(at)
    usage = chunk.get("usage")
    if not usage:
        return False
    sample.input_tokens, sample.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return True


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
        inner = found.get("error", found)
        return str(inner.get("message", inner) if isinstance(inner, dict) else inner)[:300]
    except (ValueError, AttributeError):
        return body[:300].decode(errors="replace")


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) of sorted values, linear between neighbours."""
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _family(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    named = {f"p{q}_{name}_ms": percentile(ordered, q) for q in _QUANTILES}
    mean, median = statistics.fmean(ordered), percentile(ordered, 50)
    return {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": median,
        f"std_{name}_ms": statistics.pstdev(ordered),
        **named,
    }


@dataclass(frozen=True, slots=True)
class Span:
    """The measured interval: from the first measured request's sending to the last one's last token."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def share(self, sample: Sample) -> float:
        """How much of a request lies inside, 0 to 1. Summed over all requests this counts without edges."""
        inside = min(self.end_ns, sample.token_ns[-1]) - max(self.start_ns, sample.sent_ns)
        return max(0, inside) / max(1, sample.token_ns[-1] - sample.sent_ns)


def client_metrics(samples: Sequence[Sample], workload: Workload) -> tuple[dict[str, float], Span]:
    """What the client saw, in `vllm bench serve`'s names, and the interval it holds for.

    Latencies are over measured requests; throughputs over the interval, where the requests that fill and
    drain the server count with the share that lies inside (with one request in flight: total / duration).
    """
    whole = [each for each in samples if not each.error]
    good = [each for each in whole if each.request.phase == "measured"]
    if not good:
        return {}, Span(0, 0)
    span = Span(min(each.sent_ns for each in good), max(each.token_ns[-1] for each in good))
    metrics = {**_latencies(good), **_rates(whole, span)}
    bounds = parse_goodput(workload.goodput)
    if bounds and "request_throughput" in metrics:
        kept = sum(_within(each, bounds) for each in good) / len(good)
        metrics["request_goodput"] = kept * metrics["request_throughput"]
    if workload.in_flight == 1:
        metrics["prefill_tok_s"] = 1e3 * sum(s.input_tokens for s in good) / sum(s.first_ms for s in good)
        if workload.claims == "warm" and len(good) > 1:
            metrics["repeat_speedup"] = good[0].first_ms / statistics.median(s.first_ms for s in good[1:])
    needles = [each for each in good if each.request.kind == "long_context"]
    if needles:
        metrics["needle_retrieved"] = statistics.fmean(each.request.expect in each.text for each in needles)
    return metrics, span


def _latencies(good: Sequence[Sample]) -> dict[str, float]:
    # A stream that came in one piece has no time between tokens to speak of.
    spread = [each for each in good if each.output_tokens > 1 and each.decode_ms > 0]
    found = {
        **_family("ttft", [each.first_ms for each in good]),
        **_family("tpot", [each.decode_ms / (each.output_tokens - 1) for each in spread]),
        **_family("itl", [(b - a) / 1e6 for each in good for a, b in pairwise(each.token_ns)]),
        **_family("e2el", [(each.token_ns[-1] - each.sent_ns) / 1e6 for each in good]),
    }
    if spread:
        rates = [1e3 * (each.output_tokens - 1) / each.decode_ms for each in spread]
        found["decode_tok_s"] = statistics.fmean(rates)
    return found


def _rates(whole: Sequence[Sample], span: Span) -> dict[str, float]:
    if span.seconds <= 0:
        return {}
    shares = [(span.share(each), each) for each in whole]
    output = sum(share * each.output_tokens for share, each in shares) / span.seconds
    prompt = sum(share * each.input_tokens for share, each in shares) / span.seconds
    requests = sum(share for share, _ in shares) / span.seconds
    return {
        "request_throughput": requests,
        "output_throughput": output,
        "total_token_throughput": output + prompt,
    }


def _within(sample: Sample, bounds: Mapping[str, float]) -> bool:
    seen = {
        "ttft": sample.first_ms,
        "tpot": sample.decode_ms / max(1, sample.output_tokens - 1),
        "e2el": (sample.token_ns[-1] - sample.sent_ns) / 1e6,
    }
    return all(seen[name] <= bound for name, bound in bounds.items())


def server_metrics(
    before: MetricsPage | None,
    after: MetricsPage | None,
    samples: Sequence[Sample],
    acceptance: Acceptance | None,
    in_flight: int | None,
) -> dict[str, float]:
    """What the server's own counters say of the window: acceptance, and tokens a pass and passes a second.

    With one request in flight a pass is one after the first token, `tokens_per_pass` comes from the draft
    counters, `passes_s` from the count of engine steps over the server's own decode time. With more, a pass
    is an engine step, its tokens those of the whole batch.
    """
    found: dict[str, float] = {}
    if acceptance is not None and acceptance.drafts and acceptance.draft_tokens:
        found["acceptance_length"] = found["spec_decode_acceptance_length"] = acceptance.length or 1.0
        rate = 100 * acceptance.accepted_tokens / acceptance.draft_tokens
        found["spec_decode_acceptance_rate"] = rate
    steps = grown(before, after, "vllm:iteration_tokens_total_count")
    made = grown(before, after, "vllm:generation_tokens")
    whole = [each for each in samples if not each.error]
    if not steps or not made or len(whole) < len(samples):
        return found
    if in_flight == 1:
        passes = steps - len(samples)
        seconds = grown(before, after, "vllm:request_decode_time_seconds_sum")
        seconds = seconds or sum(each.decode_ms for each in whole) / 1e3
        more = acceptance.accepted_tokens if acceptance is not None else made - len(samples) - passes
        if passes > 0 and seconds > 0:
            found |= {"tokens_per_pass": 1 + more / passes, "passes_s": passes / seconds}
    else:
        seconds = (max(s.token_ns[-1] for s in whole) - min(s.sent_ns for s in whole)) / 1e9
        found |= {"tokens_per_pass": made / steps, "passes_s": steps / max(seconds, 1e-9)}
    return found
