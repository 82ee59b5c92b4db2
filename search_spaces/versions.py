"""Engine versions as tuples, so that `0.9.1` is older than `0.33.0` and a local label changes nothing."""

from __future__ import annotations

import re

__all__ = ["lacks", "parsed"]

_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def parsed(version: str) -> tuple[int, ...] | None:
    """`0.32.0+cpu` -> (0, 32, 0); pre-release and local parts are dropped, None where there is no number."""
    found = _RELEASE.match(version)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def lacks(version: str | None, since: str | None, until: str | None) -> bool:
    """Whether a version is outside `since` (first that has it) to `until` (first without it).

    An unknown version lacks nothing: the engine's own parser has the last word.
    """
    here = parsed(version) if version else None
    if here is None:
        return False
    first, gone = parsed(since or ""), parsed(until or "")
    return (first is not None and here < first) or (gone is not None and here >= gone)
