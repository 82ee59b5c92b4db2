"""Where engines are placed: whether a cluster has what a plan asks for, and which of its machines are alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from search_spaces.knob import normal_flag

from .errors import ClusterError
from .plan import PARALLEL, Slots

__all__ = ["Node", "alike", "check_places", "emptiest", "gpus_of", "nodes_of"]

_SIZES = {normal_flag(name) for name in PARALLEL}
# What two machines must share for their numbers to stand in one study.
_CLASS = ("gpu", "driver", "cpu", "cpu.isa", "cpu.cores")
_TYPE = "accelerator_type:"


class Node(NamedTuple):
    """One machine of a cluster: its GPUs, of which types, and its labels."""

    name: str
    gpus: int
    types: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    id: str = ""


def nodes_of(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The living nodes of Ray's list."""
    return [
        Node(
            name=str(one.get("NodeName") or one["NodeID"][:8]),
            gpus=int(one["Resources"].get("GPU", 0)),
            types=tuple(sorted(name.removeprefix(_TYPE) for name in one["Resources"] if name.startswith(_TYPE))),
            labels=dict(one.get("Labels") or {}),
            id=str(one["NodeID"]),
        )
        for one in told
        if one["Alive"]
    ]


def check_places(slots: Slots, nodes: Sequence[Node]) -> None:
    """Nothing where every slot has a place.

    Raises:
        ClusterError: The cluster lacks GPUs, their type, labelled nodes or nodes; or its nodes are unlike.
    """
    fitting = _fitting(slots, nodes)
    has = "; ".join(f"{one.name}: {one.gpus} GPU(s) {' '.join(one.types)}".strip() for one in nodes) or "no node"
    widest = max((one.gpus for one in fitting), default=0)
    room = sum(one.gpus // slots.gpus for one in fitting) if slots.gpus else slots.count
    large = [one for one in fitting if one.gpus >= slots.gpus]
    types = {kind for one in large for kind in one.types}
    wants = ""
    if slots.gpu_type and not any(slots.gpu_type in one.types for one in nodes):
        wants = f"for GPUs of type {slots.gpu_type}, and no node has them"
    elif slots.labels and not fitting:
        wants = f"for nodes with the labels {dict(slots.labels)}, and none has them"
    elif widest < slots.gpus:
        wants = f"for {slots.gpus} GPUs in one slot, and no node has more than {widest}: an engine stays on one node"
    elif room < slots.count:
        wants = f"for {slots.count} slots of {slots.gpus} GPU(s), and there is room for {room}"
    elif len(large) < slots.nodes:
        wants = f"for {slots.nodes} nodes, and {len(large)} fit"
    elif slots.gpus and slots.gpu_type is None and len(types) > 1:
        wants = f"for any GPU, and the nodes are unlike ({', '.join(sorted(types))}): name one type with slots.gpu_type"
    if wants:
        raise ClusterError(f"The plan asks {wants}.", f"The cluster has {has}. Change slots in the plan.")


def emptiest(
    slots: Slots, nodes: Sequence[Node], ours: Iterable[str | None], lost: Iterable[str | None] = ()
) -> str | None:
    """Id of the node with the fewest of `ours` (a node id for each worker) among those that fit; None without one.

    One on which workers were `lost` counts as fuller by two for each, so that a retry goes elsewhere.
    """
    workers, losses = Counter(ours), Counter(lost)
    fitting = [one for one in _fitting(slots, nodes) if one.gpus >= slots.gpus * (workers[one.id] + 1)]
    return min(fitting, key=lambda one: (workers[one.id] + 2 * losses[one.id], losses[one.id])).id if fitting else None


def _fitting(slots: Slots, nodes: Sequence[Node]) -> list[Node]:
    """Those of the slots' GPU type, with the labels asked for."""
    typed = (one for one in nodes if slots.gpu_type in (None, *one.types))
    return [one for one in typed if slots.labels.items() <= one.labels.items()]


def alike(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """In which ways a machine is another kind than the study's; empty where their numbers may stand together."""
    return [
        f"{name} {here.get(name, 'none')} against {there.get(name, 'none')}"
        for name in _CLASS
        if here.get(name) != there.get(name)
    ]


def gpus_of(args: Sequence[str]) -> int:
    """How many GPUs a serve line takes: tensor x pipeline x data parallel size."""
    words = [part for arg in args for part in (arg.split("=", 1) if arg.startswith("--") else [arg])]
    sizes = [after for flag, after in pairwise(words) if flag in _SIZES and after.isdigit()]
    return math.prod(map(int, sizes))
