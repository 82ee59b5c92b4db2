"""What a simulated engine says: the same filler for the same prompt, and the few answers that are checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Asked", "asked_of", "tokenized", "word"]

_TOKEN = re.compile(r"\w{1,5}|[^\w\s]")


def tokenized(text: str) -> list[str]:
    """Pieces of at most five letters, and marks: about as many as a real tokenizer finds."""
    return _TOKEN.findall(text)


def word(key: int, at: int) -> str:
    return f" t{(key + at * 2654435761) % 9973}"


class Asked:
    """The part of a request's body that decides on its answer: prompt tokens, words, and how it ends."""

    def __init__(self, prompt: Sequence[str | int], text: str) -> None:
        self.prompt, self.text = prompt, text
        self.words: list[str] = []
        self.reason = ""
        self.call: dict[str, str] | None = None


def asked_of(body: Mapping[str, Any]) -> Asked:
    """Raises KeyError where there is neither a prompt nor messages."""
    if "messages" not in body:
        prompt = body["prompt"]
        prompt = (
            prompt[0] if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else prompt
        )
        text = prompt if isinstance(prompt, str) else ""
        asked = Asked(tokenized(text) if text else prompt, text)
    else:
        text = "\n".join(_content(message) for message in body["messages"])
        asked = Asked(tokenized(text), text)
        if body["messages"][-1]["role"] == "tool":
            asked.words, asked.reason = re.findall(r"\s*\S+", _content(body["messages"][-1])), "stop"
        elif body.get("tools") and body.get("tool_choice") != "none":
            function = body["tools"][0]["function"]
            arguments = json.dumps(_instance(function.get("parameters", {}), text))
            asked.call = {"name": function["name"], "arguments": arguments}
            asked.words, asked.reason = [" "] * len(tokenized(arguments)), "tool_calls"
    if (schema := _schema(body)) is not None and not asked.words:
        asked.words, asked.reason = re.findall(r"\s*\S+", json.dumps(_instance(schema, text))), "stop"
    if not asked.words and (code := re.search(r"\bis (\d{6})\.", text)):
        asked.words = [f" {code[1]}."]
    return asked


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    given = body.get("response_format") or {}
    found = (given.get("json_schema") or {}).get("schema") or (body.get("structured_outputs") or {}).get(
        "json"
    )
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
