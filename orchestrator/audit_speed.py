"""The audit's rows about speed: ceilings of bandwidth and arithmetic, counters against the client, clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from .audit_facts import AuditFacts, AuditRow, number, row
from .model_arithmetic import element_bytes, kv_bytes_per_token, prefill_flops_per_token

__all__ = ["speed_rows"]

ABOVE = 1.02
SLOW = 0.5
LAUNCH_BOUND_PASSES_S = 500.0
SOMETIMES = ("ngram", "ngram_gpu", "suffix", "unknown")


def speed_rows(facts: AuditFacts) -> Iterator[AuditRow]:
    ceiling = _pass_ceiling(facts)
    yield _passes(facts, ceiling)
    yield _token_ceiling(facts, ceiling)
    if facts.k:
        yield _tokens_per_pass(facts)
        yield _positions(facts)
    yield _prefill(facts)
    yield _clock(facts)
    yield _output(facts)


def _pass_ceiling(facts: AuditFacts) -> float | None:
    """Passes a second if memory did nothing but stream the weights and the context once a pass."""
    bandwidth = facts.card and facts.card.bandwidth_bytes_s
    if not (bandwidth and facts.weights and facts.shape):
        return None
    element = _element(facts)
    context = kv_bytes_per_token(facts.shape, element, facts.cards) * facts.prompt_tokens * facts.in_flight
    return bandwidth / (facts.weights.per_pass() / facts.cards + context)


def _element(facts: AuditFacts) -> float:
    """Bytes of a KV element; the smallest there is where its format is not known, so that a ceiling holds."""
    if facts.shape is None:
        return 0.5
    dtype = facts.model_dtype if facts.model_dtype != "auto" else facts.shape.dtype
    cache = facts.cache_config.get("cache_dtype") or "auto"
    return element_bytes(cache, dtype) or 0.5


def _under(
    name: str, measured: float | None, ceiling: float | None, unit: str, *, over: str, slow: str = ""
) -> AuditRow:
    """A row whose expectation is an upper bound."""
    found = AuditRow(name=name, expected=ceiling, measured=measured, unit=unit, tolerance=ABOVE - 1)
    if measured is None or ceiling is None:
        sentence = "Not measured." if measured is None else "The card or the model's weights are not known."
        return found.model_copy(update={"sentence": sentence})
    share = measured / ceiling
    if share > ABOVE:
        return found.judged("impossible", over)
    if slow and share < SLOW:
        return found.judged("slow path?", slow)
    return found.model_copy(update={"verdict": "agrees", "sentence": f"{share:.0%} of the ceiling."})


def _passes(facts: AuditFacts, ceiling: float | None) -> AuditRow:
    passes = facts.mean("passes_s")
    if passes is None and not facts.k:
        passes = facts.mean("decode_tok_s")
    slow = "Less than half of what the memory allows: another kernel, dtype or clock than meant?"
    bound = facts.in_flight == 1 and (ceiling or 0) < LAUNCH_BOUND_PASSES_S
    over = "Faster than the weights can be read: a wrong clock, other weights, or output that was not computed."
    return _under("pass ceiling", passes, ceiling, "passes/s", over=over, slow=slow if bound else "")


def _token_ceiling(facts: AuditFacts, ceiling: float | None) -> AuditRow:
    most = ceiling * (facts.k + 1) if ceiling else None
    over = "More tokens than k + 1 a pass at the most passes: output from a cache, or a wrong clock."
    return _under("token ceiling", facts.mean("decode_tok_s"), most, "tok/s", over=over)


def _tokens_per_pass(facts: AuditFacts) -> AuditRow:
    count = facts.counters.get
    accepted, requests = count("spec_decode_num_accepted_tokens", 0.0), count("request_success", 0.0)
    made, passes = count("generation_tokens", 0.0) - requests, _passes_made(facts, requests)
    if made <= 0 or passes <= 0:
        return AuditRow(name="tokens per pass", unit="tokens", sentence="The server counted no drafts.")
    positions = count("spec_decode_num_accepted_tokens_per_pos")
    expected = 1 + positions / passes if positions is not None else None
    columns = (1 + accepted / passes, expected, made / passes)
    # The last pass of a request may accept tokens that are past its end.
    tolerance = 0.01 + facts.k * requests / made
    finding = "The draft counters do not add up to the tokens that came out: one counts double or not at all."
    return row("tokens per pass", columns, "tokens", tolerance, finding=finding)


def _passes_made(facts: AuditFacts, requests: float) -> float:
    """Decoding passes: one a draft, but drafters that find nothing to propose leave passes without one."""
    steps = facts.counters.get("iteration_tokens_total_count")
    if facts.method not in SOMETIMES:
        return facts.counters.get("spec_decode_num_drafts", 0.0)
    if steps is None or facts.in_flight > 1:
        return 0.0
    budget = number(facts.reported, "max_num_batched_tokens") or math.inf
    return steps - requests * max(1, math.ceil(facts.prompt_tokens / budget))


def _positions(facts: AuditFacts) -> AuditRow:
    seen = [window.acceptance for window in facts.windows if window.acceptance is not None]
    drafts = sum(acceptance.drafts for acceptance in seen)
    columns = zip(*(acceptance.accepted_per_position for acceptance in seen), strict=False)
    rates = [sum(column) / drafts for column in columns] if drafts else []
    found = AuditRow(name="acceptance by position", unit="share", sentence="No drafts by position were seen.")
    if not rates:
        return found
    found = found.model_copy(update={"measured": " ".join(f"{rate:.3f}" for rate in rates), "verdict": "agrees"})
    falling = all(later <= earlier for earlier, later in pairwise(rates))
    if rates[0] > 1 or not falling:
        sentence = "A later token cannot be accepted more often than an earlier one, nor one more than always."
        return found.judged("impossible", sentence)
    beyond = bool(facts.drafter_block and facts.k > facts.drafter_block)
    if beyond or (rates[0] < 0.3 and facts.method not in SOMETIMES):
        sentence = "The drafter does not match the model or this k: its first token is hardly ever accepted."
        if beyond:
            sentence = f"k = {facts.k} is beyond the drafter's block of {facts.drafter_block}."
        return found.judged("premise differs", sentence)
    return found.model_copy(update={"sentence": "Falls with the position, as it must."})


def _prefill(facts: AuditFacts) -> AuditRow:
    shape = facts.shape
    peak = facts.card and facts.card.peak_flops(shape.quantization if shape else "")
    needed = prefill_flops_per_token(shape, facts.prompt_tokens) if shape else None
    ceiling = peak * facts.cards / needed if peak and needed else None
    over = "Faster than the card can multiply: prompts came from the prefix cache, or it is another model."
    return _under("prefill ceiling", facts.mean("prefill_tok_s"), ceiling, "tok/s", over=over)


def _clock(facts: AuditFacts) -> AuditRow:
    name = "request_time_per_output_token_seconds"
    requests = facts.counters.get(f"{name}_count", 0.0)
    reported = 1e3 * facts.counters[f"{name}_sum"] / requests if requests else None
    measured = facts.mean("mean_tpot_ms") if facts.in_flight == 1 else None
    finding = "The server's clock and the client's disagree on the same tokens: one is off, or something buffers."
    return row("clock", (reported, None, measured), "ms a token", 0.025, finding=finding)


def _output(facts: AuditFacts) -> AuditRow:
    reported = facts.counters.get("generation_tokens")
    measured = float(sum(window.total_output_tokens for window in facts.windows)) or None
    finding = "The client got other tokens than the server made: a cache in between, or somebody else's requests."
    if facts.in_flight > 1 and reported is not None and measured is not None and reported > measured:
        measured = None  # requests that fill and drain the server are not in the windows
    return row("output tokens", (reported, None, measured), "tokens", 0.01, finding=finding)
