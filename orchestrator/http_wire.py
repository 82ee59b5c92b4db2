"""One HTTP/1.1 connection: every read is stamped on arrival, nothing is parsed before the answer is whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Connection", "Exchange"]

_HEAD_LIMIT = 65536


@dataclass(slots=True)
class Exchange:
    """One request and its answer.

    Attributes:
        sent_ns: Monotonic nanoseconds just before the request was handed to the socket.
        ended_ns: When the last byte of the answer was read, or the exchange was given up.
        status: HTTP status; 0 when no answer began.
        reads: (monotonic ns, body bytes) for each read, transfer coding removed.
        error: Empty, or what went wrong by name: `unreachable`, `tls`, `early_eof`, `stalled`,
            `malformed_http`, or the reason given to `StreamClient.abort`.
        detail: What the system said about the error.
    """

    sent_ns: int = 0
    ended_ns: int = 0
    status: int = 0
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    error: str = ""
    detail: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.reads)

    def events(self) -> list[tuple[int, bytes]]:
        """The data of each server-sent event, with the time of the read that completed it."""
        found: list[tuple[int, bytes]] = []
        data: list[bytes] = []
        rest = b""
        at = 0
        for at, piece in self.reads:
            *lines, rest = (rest + piece).split(b"\n")
            for raw in lines:
                line = raw.removesuffix(b"\r")
                if line.startswith(b"data:"):
                    data.append(line[5:].strip())
                elif not line and data:
                    found.append((at, b"\n".join(data)))
                    data = []
                elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                    # Not of the format: handed on, so that whoever reads the JSON refuses it by name.
                    data.append(line)
        if rest.startswith(b"data:"):
            data.append(rest[5:].strip())
        return [*found, (at, b"\n".join(data))] if data else found


class Connection(asyncio.Protocol):
    """One keep-alive connection, one exchange at a time; `arrived_ns` dates what is being read."""

    def __init__(self, arrived_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.arrived_ns = arrived_ns
        self.transport: asyncio.Transport
        self.exchange = Exchange()
        self.done: asyncio.Future[None] | None = None
        self.heard_ns = 0
        self.used = False
        self.reusable = True
        self._reset()

    def _reset(self) -> None:
        self.framing = "head"
        self.left = 0
        self.skip = 0
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def begin(self, payload: bytes, exchange: Exchange) -> asyncio.Future[None]:
        self._reset()
        self.exchange = exchange
        self.done = asyncio.get_running_loop().create_future()
        exchange.sent_ns = self.heard_ns = time.monotonic_ns()
        self.transport.write(payload)
        return self.done

    def data_received(self, data: bytes) -> None:
        now = self.heard_ns = self.arrived_ns()
        if self.done is None:
            self.drop()
            return
        if self.rest:
            data = self.rest + data
            self.rest = b""
        try:
            if self.framing == "head":
                data = self._head(data)
            if data and self.framing != "head":
                self._body(now, data)
        except ValueError as error:
            self.finish("malformed_http", str(error))

    def _head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _HEAD_LIMIT:
                raise ValueError("the answer's head does not end")
            self.rest = data
            return b""
        first, *lines = data[:end].split(b"\r\n")
        if not first.startswith(b"HTTP/1."):
            raise ValueError(f"not HTTP: {first[:40]!r}")
        self.exchange.status = int(first[9:12])
        pairs = (line.partition(b":") for line in lines)
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.reusable = b"close" not in fields.get(b"connection", b"").lower() and first[7:8] == b"1"
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            self.framing = "chunked"
        elif b"content-length" in fields:
            self.framing = "length"
            self.left = int(fields[b"content-length"])
            if not self.left:
                self.finish()
        else:
            self.framing = "close"
        return data[end + 4 :]

    def _body(self, now: int, data: bytes) -> None:
        if self.framing == "chunked":
            self._chunks(now, data)
        elif self.framing == "trailer":
            self._trailer(data)
        else:
            self.exchange.reads.append((now, data))
            if self.framing == "length":
                self.left -= len(data)
                if self.left <= 0:
                    self.finish()

    def _chunks(self, now: int, data: bytes) -> None:
        reads = self.exchange.reads
        at, size = 0, len(data)
        while at < size:
            if self.left or self.skip:
                piece = data[at : at + self.left]
                if piece:
                    reads.append((now, piece))
                    self.left -= len(piece)
                step = min(self.skip, size - at - len(piece)) if not self.left else 0
                self.skip -= step
                at += len(piece) + step
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self.rest = data[at:]
                return
            length = int(data[at:end].partition(b";")[0], 16)
            at = end + 2
            if length > 0 and at + length + 2 <= size:
                reads.append((now, data[at : at + length]))
                at += length + 2
            elif length > 0:
                self.left, self.skip = length, 2
            elif length < 0:
                raise ValueError("a chunk of negative size")
            else:
                self.framing = "trailer"
                self._trailer(data[at:])
                return

    def _trailer(self, data: bytes) -> None:
        if data.startswith(b"\r\n") or b"\r\n\r\n" in data:
            self.finish()
        else:
            self.rest = data

    def finish(self, error: str = "", detail: str = "") -> None:
        """Ends the exchange under way, if there is one; a connection that failed is never used again."""
        done, self.done = self.done, None
        if error or not self.reusable:
            self.drop()
        if done is not None:
            self.exchange.ended_ns = time.monotonic_ns()
            self.exchange.error, self.exchange.detail = error, detail
            if not done.done():
                done.set_result(None)

    def drop(self) -> None:
        self.reusable = False
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self.framing == "close" and error is None:
            self.finish()
        else:
            self.finish("early_eof", str(error or "the server closed the connection"))
