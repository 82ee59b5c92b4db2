"""The wire: bodies come out whole however they were cut, times belong to the read that completed an event."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.http_wire import Connection, Exchange

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


def play(pieces: list[bytes], closes: bool = False) -> tuple[Exchange, Connection]:
    """What a connection makes of these reads."""

    async def run() -> tuple[Exchange, Connection]:
        connection, exchange = Connection(), Exchange()
        connection.connection_made(Transport())
        done = connection.begin(b"", exchange)
        for piece in pieces:
            connection.data_received(piece)
        if closes:
            connection.connection_lost(None)
        assert done.done()
        return exchange, connection

    return asyncio.run(run())


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({at % len(data) for at in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a != b]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 10_000), max_size=30))
def test_a_chunked_body_is_the_same_however_the_reads_fall(chunks: list[bytes], cuts: list[int]) -> None:
    body = b"".join(b"%X;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    exchange, connection = play(cut(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body, cuts))
    assert (exchange.body, exchange.error, exchange.status) == (b"".join(chunks), "", 200)
    assert connection.reusable


def test_trailers_after_the_last_chunk_are_skipped() -> None:
    exchange, _ = play([HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1", b"\r\n", b"\r\n"])
    assert exchange.body == b"hi"


def test_a_body_of_given_length_ends_with_it() -> None:
    exchange, connection = play([HEAD + b"Content-Length: 5\r\n\r\nhe", b"llo"])
    assert exchange.body == b"hello"
    assert connection.reusable


def test_a_body_without_length_ends_with_the_connection() -> None:
    exchange, connection = play([HEAD + b"\r\nhello"], closes=True)
    assert (exchange.body, exchange.error) == (b"hello", "")
    assert not connection.reusable


def test_a_server_that_says_close_is_not_asked_again() -> None:
    _, connection = play([HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n"])
    assert not connection.reusable
    assert connection.transport.aborted


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel"], "early_eof"),
        ([HEAD + b"Content-Length: 5\r\n\r\nhel"], "early_eof"),
        ([HEAD[:20]], "early_eof"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"], "malformed_http"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n"], "malformed_http"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "malformed_http"),
        ([b"HTTP/1.1 abc\r\n\r\n"], "malformed_http"),
        ([b"x" * 70_000], "malformed_http"),
    ],
)
def test_an_answer_that_is_not_whole_has_a_named_error(pieces: list[bytes], error: str) -> None:
    exchange, connection = play(pieces, closes=True)
    assert exchange.error == error
    assert not connection.reusable


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    exchange = Exchange(reads=[(1, b"data: a\n"), (2, b"\ndata: b\n\nda"), (3, b"ta: c\r\n\r\n"), (4, b": ping\n\n")])
    assert exchange.events() == [(2, b"a"), (2, b"b"), (3, b"c")]


def test_several_data_lines_are_one_event() -> None:
    assert Exchange(reads=[(1, b"event: x\ndata: a\ndata: b\n\n")]).events() == [(1, b"a\nb")]


def test_a_last_event_without_its_blank_line_still_counts() -> None:
    assert Exchange(reads=[(1, b"data: a\n\n"), (2, b"data: b")]).events() == [(1, b"a"), (2, b"b")]


def test_a_line_outside_the_format_is_handed_on_to_be_refused() -> None:
    assert Exchange(reads=[(1, b"Internal Server Error\n\n")]).events() == [(1, b"Internal Server Error")]
