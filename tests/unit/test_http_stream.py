"""The streaming client: kept connections, named failures, and no wait without a bound."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from truth_server import serving

from orchestrator.errors import MeasurementFailed
from orchestrator.http_stream import Exchange, StreamClient
from orchestrator.server_view import view_server

BODY = json.dumps({"model": "m", "prompt": "a b c d", "max_tokens": 4, "stream": True}).encode()


def talk(url: str, use: Callable[[StreamClient], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        client = StreamClient(url, **options)
        try:
            return await use(client)
        finally:
            client.close()

    return asyncio.run(asyncio.wait_for(run(), timeout=60))


async def post(client: StreamClient) -> Exchange:
    return await client.send(client.encode("/v1/completions", BODY))


def test_one_connection_serves_one_request_after_the_other() -> None:
    async def twice(client: StreamClient) -> tuple[Exchange, Exchange, int]:
        first, second = await post(client), await post(client)
        return first, second, len(client._idle)

    with serving() as url:
        first, second, kept = talk(url, twice)
    assert (first.error, second.error, kept) == ("", "", 1)
    assert first.events()[-1][1] == b"[DONE]"
    assert first.sent_ns < first.reads[0][0] <= first.ended_ns < second.sent_ns


def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    async def twice(client: StreamClient) -> list[str]:
        first = await post(client)
        # The server closes after its answer; the client has not looked at the socket since.
        return [first.error, (await post(client)).error]

    with serving(lies={"closes": True}) as url:
        assert talk(url, twice) == ["", ""]


def test_events_split_over_many_small_chunks_arrive_whole() -> None:
    with serving(lies={"split": True}) as url:
        exchange = talk(url, post)
    assert [json.loads(data)["choices"] != [] for _, data in exchange.events()[:-1]] == [True] * 4 + [False]


def test_nothing_listening_is_unreachable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        exchange = talk(f"http://127.0.0.1:{held.getsockname()[1]}", post)
    assert (exchange.error, exchange.status) == ("unreachable", 0)
    assert exchange.detail


def test_plain_http_behind_https_is_a_tls_error() -> None:
    with serving() as url:
        assert talk(url.replace("http:", "https:"), post).error == "tls"


@contextmanager
def tls_front(backend: str, folder: Path) -> Iterator[str]:
    """The server at `backend` behind TLS, with a certificate that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
    pem = certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "cert.pem").write_bytes(pem)
    (folder / "both.pem").write_bytes(pem + key.private_bytes(*form))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "both.pem")
    loop = asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", urlsplit(backend).port)
        await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))

    server = loop.run_until_complete(asyncio.start_server(pass_on, "localhost", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(_end(server))
        loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_certificate_that_nobody_vouches_for_is_a_tls_error_until_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as url, tls_front(url, tmp_path) as front:
        exchange = talk(front, post)
        assert (exchange.error, exchange.status) == ("tls", 0)
        assert "self-signed" in exchange.detail
        with pytest.raises(MeasurementFailed, match="self-signed"):
            view_server(front)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert talk(front, post).error == ""


def test_a_server_that_falls_silent_is_given_up_after_the_bound() -> None:
    with serving(lies={"stalls_after": 0.1}) as url:

        async def after_one(client: StreamClient) -> list[Exchange]:
            return [await post(client), await post(client)]

        whole, stalled = talk(url, after_one, stall_s=0.3)
    assert whole.error == ""
    assert stalled.error == "stalled"
    assert len(stalled.events()) == 1


def test_a_server_that_accepts_and_never_answers_is_given_up_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        exchange = talk(f"http://127.0.0.1:{deaf.getsockname()[1]}", post, stall_s=0.2)
    assert exchange.error == "stalled"


def test_an_abort_ends_every_exchange_with_its_reason() -> None:
    async def aborted(client: StreamClient) -> list[str]:
        asyncio.get_running_loop().call_later(0.2, client.abort, "window_over")
        return [each.error for each in await asyncio.gather(post(client), post(client))]

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert talk(f"http://127.0.0.1:{deaf.getsockname()[1]}", aborted) == ["window_over"] * 2


def test_the_key_is_sent_as_a_bearer_token() -> None:
    with serving(api_key="s3cret") as url:
        assert talk(url, post).status == 401
        assert talk(url, post, api_key="s3cret").status == 200


@pytest.mark.parametrize(("url", "path"), [("http://h:1/v1/", "/v1/models"), ("http://h:1/api/v1", "/api/v1/models")])
def test_a_url_may_carry_a_path_and_the_version(url: str, path: str) -> None:
    assert StreamClient(url).encode("/v1/models").startswith(f"GET {path} HTTP/1.1\r\nHost: h:1\r\n".encode())


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", ""])
def test_what_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(MeasurementFailed, match="http://127"):
        StreamClient(url)
