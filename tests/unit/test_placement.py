"""A plan that asks for what a cluster has not is told so, with what it has; sizes of engines are counted in GPUs."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from two_engines import plan

from orchestrator.errors import ClusterError
from orchestrator.placement import Node, alike, check_places, emptiest, gpus_of, nodes_of
from orchestrator.plan import Slots

A = Node("a", 4, ("H200",), {"pool": "blue"})
B = Node("b", 4, ("H200",))
OLD = Node("old", 8, ("A100",))
HEAD = Node("head", 0)


@pytest.mark.parametrize(
    ("slots", "nodes", "said"),
    [
        ({"gpus": 8}, [A, B, HEAD], "8 GPUs in one slot, and no node has more than 4"),
        ({"gpus": 4, "count": 3}, [A, B, HEAD], "3 slots of 4 GPU.s., and there is room for 2"),
        ({"gpus": 1, "gpu_type": "H100"}, [A, OLD], "type H100, and no node has them"),
        ({"gpus": 1, "labels": {"pool": "red"}}, [A, B], "labels .*red.*, and none has them"),
        ({"gpus": 1, "nodes": 3}, [A, B, HEAD], "3 nodes, and 2 fit"),
        ({"gpus": 1}, [A, OLD], "unlike .A100, H200.: name one type with slots.gpu_type"),
        ({"gpus": 1}, [], "1 GPUs in one slot, and no node has more than 0"),
    ],
)
def test_what_a_cluster_lacks_is_named(slots: dict, nodes: list[Node], said: str) -> None:
    with pytest.raises(ClusterError, match=said) as caught:
        check_places(Slots.model_validate(slots), nodes)
    assert all(one.name in caught.value.hint for one in nodes)


@pytest.mark.parametrize(
    "slots", [{"gpus": 4, "count": 2}, {"gpus": 1, "labels": {"pool": "blue"}}, {"gpus": 2, "nodes": 2}, {"count": 64}]
)
def test_what_a_cluster_has_is_taken(slots: dict) -> None:
    check_places(Slots.model_validate(slots), [A, B, HEAD])


def test_one_type_of_several_is_chosen_by_its_name() -> None:
    check_places(Slots(gpus=8, gpu_type="A100"), [A, OLD])


def test_nodes_are_read_from_what_ray_tells_and_dead_ones_are_not() -> None:
    resources = {"GPU": 2.0, "accelerator_type:H200": 1.0, "CPU": 8.0}
    told = {"Alive": True, "NodeID": "abcdef0123", "NodeName": "n1", "Resources": resources, "Labels": {"x": "y"}}
    assert nodes_of([told, {**told, "Alive": False}]) == [Node("n1", 2, ("H200",), {"x": "y"}, "abcdef0123")]


@pytest.mark.parametrize(
    ("slots", "ours", "chosen"),
    [
        ({}, "", "a"),
        ({}, "a", "b"),
        ({}, "abh", "a"),
        ({"gpus": 2}, "aab", "b"),
        ({"gpus": 2}, "aabb", None),
        ({"gpus": 3}, "ab", None),
        ({"gpus": 1, "labels": {"pool": "blue"}}, "aaa", "a"),
        ({"gpus": 1, "gpu_type": "A100"}, "", None),
    ],
)
def test_the_emptiest_node_that_fits_is_chosen(slots: dict, ours: str, chosen: str | None) -> None:
    nodes = [A._replace(id="a"), B._replace(id="b"), HEAD._replace(id="h")]
    assert emptiest(Slots.model_validate(slots), nodes, ours) == chosen


@pytest.mark.parametrize(
    ("ours", "lost", "chosen"), [("a", "b", "a"), ("a", "", "b"), ("aaa", "b", "b"), ("", "aab", "b")]
)
def test_a_node_that_lost_workers_is_not_where_the_next_one_goes(ours: str, lost: str, chosen: str) -> None:
    assert emptiest(Slots(nodes=2), [A._replace(id="a"), B._replace(id="b")], ours, lost) == chosen


def test_machines_are_alike_by_gpu_driver_and_processor_whatever_their_names() -> None:
    here = {"gpu": "H200", "driver": "580", "cpu": "x", "machine": "1"}
    assert alike(here, {**here, "machine": "2"}) == []
    assert alike(here, {**here, "gpu": "A100"}) == ["gpu H200 against A100"]


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ([], 1),
        (["--tensor-parallel-size", "2", "--pipeline-parallel-size=2", "--max-num-seqs", "8"], 4),
        (["--data-parallel-size", "2"], 2),
    ],
)
def test_a_serve_line_takes_the_product_of_its_parallel_sizes(args: list[str], gpus: int) -> None:
    assert gpus_of(args) == gpus


def test_a_slot_must_hold_the_largest_configuration_of_the_space() -> None:
    knob = {"flag": "--tensor-parallel-size", "choices": [1, 2], "default": 1, "says": "Ranks."}
    space = {"space": {"tensor_parallel_size": knob}, "serve": {"pipeline_parallel_size": 2}}
    assert plan(**space, slots={"gpus": 4}).slots.gpus == 4
    with pytest.raises(ValidationError, match=r"is 2, and a configuration takes 4 .tensor_parallel_size 2, pipeline"):
        plan(**space, slots={"gpus": 2})
