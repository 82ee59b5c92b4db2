"""Drafters: the ways to propose draft tokens, what each needs, and the engine's settings it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .configuration import Scalar
from .knob import Knob
from .values import Values
from .versions import lacks

__all__ = ["DRAFTERS", "SETTINGS", "Drafter", "drafter_knobs", "slots_per_request", "speculative_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """One method: `k` is the range searched where a plan gives none; None where nothing is drafted."""

    name: str
    says: str
    k: tuple[int, int] | None
    needs_model: bool = False
    since: str | None = None
    until: str | None = None


def _drafter(name: str, says: str, k: tuple[int, int] | None, **needs: Any) -> tuple[str, Drafter]:
    return name, Drafter(name=name, says=says, k=k, **needs)


DRAFTERS: dict[str, Drafter] = dict(
    [
        _drafter("none", "Nothing is drafted: one token a pass.", None),
        _drafter("ngram", "Repeats what followed the same tokens earlier in this request.", (1, 16)),
        _drafter("suffix", "Repeats from this and earlier requests; needs the package it comes in.", (1, 32)),
        _drafter("draft_model", "A smaller model with the same vocabulary.", (1, 8), needs_model=True),
        _drafter("eagle3", "A trained head reading the target's hidden states.", (1, 8), needs_model=True),
        _drafter("mtp", "The multi-token heads within the target's own checkpoint.", (1, 8)),
        _drafter("dflash", "Drafts a block in one pass.", (2, 16), needs_model=True, since="0.20.0"),
        # DeepSeek-V4 carries its drafter within the target, so no model is asked for.
        _drafter("dspark", "Drafts a block in one pass, each token aware of those before.", (2, 16), since="0.25.0"),
    ]
)

SETTINGS = frozenset(
    """attention_backend code_revision disable_eagle_block_drop disable_lookahead_block_hashes
    disable_padded_drafter_batch draft_lm_head_quantization draft_load_config draft_sample_method
    draft_tensor_parallel_size dspark_draft_topk enable_adaptive_verification enforce_eager
    fly_entropy_threshold fly_entropy_top_k fly_window_size index_share_for_mtp_iteration kv_cache_dtype
    max_model_len moe_backend num_speculative_tokens_per_batch_size parallel_drafting prompt_lookup_max
    prompt_lookup_min quantization rejection_sample_method revision speculative_token_tree
    suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth
    suffix_decoding_min_token_prob synthetic_acceptance_length synthetic_acceptance_rate
    synthetic_acceptance_rates use_heterogeneous_vocab use_local_argmax_reduction xpress_topc""".split()  # noqa: SIM905
)
"""Keys of the speculative configuration that a plan may fix. An engine without one refuses it by name."""


def drafter_knobs(chosen: Mapping[str, Values | None]) -> list[Knob]:
    """The knob `drafter` over these names, and a knob `k` for each that drafts."""
    says = "How draft tokens are proposed; one pass of the model checks them all."
    # Prefill is done before anything is drafted: the null that tells a drafter's gain from drift.
    knobs = [Knob(name="drafter", says=says, choices=tuple(chosen), nulls=("prefill_tok_s",))]
    for name, values in chosen.items():
        if values is None:
            continue
        knobs.append(
            Knob(
                name="k",
                says=f"Draft tokens a pass under {name}.",
                only_if={"drafter": (name,)},
                nulls=("prefill_tok_s",),
                needs=("kv", "activation"),
                **values.model_dump(),
            )
        )
    return knobs


def speculative_config(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """The engine's speculative configuration of a configuration's values; empty where nothing is drafted.

    A setting that is a JSON object or list (as text, since a configuration holds scalars) is parsed.
    """
    drafter = str(values.get("drafter", "none"))
    if drafter == "none":
        return {}
    found: dict[str, Any] = {"method": drafter}
    if "k" in values:
        found["num_speculative_tokens"] = values["k"]
    for name, value in values.items():
        if name.startswith("drafter."):
            nested = isinstance(value, str) and value.startswith(("{", "["))
            found[name.removeprefix("drafter.")] = json.loads(str(value)) if nested else value
    rates = found.get("synthetic_acceptance_rates")
    if isinstance(rates, list):
        # One curve for every k: the engine wants as many rates as it has draft tokens.
        found["synthetic_acceptance_rates"] = rates[: int(values.get("k", len(rates)))]
    return found


def slots_per_request(drafter: str, k: int, version: str | None, *, parallel: bool = False) -> int | None:
    """Scheduler slots that drafting takes for each request, by the engine's own rule; None where unknown.

    Args:
        drafter: Its name.
        k: Draft tokens a pass.
        version: Of the engine.
        parallel: Whether the draft model writes all its tokens in one pass (`parallel_drafting`).
    """
    if drafter in ("none", "ngram", "suffix", "mtp") or (drafter == "eagle3" and not parallel):
        return 0
    if version is None:
        return None
    if drafter == "draft_model":
        return k if parallel else 1
    if drafter in ("dspark", "dflash") and not lacks(version, "0.33.0", None):
        return 0
    return k if drafter == "dflash" and not lacks(version, "0.28.0", None) else k - 1
