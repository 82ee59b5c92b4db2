"""One line of the journal: its bytes, its checksum, and what to make of bytes that are not one."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["HEAD", "VERSION", "Line", "Scan", "encode", "key_bytes", "scan"]

VERSION = 1

HEAD = b'{"v":%d,"kind":"' % VERSION
_LINE = re.compile(
    re.escape(HEAD)
    + rb'([a-z]+)","at":([0-9.e+-]+),"id":(\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\]),"body":(.*)'
    + rb',"crc":"([0-9a-f]{8})"\}',
    re.DOTALL,
)
_VERSION = re.compile(rb'\s*\{\s*"v"\s*:\s*(\d+)')


class Line(NamedTuple):
    """A good line, and where its body (JSON) lies in the file, in bytes."""

    number: int
    kind: str
    key: bytes
    offset: int
    length: int


class Scan(NamedTuple):
    """A journal read to its end.

    `damaged` has the numbers of whole lines that are not ours, `foreign` the first (number, version) of
    another schema, `end` the offset after the last line worth keeping, `torn` what comes after it;
    `open_ended` says that this last line lacks only its line feed.
    """

    lines: list[Line]
    damaged: list[int]
    foreign: tuple[int, int] | None
    end: int
    torn: bytes
    open_ended: bool


def key_bytes(*key: str | int) -> bytes:
    """A key as it stands in a line."""
    return json.dumps(key).encode()


def encode(kind: str, at: float, key: bytes, body: bytes) -> tuple[bytes, int]:
    """The line for `body` (JSON on one line), line feed included, and where in it the body starts."""
    head = HEAD + f'{kind}","at":{at!r},"id":'.encode() + key + b',"body":'
    return b'%b%b,"crc":"%08x"}\n' % (head, body, zlib.crc32(head + body)), len(head)


def scan(raws: Iterable[bytes]) -> Scan:
    """Every good line of a file's lines, whatever is wrong with the others."""
    lines: list[Line] = []
    damaged: list[int] = []
    foreign: tuple[int, int] | None = None
    at, torn, raw = 0, b"", b"\n"
    for number, raw in enumerate(raws, 1):
        line = _decode(raw, number, at)
        whole = line is not None or raw.endswith(b"\n")
        if line is None and whole:
            version = _VERSION.match(raw)
            if version and int(version[1]) != VERSION:
                foreign = foreign or (number, int(version[1]))
            damaged.append(number)
            # A lost line feed joins two lines: the second is still good.
            start = max(raw.rfind(HEAD), 0)
            line = _decode(raw[start:], number, at + start)
        if line:
            lines.append(line)
        at, torn = (at + len(raw), b"") if whole else (at, raw)
    return Scan(lines, damaged, foreign, at, torn, open_ended=not torn and not raw.endswith(b"\n"))


def _decode(raw: bytes, number: int, at: int) -> Line | None:
    found = _LINE.fullmatch(raw.rstrip(b"\n"))
    if found is None or int(found[5], 16) != zlib.crc32(raw[: found.end(4)]):
        return None
    return Line(number, found[1].decode(), found[3], at + found.start(4), len(found[4]))
