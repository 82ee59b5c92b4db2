"""The table of proofs: every check has a name and a sentence, and a window shows the ones that apply."""

from __future__ import annotations

from orchestrator.evidence import Evidence
from orchestrator.proofs import PROOFS, greedy_repeats, window_checks
from orchestrator.workload import Workload


def test_every_proof_says_what_it_proves_in_one_sentence() -> None:
    assert len(PROOFS) == 19
    assert all(sentence.endswith(".") and len(sentence) > 20 for sentence in PROOFS.values())


def test_a_window_shows_the_checks_that_apply_under_their_names() -> None:
    names = {check.name for check in window_checks(Evidence(Workload(name="w", kind="generate"), []))}
    assert names == {"host_quiet", "streams_finished"}
    assert names < set(PROOFS)


def test_repeats_are_counted() -> None:
    check = greedy_repeats([("a", "a"), ("b", "c")])
    assert (check.name, check.passed, check.detail) == ("greedy_repeats", False, "1 of 2 byte-identical")
    assert greedy_repeats([]).passed is None
