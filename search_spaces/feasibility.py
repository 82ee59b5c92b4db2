"""Feasibility: what arithmetic alone rules out, before an engine is started for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from .configuration import Configuration
from .drafters import DRAFTERS, slots_per_request
from .serve_args import number
from .space import SearchSpace
from .versions import lacks

__all__ = ["KnownFacts", "Refusal", "infeasible"]


class KnownFacts(BaseModel):
    """What is known of an engine, its device and its model without a launch; None is unknown.

    The two `max_num_*` are what the engine takes where nothing is asked for; `dspark_block_size` is the
    draft checkpoint's; `n_predict` is the number of multi-token heads (0: the checkpoint has none).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flags: frozenset[str] | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    model_max_len: int | None = None
    dspark_block_size: int | None = None
    n_predict: int | None = None


class Refusal(BaseModel):
    """Why a configuration cannot run: the cause a failed launch would be given, and the arithmetic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: str
    message: str


def infeasible(
    configuration: Configuration,
    *,
    serve: Mapping[str, Any],
    version: str | None,
    space: SearchSpace,
    facts: KnownFacts | None = None,
) -> Refusal | None:
    """The first rule that a configuration breaks; None also where too little is known to say.

    Args:
        configuration: What would be launched.
        serve: Flags fixed for every launch, underscore names.
        version: Of the engine; None or a nightly's without a number lifts the rules that need it.
        space: The plan's space.
        facts: What is known without a launch.
    """
    known = facts or KnownFacts()
    values = {**serve, **{name.removeprefix("serve."): one for name, one in configuration.values.items()}}
    rules = (
        _lacking(configuration, version, space, known),
        _batch(values, known),
        _draft(configuration, version, known),
        _slots(configuration, values, version, known),
    )
    return next((Refusal(cause=cause, message=text) for rule in rules for cause, text in rule), None)


_Found = Iterator[tuple[str, str]]


def _lacking(here: Configuration, version: str | None, space: SearchSpace, facts: KnownFacts) -> _Found:
    drafter = DRAFTERS.get(here.drafter)
    if drafter and lacks(version, drafter.since, drafter.until):
        yield "unknown_drafter", f"vLLM {version} has no {drafter.name}; it came with {drafter.since}"
    if here.drafter == "mtp" and facts.n_predict == 0:
        yield "unsupported_drafter", "the model's checkpoint has no multi-token heads"
    for knob in space.knobs:
        target = knob.flag or knob.env
        if target is None or here.values.get(knob.name, "default") == "default":
            continue
        unknown = facts.flags is not None and knob.flag and knob.flag.split(".")[0] not in facts.flags
        if knob.absent_in(version) or unknown:
            yield "unknown_flag", f"vLLM {version} has no {target}, which {knob.name} sets"


def _batch(values: Mapping[str, Any], facts: KnownFacts) -> _Found:
    batch = _number(values.get("max_num_batched_tokens"))
    seqs, length = _number(values.get("max_num_seqs")), _number(values.get("max_model_len"))
    if batch and seqs and batch < seqs:
        yield "batch_below_seqs", f"max_num_batched_tokens {batch} is under max_num_seqs {seqs}"
    if batch and length and batch < length and values.get("enable_chunked_prefill") is False:
        yield "bad_value", f"without chunked prefill, {batch} tokens hold no prompt of {length}"
    if length and facts.model_max_len and length > facts.model_max_len:
        yield "bad_value", f"max_model_len {length} is over the model's {facts.model_max_len}"


def _draft(here: Configuration, version: str | None, facts: KnownFacts) -> _Found:
    k, block, heads = here.k, facts.dspark_block_size, facts.n_predict
    if here.drafter == "dspark" and block and k:
        whole = version and not lacks(version, "0.26.0", "0.28.0")
        if whole and k < block:
            yield "bad_value", f"vLLM {version} wants dspark's k at its block of {block} or over, not {k}"
        if k > block:
            # It starts, but acceptance falls at every position, not only past the block.
            yield "bad_value", f"k {k} is over the {block} tokens that the drafter was trained to write"
    if here.drafter == "mtp" and heads and k > heads and k % heads:
        yield "bad_value", f"k {k} is over the model's {heads} multi-token heads and no multiple of them"


def _slots(here: Configuration, values: Mapping[str, Any], version: str | None, facts: KnownFacts) -> _Found:
    parallel = bool(here.values.get("drafter.parallel_drafting"))
    slots = slots_per_request(here.drafter, here.k, version, parallel=parallel)
    batch = _number(values.get("max_num_batched_tokens")) or facts.max_num_batched_tokens
    seqs = _number(values.get("max_num_seqs")) or facts.max_num_seqs
    if not slots or not batch or version is None:
        return
    cause = "draft_slots_over_budget"
    if not lacks(version, "0.28.0", None):
        if batch <= slots:
            yield cause, f"{slots} draft slots a request leave nothing of max_num_batched_tokens {batch}"
    elif seqs:
        left = batch - slots * seqs
        # Before 0.20.2 exactly nothing left meant the whole budget; less went to the scheduler unchecked.
        if left < 0 or (left == 0 and not lacks(version, "0.20.2", None)):
            yield cause, f"{slots} draft slots x {seqs} max_num_seqs leave {left} of {batch} batched tokens"


def _number(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)
