"""The client of one server for timing: kept connections, encoded requests, every wait bounded."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from .errors import MeasurementFailed
from .http_wire import Connection, Exchange

__all__ = ["Exchange", "StreamClient"]


class StreamClient:
    """Keep-alive connections to one server, inside one event loop.

    Args:
        base_url: Scheme, host, port, and a path if the API lies under one; a final `/v1` is ignored.
        api_key: Sent as a bearer token; never part of an error.
        connect_timeout_s: Bound on reaching the server.
        stall_s: The longest silence of one answer, the wait for its first byte included.
        context: TLS settings; the system's by default.

    Raises:
        MeasurementFailed: The URL is not one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        stall_s: float = 120.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise MeasurementFailed(f"{base_url!r} is not the URL of a server.", "Such as http://127.0.0.1:8000.")
        self.host = url.hostname
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.context = (context or ssl.create_default_context()) if url.scheme == "https" else None
        self.prefix = url.path.rstrip("/").removesuffix("/v1")
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self.fields = f"Host: {url.netloc.rpartition('@')[2]}\r\n{key}Accept: */*\r\n"
        self.connect_timeout_s = connect_timeout_s
        self.arrived_ns: Callable[[], int] = time.monotonic_ns
        self.stall_s = stall_s
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._watch: asyncio.TimerHandle | None = None

    def encode(self, path: str, body: bytes | None = None) -> bytes:
        """The whole request as bytes, made before the clock runs; a GET without a body."""
        head = f"{'GET' if body is None else 'POST'} {self.prefix}{path} HTTP/1.1\r\n{self.fields}"
        if body is None:
            return f"{head}\r\n".encode()
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def get(self, path: str) -> Exchange:
        return await self.send(self.encode(path))

    async def send(self, payload: bytes) -> Exchange:
        """Returns when the answer to an encoded request is whole or has failed; never raises for it."""
        while True:
            exchange = Exchange()
            connection = await self._connection(exchange)
            if connection is None:
                return exchange
            again = connection.used
            connection.used = True
            self._busy.add(connection)
            try:
                await connection.begin(payload, exchange)
            except BaseException:
                connection.drop()
                raise
            finally:
                self._busy.discard(connection)
            if connection.reusable:
                self._idle.append(connection)
            # A kept connection closed by the server while idle says nothing of the server: once more, afresh.
            if not (again and exchange.error == "early_eof" and not exchange.status):
                return exchange

    async def _connection(self, exchange: Exchange) -> Connection | None:
        self._start_watch()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        loop = asyncio.get_running_loop()
        make = partial(Connection, self.arrived_ns)
        exchange.sent_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                made = await loop.create_connection(make, self.host, self.port, ssl=self.context)
        except ssl.SSLError as error:
            exchange.error, exchange.detail = "tls", str(error)
        except TimeoutError:
            exchange.error, exchange.detail = (
                "unreachable",
                f"no connection within {self.connect_timeout_s:g} s",
            )
        except OSError as error:
            exchange.error, exchange.detail = "unreachable", str(error)
        else:
            return made[1]
        exchange.ended_ns = time.monotonic_ns()
        return None

    def _start_watch(self) -> None:
        # One timer for all streams: one for each read would be the dearest part of the timing path.
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(min(self.stall_s / 4, 1.0), self._find_stalled)

    def _find_stalled(self) -> None:
        self._watch = None
        limit = time.monotonic_ns() - int(self.stall_s * 1e9)
        for connection in [each for each in self._busy if each.heard_ns < limit]:
            connection.finish("stalled", f"nothing for {self.stall_s:g} s")
        if self._busy:
            self._start_watch()

    def abort(self, reason: str) -> None:
        """Gives up every exchange under way; each returns with what it has, `reason` as its error."""
        for connection in list(self._busy):
            connection.finish(reason, "given up by the client")

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.drop()
