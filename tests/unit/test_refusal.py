"""One launch that ran out of memory speaks for all that ask for no less, and makes the next ones careful."""

from __future__ import annotations

import pytest
from trial_records import trial

from orchestrator.refusal import gamble, known_failure
from search_spaces.configuration import Configuration, Scalar
from search_spaces.drafters import drafter_knobs
from search_spaces.knob import Knob
from search_spaces.space import SearchSpace
from search_spaces.values import Values
from trackers.records import Failure, FailureKind, Launch, TrialRecord

SPACE = SearchSpace(
    knobs=(
        *drafter_knobs({"none": None, "mtp": Values(low=1, high=8), "ngram": Values(low=1, high=8)}),
        Knob(name="seqs", says="", flag="--seqs", choices=(8, 16, 32, 64), needs=("activation", "kv")),
        Knob(name="batch", says="", flag="--batch", choices=(1024, 2048, 4096), needs=("activation",)),
        Knob(name="share", says="", flag="--share", choices=(0.8, 0.9), needs=("device",)),
        Knob(name="backend", says="", flag="--backend", choices=("a", "b")),
    )
)


def one(drafter: str = "none", k: int = 0, **values: Scalar) -> Configuration:
    drafting = {"drafter": drafter, **({"k": k} if k else {})}
    return Configuration(values={**drafting, "seqs": 16, "batch": 2048, "share": 0.8, "backend": "a", **values})


def failed(configuration: Configuration, cause: str, kind: FailureKind = "infeasible") -> TrialRecord:
    failure = Failure(cause=cause, kind=kind, message="too much")
    launch = Launch(launch=0, started_at=1.0, ready_s=None, failure=failure)
    return trial(
        configuration=configuration, state="engine_failed", reason="x", launches=(launch,), windows=(), estimates={}
    )


def started(configuration: Configuration) -> TrialRecord:
    return trial(configuration=configuration)


@pytest.mark.parametrize(
    ("cause", "asked", "refused"),
    [
        ("out_of_memory_graphs", one(), True),
        ("out_of_memory_graphs", one(seqs=32), True),
        ("out_of_memory_graphs", one(seqs=8), False),
        ("out_of_memory_graphs", one(seqs=32, batch=1024), False),
        ("out_of_memory_graphs", one("mtp", 1), True),
        ("out_of_memory_graphs", one("mtp", 1, seqs=8), False),
        ("out_of_memory_graphs", one(seqs=32, backend="b"), False),
        ("out_of_memory_graphs", one(share=0.9), True),
        ("kv_below_max_model_len", one(batch=4096), True),
        ("kv_below_max_model_len", one(share=0.9), False),
        ("bad_value", one(seqs=32), False),
        ("bad_value", one(), True),
    ],
)
def test_what_asks_for_no_less_memory_than_what_failed_is_refused(
    cause: str, asked: Configuration, refused: bool
) -> None:
    found = known_failure(asked, SPACE, [failed(one(), cause)])
    assert (found is not None) == refused
    assert found is None or "trial #" in found.message


def test_a_drafter_says_nothing_of_another_or_of_none() -> None:
    records = [failed(one("mtp", 4), "out_of_memory_kv")]
    assert known_failure(one("mtp", 5), SPACE, records)
    assert not known_failure(one("mtp", 3), SPACE, records)
    assert not known_failure(one("ngram", 8), SPACE, records)
    assert not known_failure(one(seqs=64), SPACE, records)


def test_what_ran_with_no_less_memory_speaks_against_a_failure() -> None:
    records = [started(one(seqs=32)), failed(one(), "out_of_memory_graphs")]
    assert known_failure(one(seqs=64), SPACE, records) is None
    assert known_failure(one(), SPACE, records), "of itself it is still known"
    less = [started(one(seqs=8)), failed(one(), "out_of_memory_graphs")]
    assert known_failure(one(seqs=64), SPACE, less)


def test_a_transient_failure_rules_nothing_out() -> None:
    assert known_failure(one(seqs=64), SPACE, [failed(one(), "device_busy", "transient")]) is None


def test_nothing_is_too_much_until_a_launch_ran_out_of_memory() -> None:
    assert not gamble(one("mtp", 8, seqs=64), SPACE, [started(one())])
    assert not gamble(one("mtp", 8, seqs=64), SPACE, [failed(one(), "bad_value"), started(one())])


def test_after_a_failure_nothing_beyond_what_started_until_it_is_one_in_eight_launches_then_twice_as_much() -> None:
    records = [failed(one(seqs=64), "out_of_memory_kv"), started(one(seqs=16, backend="b")), started(one("ngram", 3))]
    assert not gamble(one(seqs=8), SPACE, records)
    assert gamble(one(seqs=32), SPACE, records)
    assert not gamble(one("mtp", 3), SPACE, records)
    assert gamble(one("mtp", 4), SPACE, records)
    records += [started(one())] * 5
    assert not gamble(one(seqs=32), SPACE, records)
    assert not gamble(one("mtp", 7), SPACE, records)
    assert gamble(one("mtp", 7, seqs=32), SPACE, records)
