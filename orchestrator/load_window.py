"""Sends one window's requests on time, closed or open loop, and reads the server's counters around them."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .client_watch import ClientWatch
from .errors import MeasurementFailed
from .host_view import HostView
from .http_stream import Exchange, StreamClient
from .load_metrics import Sample, read_sample
from .metrics_page import MetricsPage, grown, parse_metrics
from .tool_loop import tool_turn
from .workload import Request, Workload

__all__ = ["Traffic", "could_not", "send_window"]

_SETTLE_S = 2.0
# One of these answers is the answer to all: nothing more is sent.
_HOPELESS = {"unreachable", "tls", "http_400", "http_401", "http_403", "http_404", "http_422"}
_HINTS = {
    "unreachable": "Is the server up, and is this its address?",
    "tls": "Is it https, and is its certificate trusted here (SSL_CERT_FILE)?",
    "http_401": "Give the key that the server was started with.",
    "http_403": "This key may not use the server.",
    "http_404": "Does the server have this model under this name (/v1/models), and this path?",
    "http_429": "The server refuses load: lower the concurrency, or raise its queue limits.",
    "stalled": "The server accepted requests and then fell silent: look at its log.",
}


def could_not(where: str, error: str, detail: str) -> MeasurementFailed:
    return MeasurementFailed(f"{where} could not be measured: {error}: {detail}.", _HINTS.get(error, ""))


@dataclass(slots=True)
class Traffic:
    """One window as it was sent; `answers` by request, empty for those that never were."""

    workload: Workload
    model: str
    requests: Sequence[Request]
    answers: list[list[Exchange]] = field(default_factory=list)
    stop: str = ""
    failures: int = 0
    late_ns: list[int] = field(default_factory=list)
    turnaround_ns: list[int] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)
    before: MetricsPage | None = None
    after: MetricsPage | None = None
    models: dict[str, str] | None = None
    version: str | None = None
    client: dict[str, float] = field(default_factory=dict)
    host: dict[str, str] = field(default_factory=dict)

    def add(self, index: int, exchanges: list[Exchange]) -> None:
        self.answers[index] = exchanges
        for each in exchanges:
            error = each.error or ("" if each.status == 200 else f"http_{each.status}")
            self.failures += bool(error)
            if error in _HOPELESS or self.failures > max(5, len(self.requests) // 10):
                self.stop = self.stop or error

    def samples(self) -> list[Sample]:
        """Every exchange read, in the order of the requests; `not_sent` where there was none."""
        found = []
        for request, exchanges in zip(self.requests, self.answers, strict=True):
            found += [read_sample(request, each) for each in exchanges]
            if not exchanges:
                found.append(Sample(request, 0, error="not_sent", detail=f"stopped: {self.stop}"))
        return found


def send_window(client: StreamClient, workload: Workload, window: int, *, model: str, timeout_s: float) -> Traffic:
    """Runs an event loop of its own until every request has its answer or the bound is reached.

    Raises:
        MeasurementFailed: Unreachable, TLS, or a key that is refused, before anything was sent.
    """
    watch = ClientWatch()
    client.arrived_ns = watch.woken_ns
    traffic = Traffic(workload, model, workload.requests(window))
    traffic.answers = [[] for _ in traffic.requests]
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        runner.run(_window(client, traffic, watch, timeout_s))
    return traffic


async def _window(client: StreamClient, traffic: Traffic, watch: ClientWatch, timeout_s: float) -> None:
    bodies = ({**each.body, "model": traffic.model} for each in traffic.requests)
    pairs = zip(traffic.requests, bodies, strict=True)
    payloads = [client.encode(each.path, json.dumps(body).encode()) for each, body in pairs]
    try:
        await _identify(client, traffic)
        traffic.before = await _page(client)
        host = HostView.here()
        with _no_collector():
            watch.start()
            await _send_all(client, traffic, payloads, timeout_s)
            traffic.client = watch.read(traffic.late_ns, traffic.turnaround_ns)
        traffic.after = await _settled_page(client, traffic)
        traffic.host = host.read()
    finally:
        client.close()


@contextmanager
def _no_collector() -> Iterator[None]:
    # A collection in a large process stops the loop for longer than a token takes.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


async def _send_all(client: StreamClient, traffic: Traffic, payloads: list[bytes], timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s

    def expire() -> None:
        traffic.stop = traffic.stop or "window_over"
        client.abort("window_over")

    async def one(index: int) -> int:
        request = traffic.requests[index]
        if request.kind == "tool_loop":
            exchanges, ending = await tool_turn(client, request, traffic.model)
            traffic.turns[ending] += 1
        else:
            exchanges = [await client.send(payloads[index])]
        traffic.add(index, exchanges)
        return exchanges[-1].ended_ns

    async def slot(todo: Iterator[int]) -> None:
        ended_ns = 0
        for index in todo:
            if traffic.stop:
                return
            if ended_ns:
                traffic.turnaround_ns.append(time.monotonic_ns() - ended_ns)
            ended_ns = await one(index)

    async def on_time() -> None:
        tasks = []
        start = loop.time()
        for index, request in enumerate(traffic.requests):
            due = start + (request.at_s or 0.0)
            await asyncio.sleep(max(0.0, min(due, until) - loop.time()))
            if traffic.stop:
                break
            traffic.late_ns.append(int((loop.time() - due) * 1e9))
            tasks.append(asyncio.create_task(one(index)))
        await asyncio.gather(*tasks)

    deadline = loop.call_at(until, expire)
    flight = traffic.workload.in_flight
    todo = iter(range(len(payloads)))
    try:
        await (on_time() if flight is None else asyncio.gather(*(slot(todo) for _ in range(flight))))
    finally:
        deadline.cancel()


async def _identify(client: StreamClient, traffic: Traffic) -> None:
    models = await client.get("/v1/models")
    error = models.error or (f"http_{models.status}" if models.status in (401, 403) else "")
    if error:
        detail = models.detail or models.body[:200].decode(errors="replace")
        raise could_not(f"{client.host}:{client.port}", error, detail)
    if models.status == 200:
        found = _json(models.body).get("data") or []
        traffic.models = {str(each.get("id")): str(each.get("max_model_len") or "") for each in found}
    version = await client.get("/version")
    if version.status == 200:
        traffic.version = _json(version.body).get("version")


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def _page(client: StreamClient) -> MetricsPage | None:
    exchange = await client.get("/metrics")
    return parse_metrics(exchange.body.decode(errors="replace")) if exchange.status == 200 else None


async def _settled_page(client: StreamClient, traffic: Traffic) -> MetricsPage | None:
    """The page once the server has counted the last of our requests: it counts after it answers."""
    ours = sum(each.status == 200 and not each.error for answer in traffic.answers for each in answer)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        page = await _page(client)
        count = grown(traffic.before, page, "vllm:request_success")
        running = page.total("vllm:num_requests_running") if page else None
        if count is None or (count >= ours and not running) or time.monotonic() > deadline:
            return page
        await asyncio.sleep(0.02)
