"""The user's own traffic: a JSONL file of chat or completion requests, with arrival times if it has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import PlanError

__all__ = ["arrivals", "read", "salted"]

_HINT = 'Each line is one request: {"messages": [{"role": "user", "content": "..."}]}.'


def read(path: Path) -> tuple[str, ...]:
    """The lines of the file, each one request.

    Raises:
        PlanError: Names the line by number, and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}.", "Give a UTF-8 file, one request a line.") from error
    requests: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            requests.append(_request(line))
        except ValueError as error:
            raise PlanError(f"{path}, line {number}: {error}.", _HINT) from None
        if ("arrival_s" in requests[-1]) != ("arrival_s" in requests[0]):
            raise PlanError(f"{path}, line {number}: arrival_s has to stand in every line or in none.", _HINT)
        if requests[-1].get("arrival_s", 0) < requests[max(0, len(requests) - 2)].get("arrival_s", 0):
            raise PlanError(f"{path}, line {number}: arrival_s goes back in time.", "Sort the lines by it.")
    if not requests:
        raise PlanError(f"{path} is empty.", _HINT)
    return tuple(json.dumps(request) for request in requests)


def _request(line: str) -> dict[str, Any]:
    if not line.strip():
        raise ValueError("empty")
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    messages = found.get("messages")
    chat: list[Any] = messages if isinstance(messages, list) and messages else [None]
    whole = all(isinstance(each, dict) for each in chat) and chat[0].get("content")
    if not whole and not isinstance(found.get("prompt"), str):
        raise ValueError("neither messages with contents nor a prompt")
    if not isinstance(found.get("arrival_s", 0.0), int | float):
        raise ValueError("arrival_s is not a number of seconds")  # noqa: TRY004
    return found


def salted(messages: Sequence[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """The messages with the mark in front of the first one's content, text or parts."""
    first, *rest = messages
    content = first["content"]
    parts = isinstance(content, list)
    marked = [{"type": "text", "text": mark}, *content] if parts else f"{mark}{content}"
    return [{**first, "content": marked}, *rest]


def arrivals(lines: Sequence[str], first: int, total: int) -> list[float | None]:
    """Seconds after the window's start, as recorded; a file that runs out is repeated after itself."""
    times = [float(json.loads(line)["arrival_s"]) for line in lines]
    length = times[-1] - times[0]
    span = length + length / max(1, len(times) - 1)
    due = [times[i % len(times)] + (i // len(times)) * span for i in range(first, first + total)]
    return [at - due[0] for at in due]
