"""The HTTP side of a simulated engine: the endpoints, errors and stream chunks of a vLLM server."""

from __future__ import annotations

import asyncio
import json
import re
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .simulated_replies import Asked, asked_of, word
from .simulated_scheduler import Request, Scheduler

__all__ = ["Server"]

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_KINDS = {200: "OK", 400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 503: "ServiceUnavailable"}


class Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(eq=False)
class Server:
    """Answers connections until the process ends; `dead` turns every answer into 503.

    `cache`: the labels of cache_config_info; `finished` is called with the requests answered so far.
    `key` guards what begins with /v1, as vLLM's does.
    """

    scheduler: Scheduler
    name: str
    root: str
    cache: Mapping[str, str]
    finished: Callable[[int], None]
    key: str = ""
    dead: bool = False
    served: int = 0

    @property
    def length(self) -> int:
        return int(self.scheduler.surface.value(self.scheduler.values, "max_model_len"))

    async def connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                size = _LENGTH.search(head)
                body = await reader.readexactly(int(size[1])) if size else b""
                method, path, said = head.decode("latin-1").split(" ", 2)
                known = not self.key or f"\r\nauthorization: bearer {self.key}\r\n".lower() in said.lower()
                await self._answer(method, path.partition("?")[0], body, reader, writer, known=known)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, reader: StreamReader, writer: StreamWriter, *, known: bool
    ) -> None:
        kind, status = "application/json", 200
        try:
            self._admit(path, known=known)
            if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
                await self._complete(json.loads(body), reader, writer)
                return
            content = await self._content(method, path, body)
            kind = "text/plain; version=0.0.4; charset=utf-8" if path == "/metrics" else kind
        except Refusal as refusal:
            status = refusal.status
            error = {"message": refusal.text, "type": _KINDS[status], "param": None, "code": status}
            content = json.dumps({"error": error})
        writer.write(_page(status, kind, content))
        await writer.drain()

    def _admit(self, path: str, *, known: bool) -> None:
        if path.startswith("/v1") and not known:
            raise Refusal(401, "Unauthorized")
        if self.dead:
            raise Refusal(503, "EngineCore encountered an issue. See stack trace (above) for the root cause.")

    async def _content(self, method: str, path: str, body: bytes) -> str:
        scheduler = self.scheduler
        if path in ("/health", "/ping"):
            if scheduler.faults.get("hang_health"):
                await asyncio.Event().wait()
            return ""
        if path == "/metrics":
            gauges = {
                "num_requests_running": len(scheduler.running),
                "num_requests_waiting": len(scheduler.waiting),
                "kv_cache_usage_perc": scheduler.used / max(scheduler.blocks, 1),
            }
            return scheduler.counters.page(gauges, self.cache)
        if path == "/version":
            return json.dumps({"version": f"{scheduler.surface.version}+simulated"})
        if path == "/v1/models":
            model = {"id": self.name, "object": "model", "owned_by": "vllm", "root": self.root}
            return json.dumps({"object": "list", "data": [{**model, "max_model_len": self.length}]})
        if method == "POST" and path == "/tokenize":
            count = len(asked_of(json.loads(body)).prompt)
            return json.dumps({"count": count, "max_model_len": self.length, "tokens": list(range(count))})
        raise Refusal(404, "Not Found")

    def _request(self, body: Mapping[str, Any]) -> tuple[Request, Asked]:
        if body.get("model", self.name) not in (self.name, None):
            raise Refusal(404, f"The model `{body['model']}` does not exist.")
        if self.scheduler.k and (body.get("min_p") or body.get("logit_bias")):
            text = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding"
            raise Refusal(400, f"{text}.")
        try:
            asked = asked_of(body)
        except KeyError:
            raise Refusal(400, "Either prompt or messages must be given.") from None
        size = len(asked.prompt)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = limit or (self.length - size if asked.chat else 16)
        if size + limit > self.length or not size:
            text = f"This model's maximum context length is {self.length} tokens. However, you requested"
            text += f" {limit} output tokens and your prompt contains at least {size} input tokens."
            raise Refusal(400, text)
        markers = self.scheduler.simulation.markers.items()
        workload = next((name for name, marker in markers if marker in asked.text), "generate")
        request = Request(asked.prompt, limit, workload)
        natural = len(asked.words) if asked.reason else 32 + request.key % 224
        if natural <= limit and (asked.reason or not body.get("ignore_eos")):
            request.max_tokens, request.reason = natural, "stop"
        return request, asked

    async def _complete(self, body: Mapping[str, Any], reader: StreamReader, writer: StreamWriter) -> None:
        request, asked = self._request(body)
        self.scheduler.submit(request)
        identity = f"{'chatcmpl' if asked.chat else 'cmpl'}-{request.key:08x}{time.monotonic_ns():x}"
        head = {"id": identity, "created": int(time.time()), "model": self.name}
        stream = self._stream if body.get("stream") else self._whole
        try:
            async for data in stream(head, request, asked):
                if reader.at_eof() or writer.is_closing():
                    raise ConnectionResetError
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            self.scheduler.abort(request)
            raise
        self.served += 1
        self.finished(self.served)

    async def _said(self, request: Request, asked: Asked) -> AsyncIterator[tuple[str, str | None]]:
        """Text by text, with the finish reason beside the last."""
        key = request.key
        # Drafting changes the batch's shape, and with it near-ties: some answers differ from k to k.
        key += self.scheduler.k if key % 5 < 3 else 0
        at, reason = 0, None
        while reason is None:
            upto, reason = await request.chunks.get()
            words = [asked.words[n] if n < len(asked.words) else word(key, n) for n in range(at, upto)]
            at = upto
            yield "".join(words), (asked.reason or reason) if reason else None

    async def _stream(self, head: dict[str, Any], request: Request, asked: Asked) -> AsyncIterator[bytes]:
        kind = b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked"
        yield b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n"
        head["object"] = "chat.completion.chunk" if asked.chat else "text_completion"
        delta: dict[str, Any] = {"role": "assistant"}
        async for text, reason in self._said(request, asked):
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None, "text": text}
            if asked.chat:
                delta |= {"content": choice.pop("text")} if asked.call is None else {}
                delta |= {"tool_calls": [_call(request, asked)]} if asked.call and reason else {}
                choice["delta"], delta = delta, {}
            yield _event({**head, "choices": [choice]})
        if asked.usage:
            yield _event({**head, "choices": [], "usage": _usage(request)})
        yield _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    async def _whole(self, head: dict[str, Any], request: Request, asked: Asked) -> AsyncIterator[bytes]:
        said = [pair async for pair in self._said(request, asked)]
        text, reason = "".join(text for text, _ in said), said[-1][1]
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None, "text": text}
        if asked.chat:
            calls = [_call(request, asked)] if asked.call else []
            choice["message"] = {"role": "assistant", "content": choice.pop("text"), "tool_calls": calls}
        kind = "chat.completion" if asked.chat else "text_completion"
        content = {**head, "object": kind, "choices": [choice], "usage": _usage(request)}
        yield _page(200, "application/json", json.dumps(content))


def _usage(request: Request) -> dict[str, Any]:
    size, done = len(request.prompt), request.done
    details = {"cached_tokens": request.cached} if request.cached else None
    usage = {"prompt_tokens": size, "total_tokens": size + done, "completion_tokens": done}
    return {**usage, "prompt_tokens_details": details}


def _call(request: Request, asked: Asked) -> dict[str, Any]:
    return {"index": 0, "id": f"call-{request.key:x}", "type": "function", "function": asked.call}


def _page(status: int, kind: str, content: str) -> bytes:
    head = f"HTTP/1.1 {status} {_KINDS[status]}\r\ncontent-type: {kind}"
    return f"{head}\r\ncontent-length: {len(content.encode())}\r\n\r\n{content}".encode()


def _event(data: Mapping[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
