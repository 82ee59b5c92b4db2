"""The proofs of the instrument: named checks on every window and launch, each able to fail a trial."""

from __future__ import annotations

from collections.abc import Sequence

from trackers.records import Check

from .evidence import Evidence, ServerExpectation
from .server_proofs import SERVER_PROOFS
from .traffic_proofs import TRAFFIC_PROOFS

__all__ = ["PROOFS", "Evidence", "ServerExpectation", "greedy_repeats", "window_checks"]

_WINDOW_PROOFS = (*SERVER_PROOFS, *TRAFFIC_PROOFS)


def greedy_repeats(pairs: Sequence[tuple[str, str]]) -> Check:
    """The same greedy prompt twice within a launch gives the same bytes."""
    same = sum(first == second for first, second in pairs)
    passed = same == len(pairs) if pairs else None
    return Check(name="greedy_repeats", passed=passed, detail=f"{same} of {len(pairs)} byte-identical")


def window_checks(evidence: Evidence) -> tuple[Check, ...]:
    """The checks that apply to a window, server first."""
    found = ((proof.__name__, proof(evidence)) for proof in _WINDOW_PROOFS)
    return tuple(Check(name=name, passed=said[0], detail=said[1]) for name, said in found if said is not None)


PROOFS: dict[str, str] = {
    proof.__name__: (proof.__doc__ or "").partition("\n")[0] for proof in (*_WINDOW_PROOFS, greedy_repeats)
}
"""Check name -> what it proves, in one sentence."""
