"""Proofs about the server: it is ours, it runs what was asked for, and nobody else used it.

Each function is one check: its name is the check's name, its docstring says what it proves.
"""

from __future__ import annotations

from search_spaces.serve_args import number

from .evidence import Evidence, Verdict

__all__ = ["SERVER_PROOFS"]

_WORDS = {"enabled": "true", "disabled": "false"}  # as logs have it
# Flags whose name in `vllm:cache_config_info` is another.
_LABELS = {"kv_cache_dtype": "cache_dtype"}


def listener_is_ours(e: Evidence) -> Verdict:
    """The process that listens on the port belongs to the engine we started."""
    listener = e.expected.listener if e.expected else None
    return None if listener is None else (listener.passed, listener.detail)


def served_model(e: Evidence) -> Verdict:
    """The server's list of models names the one we launched."""
    if e.expected is None:
        return None
    if e.models is None:
        return None, "/v1/models does not answer"
    found = ", ".join(sorted(e.models)) or "nothing"
    return e.expected.model in e.models, f"asked {e.expected.model}, serves {found}"


def served_version(e: Evidence) -> Verdict:
    """The server answers the engine version we launched."""
    if e.expected is None or e.expected.version is None:
        return None
    if e.version is None:
        return None, "/version does not answer"
    # A local part (+cpu, +cu129) is written by some builds and left out by others.
    same = e.version.partition("+")[0] == e.expected.version.partition("+")[0]
    return same, f"launched {e.expected.version}, answers {e.version}"


def settings_in_effect(e: Evidence) -> Verdict:
    """What was asked for is what the engine says it runs, in its metrics, its model list and its log."""
    if e.expected is None:
        return None
    seen = _seen(e)
    asked = dict(e.expected.settings)
    if e.expected.prefix_caching is not None:
        asked["enable_prefix_caching"] = str(e.expected.prefix_caching)
    found = {name: seen.get(_LABELS.get(name, name), seen.get(name)) for name in asked}
    wrong = [f"{n}: asked {asked[n]}, runs {v}" for n, v in found.items() if v and not _same(asked[n], v)]
    proven = sum(value is not None for value in found.values())
    if e.expected.drafter is not None and e.after is not None and e.after.has("vllm:request_success"):
        drafting = e.after.has("vllm:spec_decode_num_drafts")
        proven += 1
        if drafting != (e.expected.drafter != "none"):
            wrong.append(f"drafter: asked {e.expected.drafter}, {'drafts' if drafting else 'does not draft'}")
    unseen = ", ".join(sorted(name for name, value in found.items() if value is None))
    detail = f"{proven} as asked" + (f"; the engine does not show {unseen}" if unseen else "")
    return (False, "; ".join(wrong)) if wrong else (True if proven else None, detail)


def _seen(e: Evidence) -> dict[str, str]:
    seen: dict[str, str] = dict(e.expected.reported) if e.expected else {}
    if e.after is not None:
        seen |= e.after.labels("vllm:cache_config_info")
    if e.expected and e.models and e.models.get(e.expected.model):
        seen["max_model_len"] = e.models[e.expected.model]
    return seen


def _same(asked: str, seen: str) -> bool:
    told = _WORDS.get(seen.lower(), seen.lower())
    if asked.lower() in ("auto", "-1", told):  # what the engine is left to find
        return True
    mine, theirs = number(asked), number(seen)
    return mine is not None and theirs is not None and abs(mine - theirs) <= 1e-9 * abs(mine)


def same_server(e: Evidence) -> Verdict:
    """The server was not restarted or replaced inside the window."""
    if e.before is None:
        return None
    if e.after is None:
        return False, "/metrics answered before the window and not after it"
    started = {page.total("process_start_time_seconds") for page in (e.before, e.after)}
    back = any((e.grown(name) or 0) < 0 for name in ("request_success", "prompt_tokens", "generation_tokens"))
    return len(started) == 1 and not back, "another process: start time moved" if len(started) > 1 else ""


def drafts_alive(e: Evidence) -> Verdict:
    """Where drafting was asked for, drafts were made."""
    if e.expected is None or e.expected.drafter in (None, "none") or e.after is None or not e.whole:
        return None
    drafts = e.acceptance.drafts if e.acceptance else 0
    # A lookup finds nothing to propose in some texts; a drafting model always proposes.
    lookup = str(e.expected.drafter).startswith(("ngram", "suffix"))
    return drafts > 0 or (None if lookup else False), f"{drafts} drafts"


def no_preemptions(e: Evidence) -> Verdict:
    """No request was preempted, unless the workload is meant to."""
    count = e.grown("num_preemptions")
    return None if count is None or e.workload.allow_preemptions else (count == 0, f"{count:.0f}")


def sole_user(e: Evidence) -> Verdict:
    """The server's counts of requests and tokens add up to ours: nobody else used it, it used no other."""
    count = e.grown("request_success")
    if count is None:
        return None
    sent = sum(each.error != "not_sent" for each in e.samples)
    if not len(e.whole) <= count <= sent:
        return False, f"the server counts {count:.0f} requests, we sent {sent} ({len(e.whole)} whole)"
    totals = {
        "prompt_tokens": sum(each.input_tokens for each in e.whole),
        "generation_tokens": sum(each.output_tokens for each in e.whole),
    }
    for name, ours in totals.items():
        theirs = e.grown(name)
        if len(e.whole) == sent and theirs is not None and theirs != ours:
            return False, f"the server counts {theirs:.0f} {name}, our answers have {ours}"
    return True, f"{count:.0f} requests"


def host_quiet(e: Evidence) -> Verdict:
    """No other process on our GPUs, and nothing slowed their clocks; the CPU load is noted, not judged."""
    load = f"load {e.host.get('load1', '?')} on {e.host.get('cores', '?')} cores"
    ours = set(map(str, e.expected.engine_pids)) if e.expected else set()
    there = [pair.split(":") for pair in e.host.get("gpu.pids", "").split(",") if pair]
    # The other cards of the machine are other engines'. Where none of ours is seen, as in a container, the
    # numbers of processes mean nothing, and any card may be ours.
    cards = {card for card, pid in there if pid in ours}
    slowed = [card for card in e.host.get("gpu.slowed", "").split(",") if card and card in (cards or {card})]
    if slowed:
        return False, f"GPU {', '.join(slowed)} was slowed by heat, power brake or hardware; {load}"
    others = sorted(pid for card, pid in there if card in cards and pid not in ours)
    if others:
        return False, f"processes {', '.join(others)} are on GPU {', '.join(sorted(cards))} too; {load}"
    return (True if "gpu.slowed" in e.host else None), load


SERVER_PROOFS = (
    listener_is_ours,
    served_model,
    served_version,
    settings_in_effect,
    same_server,
    drafts_alive,
    no_preemptions,
    sole_user,
    host_quiet,
)
