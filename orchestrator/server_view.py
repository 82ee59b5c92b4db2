"""What a running server says of itself: model, version, counters; its command and log where it runs here."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trackers.records import Frozen

from .errors import MeasurementFailed
from .http_stream import Exchange, StreamClient
from .load_window import could_not
from .metrics_page import MetricsPage, parse_metrics
from .process_tree import environment, listening_sockets, open_sockets
from .watchdog import process_table

__all__ = ["LocalEngine", "Served", "answer_json", "ask", "local_engine", "read_page", "view_server"]

_SHOWN = ("VLLM_CPU_KVCACHE_SPACE", "CUDA_VISIBLE_DEVICES")


class Served(Frozen):
    """A server that answers: `model` as requests name it, `root` as it was loaded."""

    url: str
    model: str
    root: str = ""
    max_model_len: int | None = None
    version: str = ""


class LocalEngine(Frozen):
    """The process behind a loopback URL: its command, the variables that decide on its pool, its log."""

    argv: tuple[str, ...]
    env: dict[str, str]
    log: Path | None = None


def ask(url: str, path: str, body: dict[str, Any] | None = None, *, api_key: str | None, timeout_s: float) -> Exchange:
    """One request by itself, its answer whole or its error named; never longer than `timeout_s`."""
    client = StreamClient(url, api_key=api_key, stall_s=timeout_s, connect_timeout_s=min(10.0, timeout_s))

    async def send() -> Exchange:
        try:
            payload = None if body is None else json.dumps(body).encode()
            async with asyncio.timeout(timeout_s):
                return await client.send(client.encode(path, payload))
        except TimeoutError:
            return Exchange(error="stalled", detail=f"no whole answer within {timeout_s:g} s")
        finally:
            client.close()

    return asyncio.run(send())


def answer_json(exchange: Exchange) -> dict[str, Any]:
    """The JSON object that came back with status 200; empty where none did."""
    with suppress(ValueError):
        found = json.loads(exchange.body) if exchange.status == 200 and not exchange.error else {}
        return found if isinstance(found, dict) else {}
    return {}


def read_page(
    url: str, *, api_key: str | None = None, timeout_s: float = 10.0, keep: Path | None = None
) -> MetricsPage | None:
    """Its counters now, None where it shows none; `keep` is a file for the page as it came."""
    said = ask(url, "/metrics", api_key=api_key, timeout_s=timeout_s)
    if keep is not None and said.status == 200:
        keep.write_bytes(said.body)
    return parse_metrics(said.body.decode(errors="replace")) if said.status == 200 else None


def view_server(url: str, model: str | None = None, *, api_key: str | None = None, timeout_s: float = 10.0) -> Served:
    """Ask a server who it is; changes nothing there.

    Raises:
        MeasurementFailed: Unreachable, TLS, a key that is refused, silent, no such API, or no such model.
    """
    said = ask(url, "/v1/models", api_key=api_key, timeout_s=timeout_s)
    if said.error or said.status != 200:
        detail = said.detail or said.body[:200].decode(errors="replace")
        raise could_not(url, said.error or f"http_{said.status}", detail)
    listed = answer_json(said).get("data")
    rows = [one for one in (listed if isinstance(listed, list) else []) if isinstance(one, dict)]
    named = {str(one.get("id")): one for one in rows}
    if (model or not named) and model not in named:
        serves = ", ".join(named) or "no model"
        raise MeasurementFailed(f"{url} does not serve {model or 'anything'}: it has {serves}.", "See --model.")
    name = model or next(iter(named))
    length = named[name].get("max_model_len")
    return Served(
        url=url,
        model=name,
        root=str(named[name].get("root") or ""),
        max_model_len=length if isinstance(length, int) and length > 0 else None,
        version=str(answer_json(ask(url, "/version", api_key=api_key, timeout_s=timeout_s)).get("version") or ""),
    )


def local_engine(url: str) -> LocalEngine | None:
    """The engine that listens there, where it is a `vllm serve` of this host that this user may look at."""
    where = urlsplit(url)
    if where.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    sockets = listening_sockets(where.port or 80)
    for pid in sorted(process_table()) if sockets else ():
        with suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if ("serve" in argv or any(word.endswith("api_server") for word in argv)) and (sockets & open_sockets(pid)):
                pairs = (pair.decode(errors="replace").partition("=") for pair in environment(pid))
                log = Path(f"/proc/{pid}/fd/1").readlink()
                env = {name: value for name, _, value in pairs if name in _SHOWN}
                return LocalEngine(argv=tuple(argv), env=env, log=log if log.is_file() else None)
    return None
