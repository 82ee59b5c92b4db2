"""One full agent turn through the chat endpoint: a tool offered, called and answered, the turn finished."""

from __future__ import annotations

import json
from typing import Any

from .http_stream import Exchange, StreamClient
from .load_metrics import Sample, read_sample
from .workload import Request

__all__ = ["tool_turn"]

_RESULT = {"temperature_c": 17, "sky": "overcast", "wind_km_h": 12}


async def tool_turn(client: StreamClient, request: Request, model: str) -> tuple[list[Exchange], str]:
    """The exchanges of the turn, and how it ended.

    `done`, or by name: `tool_call_not_parsed` (the call came back as text, or the server says that it cannot
    parse calls), `tool_call_missing`, `tool_arguments_broken`, `answer_missing`, `answer_cut`, `failed`.
    """
    first, asked = await _ask(client, request, {**request.body, "model": model})
    problem, call = _called(asked)
    if problem:
        return [first], problem
    messages = [
        *request.body["messages"],
        {"role": "assistant", "content": asked.text or None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(_RESULT)},
    ]
    second, answer = await _ask(client, request, {**request.body, "messages": messages, "model": model})
    return [first, second], _answered(answer)


async def _ask(client: StreamClient, request: Request, body: dict[str, Any]) -> tuple[Exchange, Sample]:
    exchange = await client.send(client.encode(request.path, json.dumps(body).encode()))
    return exchange, read_sample(request, exchange)


def _called(sample: Sample) -> tuple[str, dict[str, Any]]:
    """The problem by name, or empty, and the call joined from its pieces."""
    if sample.error:
        refused = sample.error == "http_400" and "tool" in sample.detail
        return ("tool_call_not_parsed" if refused else "failed"), {}
    pieces = [piece for piece in sample.tool_calls if piece.get("index", 0) == 0]
    if not pieces:
        written = "get_weather" in sample.text
        return ("tool_call_not_parsed" if written else "tool_call_missing"), {}
    functions = [piece.get("function") or {} for piece in pieces]
    name, arguments = ("".join(each.get(key) or "" for each in functions) for key in ("name", "arguments"))
    try:
        whole = isinstance(json.loads(arguments), dict) and name == "get_weather"
    except ValueError:
        whole = False
    ident = next((piece["id"] for piece in pieces if piece.get("id")), "call_0")
    call = {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}
    return "" if whole else "tool_arguments_broken", call


def _answered(sample: Sample) -> str:
    if sample.error:
        return "failed"
    if sample.finish == "length":
        return "answer_cut"
    return "done" if sample.text.strip() and sample.finish == "stop" else "answer_missing"
