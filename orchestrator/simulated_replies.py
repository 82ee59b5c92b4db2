"""What a simulated engine says: the same filler for the same prompt, and the few answers that are checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Asked", "asked_of", "word"]

# Pieces of at most five letters, and marks: about as many as a real tokenizer finds.
_TOKEN = re.compile(r"\w{1,5}|[^\w\s]")


def word(key: int, at: int) -> str:
    return f" t{(key + at * 2654435761) % 9973}"


@dataclass(eq=False)
class Asked:
    """What decides on an answer: prompt tokens, the first words to say, how it ends, a tool's call."""

    prompt: Sequence[str | int]
    text: str
    chat: bool = False
    usage: bool = False
    words: Sequence[str] = ()
    reason: str = ""
    call: dict[str, str] | None = None


def asked_of(body: Mapping[str, Any]) -> Asked:
    """Raises KeyError where there is neither a prompt nor messages."""
    messages = body.get("messages")
    given = "\n".join(map(_content, messages)) if messages else body["prompt"]
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        given = given[0]
    text = given if isinstance(given, str) else ""
    asked = Asked(_TOKEN.findall(text) if text else given, text, chat=bool(messages))
    asked.usage = bool((body.get("stream_options") or {}).get("include_usage"))
    if messages and messages[-1]["role"] == "tool":
        asked.words, asked.reason = _pieces(_content(messages[-1])), "stop"
    elif messages and body.get("tools") and body.get("tool_choice") != "none":
        function = body["tools"][0]["function"]
        arguments = json.dumps(_instance(function.get("parameters", {}), text))
        asked.call = {"name": function["name"], "arguments": arguments}
        asked.words, asked.reason = _pieces(arguments), "tool_calls"
    elif (schema := _schema(body)) is not None:
        asked.words, asked.reason = _pieces(json.dumps(_instance(schema, text))), "stop"
    elif code := re.search(r"\bis (\d{6})\.", text):
        asked.words = [f" {code[1]}."]
    return asked


def _pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given = body.get("response_format") or {}
    found = (given.get("json_schema") or {}).get("schema") or (body.get("structured_outputs") or {}).get("json")
    return found or body.get("guided_json") or ({} if given.get("type") == "json_object" else None)


def _instance(schema: Mapping[str, Any], text: str) -> Any:
    """A value that a JSON schema accepts; a string is the place that the text speaks of last."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _instance(part, text) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        return [_instance(schema.get("items", {}), text)] * schema.get("minItems", 1)
    places = re.findall(r"\bin ([A-Z]\w+)", text)
    known = {"string": places[-1] if places else "text", "boolean": True, "null": None}
    return known.get(kind, schema.get("minimum", 1))
