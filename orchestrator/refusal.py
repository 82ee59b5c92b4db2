"""Refusal: what arithmetic, and what has failed on this stack before, rule out without another launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from search_spaces.configuration import Configuration, Scalar
from search_spaces.feasibility import infeasible
from search_spaces.space import SearchSpace
from trackers.records import Failure, TrialRecord

if TYPE_CHECKING:
    from .study import Study

__all__ = ["known_failure", "refuse"]

# Which memory a cause ran out of: a knob that declares `needs` of it cannot ask for more and succeed.
_RESOURCE = {
    "out_of_memory_weights": "device",
    "out_of_memory_kv": "kv",
    "out_of_memory_activation": "activation",
    "out_of_memory_graphs": "activation",
    "out_of_memory_load": "activation",
    "kv_below_max_model_len": "kv",
    "out_of_memory_host": "host",
}


def refuse(study: Study, configuration: Configuration, records: Sequence[TrialRecord]) -> Failure | None:
    """Why a configuration is not launched on this stack; None where it may be.

    Args:
        study: Its space, stack and fixed flags.
        configuration: What would be launched.
        records: The study's own records: a stack that moved has another study, so its verdicts are open again.
    """
    found = infeasible(
        configuration,
        serve=study.pad.serve,
        version=study.stack.items.get("vllm"),
        space=study.space,
        facts=study.facts,
    )
    if found is not None:
        return Failure(cause=found.cause, kind="infeasible", message=found.message)
    return known_failure(configuration, study.space, records)


def known_failure(configuration: Configuration, space: SearchSpace, records: Sequence[TrialRecord]) -> Failure | None:
    """A failure that was paid for already and holds here: of this configuration, or of one that needs less."""
    for record in records:
        failure = record.failure
        if record.state != "engine_failed" or failure is None or failure.kind != "infeasible":
            continue
        if record.configuration == configuration:
            return failure.model_copy(update={"message": f"{failure.message} (trial #{record.number})"})
        resource = _RESOURCE.get(failure.cause)
        if resource and _needs_at_least(configuration.values, record.configuration.values, resource, space):
            return failure.model_copy(
                update={"message": f"needs no less {resource} memory than trial #{record.number}: {failure.message}"}
            )
    return None


def _needs_at_least(
    here: Mapping[str, Scalar], failed: Mapping[str, Scalar], resource: str, space: SearchSpace
) -> bool:
    """Whether every difference asks for as much of the resource or more; an undeclared one proves nothing."""
    knobs = {knob.name: knob for knob in space.knobs if knob.active(here)}
    for name in here.keys() | failed.keys():
        if here.get(name) == failed.get(name):
            continue
        knob = knobs.get(name)
        mine, theirs = here.get(name), failed.get(name)
        if knob is None or resource not in knob.needs or not knob.ordered:
            return False
        if not isinstance(mine, int | float) or not isinstance(theirs, int | float) or mine < theirs:
            return False
    return True
