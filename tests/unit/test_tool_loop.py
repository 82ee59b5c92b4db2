"""An agent turn: pieces of a call are joined, and each way to fail has its name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from truth_server import serving

from orchestrator.http_stream import StreamClient
from orchestrator.load_metrics import Sample
from orchestrator.tool_loop import _answered, _called, tool_turn
from orchestrator.workload import Request, Workload

REQUEST = Workload(name="t", kind="tool_loop", endpoint="chat", output_tokens=6).requests(0)[0]


def sample(**fields: Any) -> Sample:
    return Sample(Request(0, "tool_loop", "measured", "/", {}, 6), 0, [1], **fields)


def turn(**truth: Any) -> tuple[int, str]:
    async def run(url: str) -> tuple[int, str]:
        client = StreamClient(url)
        exchanges, ending = await tool_turn(client, REQUEST, "m")
        client.close()
        return len(exchanges), ending

    with serving(**{"itl_ms": 0.1, **truth}) as url:
        return asyncio.run(run(url))


@pytest.mark.parametrize(
    ("truth", "outcome"),
    [
        ({}, (2, "done")),
        ({"tools": "text"}, (1, "tool_call_not_parsed")),
        ({"tools": "refuse"}, (1, "tool_call_not_parsed")),
        ({"tools": "none"}, (1, "tool_call_missing")),
        ({"lies": {"status": 500}}, (1, "failed")),
        ({"lies": {"answer_cut": True}}, (2, "answer_cut")),
    ],
    ids=str,
)
def test_a_turn_ends_by_name(truth: dict[str, Any], outcome: tuple[int, str]) -> None:
    assert turn(**truth) == outcome


def test_pieces_of_a_call_are_joined_and_a_second_call_left_alone() -> None:
    pieces = [
        {"index": 0, "id": "c", "function": {"name": "get_weather", "arguments": None}},
        {"index": 0, "function": {"arguments": '{"town":'}},
        {"index": 1, "id": "d", "function": {"name": "other", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": ' "Tarn"}'}},
    ]
    problem, call = _called(sample(tool_calls=pieces))
    assert problem == ""
    assert (call["id"], call["function"]["arguments"]) == ("c", '{"town": "Tarn"}')


@pytest.mark.parametrize("arguments", ["{", "[]", ""])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    piece = {"index": 0, "function": {"name": "get_weather", "arguments": arguments}}
    assert _called(sample(tool_calls=[piece]))[0] == "tool_arguments_broken"


def test_an_answer_has_words_and_an_end() -> None:
    assert _answered(sample(text="17 degrees", finish="stop")) == "done"
    assert _answered(sample(text=" ", finish="stop")) == "answer_missing"
    assert _answered(sample(text="17", finish="length")) == "answer_cut"
    assert _answered(sample(error="stalled")) == "failed"
