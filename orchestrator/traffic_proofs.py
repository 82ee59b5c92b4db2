"""Proofs about the traffic: the answers are what was asked, the cache as claimed, the client out of the way.

Each function is one check: its name is the check's name, its docstring says what it proves.
"""

from __future__ import annotations

from collections import Counter

from .evidence import Evidence, Verdict

__all__ = ["TRAFFIC_PROOFS"]

# A chat template may open every prompt with the same few tokens, before any salt.
_TEMPLATE_TOKENS = 64
_CLIENT_SHARE = 0.05
_CLIENT_BUSY = 0.7
_IDENTITY = 0.02
_CLOCK_MS = 2.0


def streams_finished(e: Evidence) -> Verdict:
    """Every stream of the window ended whole, with a finish reason and token counts."""
    errors = Counter(each.error for each in e.samples if each.error)
    if not errors:
        return True, f"{len(e.samples)} whole"
    first = next(each for each in e.samples if each.error)
    named = ", ".join(f"{count} x {name}" for name, count in errors.most_common())
    return False, f"{named}, of {len(e.samples)}; {first.error}: {first.detail}"


def output_length(e: Evidence) -> Verdict:
    """Every answer has as many tokens as were asked for."""
    if e.workload.kind == "tool_loop" or not e.whole:
        return None
    lengths = Counter((each.request.output_tokens, each.output_tokens) for each in e.whole)
    wrong = [f"{n} x asked {asked}, got {got}" for (asked, got), n in lengths.items() if asked != got]
    return not wrong, "; ".join(wrong[:3]) or f"{len(e.whole)} as asked"


def cold_prefix(e: Evidence) -> Verdict:
    """A run that claims to be cold took nothing from the prefix cache."""
    if e.workload.claims != "cold" or not e.whole:
        return None
    hits = e.grown("prefix_cache_hits")
    if hits is None:
        return None, "the server does not count prefix-cache hits"
    detail = f"{hits:.0f} of {e.grown('prefix_cache_queries') or 0:.0f} prompt tokens from the cache"
    if hits <= (_TEMPLATE_TOKENS * len(e.whole) if "messages" in e.whole[0].request.body else 0):
        return True, detail
    return False, f"{detail}: it held these prompts already (reset it, restart, or take another seed)"


def warm_prefix(e: Evidence) -> Verdict:
    """A run over a shared prefix was served from the cache; with the cache off, from nothing."""
    hits = e.grown("prefix_cache_hits")
    if e.workload.claims != "warm" or len(e.whole) < 2:
        return None
    if hits is None:
        return None, "the server does not count prefix-cache hits"
    caching = e.after.labels("vllm:cache_config_info").get("enable_prefix_caching") if e.after else None
    off = caching == "False"
    return (hits == 0 if off else hits > 0), f"{hits:.0f} tokens from the cache{', which is off' if off else ''}"


def token_identity(e: Evidence) -> Verdict:
    """Tokens a second are tokens a pass times passes a second, each from its own counter."""
    split = e.metrics.get("tokens_per_pass"), e.metrics.get("passes_s")
    spread = [each for each in e.whole if each.decode_ms > 0]
    starved = client_bound(e)
    if e.workload.in_flight != 1 or None in split or not spread or (starved and not starved[0]):
        return None  # a client that was starved has no times to compare with
    seconds = sum(each.decode_ms for each in spread) / 1e3
    tokens = sum(each.output_tokens - 1 for each in spread)
    counted = (split[0] or 0) * (split[1] or 0)
    gap = counted / (tokens / seconds) - 1
    # Drafts accepted beyond the last token asked for are counted and never sent: at most k for each request.
    k = len(e.acceptance.accepted_per_position) if e.acceptance else 0
    # The client's own delays, at the first token or the last, make its time shorter or longer by as much.
    late_s = e.client.get("share", 0.0) * sum(each.token_ns[-1] - each.sent_ns for each in spread) / 1e9
    slack = _IDENTITY + (_CLOCK_MS * len(spread) / 1e3 + late_s) / seconds
    detail = f"client {tokens / seconds:.2f} tok/s, counters {counted:.2f} ({gap:+.1%})"
    return -slack <= gap <= slack + k * len(spread) / max(1, tokens), detail


def reasoning_as_asked(e: Evidence) -> Verdict:
    """No reasoning came where thinking was switched off."""
    chat = [each for each in e.whole if "messages" in each.request.body]
    if not chat or e.workload.enable_thinking:
        return None
    thought = sum(each.reasoned or "<think>" in each.text for each in chat)
    return thought == 0, f"{thought} of {len(chat)} answers reason though thinking is switched off"


def tool_call_parsed(e: Evidence) -> Verdict:
    """A tool call came back as a call, not as text: the server has the right parser switched on."""
    bad = {name: n for name, n in e.turns.items() if name.startswith("tool_")}
    if not e.turns:
        return None
    return not bad, "; ".join(f"{n} x {name}" for name, n in bad.items()) or f"{sum(e.turns.values())} calls"


def tool_turn_finished(e: Evidence) -> Verdict:
    """The turn ended with an answer after the tool's result, not cut off."""
    bad = {name: n for name, n in e.turns.items() if name.startswith("answer_")}
    if not e.turns:
        return None
    return not bad, "; ".join(f"{n} x {name}" for name, n in bad.items())


def client_bound(e: Evidence) -> Verdict:
    """The client took only a small share of the result: its own lag, lateness and load are measured."""
    if not e.whole or "share" not in e.client:
        return None
    share, busy = e.client["share"], e.client["busy_share"]
    detail = f"the client's delays are {share:.1%} of the result, its loop was busy {busy:.0%} of the time"
    return share <= _CLIENT_SHARE and busy <= _CLIENT_BUSY, detail


TRAFFIC_PROOFS = (
    streams_finished,
    output_length,
    cold_prefix,
    warm_prefix,
    token_identity,
    reasoning_as_asked,
    tool_call_parsed,
    tool_turn_finished,
    client_bound,
)
