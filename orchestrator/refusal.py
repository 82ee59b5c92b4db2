"""Refusal: what arithmetic, and what has failed on this stack before, rule out without another launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from search_spaces.configuration import Configuration, Scalar
from search_spaces.feasibility import infeasible
from search_spaces.space import SearchSpace
from trackers.records import Failure, TrialRecord

if TYPE_CHECKING:
    from .study import Study

__all__ = ["NO_DRAFTER", "could_not_run", "gamble", "known_failure", "refuse"]

_DEVICE = frozenset({"device", "kv", "activation"})
# Which memory a cause ran out of. What the device holds is one pool: a configuration that asks for no less of any
# part of it fails too, if perhaps by another name.
_RESOURCE: dict[str, frozenset[str]] = {
    **dict.fromkeys(("out_of_memory_kv", "kv_below_max_model_len"), _DEVICE - {"device"}),
    **dict.fromkeys(("out_of_memory_weights", "out_of_memory_activation", "out_of_memory_graphs"), _DEVICE),
    "out_of_memory_load": _DEVICE,
    "out_of_memory_host": frozenset({"host"}),
}
_GAMBLE = 8
NO_DRAFTER = ("unsupported_drafter", "unknown_drafter")
"""Causes of failure that are a drafter's, whatever else was chosen beside it."""


def refuse(study: Study, configuration: Configuration, records: Sequence[TrialRecord]) -> Failure | None:
    """Why a configuration is not launched on this stack; None where it may be.

    Args:
        study: Its space, stack and fixed flags.
        configuration: What would be launched.
        records: The study's own records: a stack that moved has another study, so its verdicts are open again.
    """
    knobs = {knob.name for knob in study.space.knobs}
    if foreign := [name for name in configuration.values if "." not in name and name not in knobs]:
        # Found on another engine version: this one's space leaves out what it lacks.
        message = f"{study.engine} has no {', '.join(foreign)} in this plan"
        return Failure(cause="unknown_flag", kind="infeasible", message=message)
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
    """A failure that was paid for already and holds here: of this configuration, or of one that needs less.

    What ran with no less memory than a failure speaks against it: chance, or a neighbour of the moment, was its cause.
    """
    ran = [record.configuration.values for record in records if record.state == "measured"]
    for record in records:
        failure = record.failure if record.state == "engine_failed" else None
        if failure is None or failure.kind != "infeasible":
            continue
        if record.configuration == configuration:
            return failure.model_copy(update={"message": f"{failure.message} (trial #{record.number})"})
        resources, less = _RESOURCE.get(failure.cause), record.configuration.values
        if not resources or not _needs_at_least(configuration.values, less, resources, space):
            continue
        if not any(_needs_at_least(values, less, resources, space) for values in ran):
            return failure.model_copy(
                update={"message": f"needs no less memory than trial #{record.number}: {failure.message}"}
            )
    return None


def could_not_run(records: Sequence[TrialRecord], one: Configuration) -> bool:
    """Whether the stack of these records was asked for a configuration and could not run it, or not its drafter."""
    ran = {record.configuration.drafter for record in records if record.state == "measured"}
    for record in records:
        failure, cause = record.failure, record.reason.partition(":")[0]
        if record.state == "engine_failed" and failure is not None and failure.kind == "infeasible":
            cause = failure.cause
        elif record.state != "refused":
            continue
        of_drafter = record.configuration.drafter == one.drafter and one.drafter not in ran
        if record.configuration == one or (of_drafter and cause in NO_DRAFTER):
            return True
    return False


def gamble(configuration: Configuration, space: SearchSpace, records: Sequence[TrialRecord]) -> bool:
    """Whether a launch is better spent elsewhere: it asks for much more memory than any that started.

    Until one has failed for lack of memory nothing is too much, then twice as much; while more than one launch in
    `_GAMBLE` failed so, nothing more at all.
    """
    launched = [record for record in records if record.launches]
    failed = [record for record in launched if record.failure is not None and record.failure.cause in _RESOURCE]
    if not failed:
        return False
    limit = 2.0 if len(failed) <= len(launched) // _GAMBLE else 1.0
    asked = _demand(configuration, space)
    started = (_demand(one.configuration, space) for one in launched if one.launches[-1].ready_s is not None)
    return all(
        math.prod(max(1.0, amount / had.get(name, amount)) for name, amount in asked.items()) > limit for had in started
    )


def _demand(configuration: Configuration, space: SearchSpace) -> dict[str, float]:
    """The settings of a configuration that ask for memory as they grow; draft tokens with the one that is sure."""
    knobs = {knob.name: knob for knob in space.knobs if knob.needs and knob.ordered and knob.name != "k"}
    chosen = {name: value for name, value in configuration.values.items() if name in knobs}
    return {name: float(value) for name, value in chosen.items() if value} | {"k": 1.0 + configuration.k}


def _needs_at_least(
    here: Mapping[str, Scalar], there: Mapping[str, Scalar], resources: AbstractSet[str], space: SearchSpace
) -> bool:
    """Whether every difference asks for as much of the memory or more; an undeclared one proves nothing."""
    knobs = {knob.name: knob for knob in space.knobs if knob.active(here)}
    # What a drafter holds comes on top of what the model needs without one.
    beside = there.get("drafter") == "none" and {"drafter", "k"}
    for name in here.keys() | there.keys():
        if here.get(name) == there.get(name) or (beside and (name in beside or name.startswith("drafter."))):
            continue
        knob = knobs.get(name)
        mine, theirs = here.get(name), there.get(name)
        if knob is None or not resources & set(knob.needs) or not knob.ordered:
            return False
        if not isinstance(mine, int | float) or not isinstance(theirs, int | float) or mine < theirs:
            return False
    return True
