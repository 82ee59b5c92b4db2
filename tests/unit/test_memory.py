"""What is remembered is on disk at once, however long the store takes to hear of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import two_engines as two
from trial_records import started, trial, window

from orchestrator.memory import Memory
from orchestrator.prepare import start_bound
from trackers.journal import Journal
from trackers.problems import JournalProblem
from trackers.records import Launch
from trackers.sync import SyncCounts

BOUND_S = 30


def test_a_store_that_hangs_delays_no_trial_and_is_told_of_all_in_the_end(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()
    told: list[int] = []

    with Journal(tmp_path) as journal:

        def send() -> SyncCounts:
            told.append(len(journal.records()))
            reached.set()
            assert go_on.wait(BOUND_S)
            return SyncCounts()

        with Memory(journal, send, warn=lambda _: None) as memory:
            memory.remember(trial("t1", 1))
            assert reached.wait(BOUND_S)
            memory.begin(started("t2", 2))
            memory.window("t2", window(0, 0))
            memory.remember(trial("t2", 2, windows=(window(0, 0),)))
            assert [record.trial_id for record in journal.records()] == ["t1", "t2"]
            assert told == [1], "the store has not answered yet"
            go_on.set()
            memory.send()
    assert told == [1, 2], "what came meanwhile goes with the next call"


def test_one_thread_that_is_no_trials_sends_and_is_gone_in_the_end(tmp_path: Path) -> None:
    senders = set[threading.Thread]()

    def send() -> SyncCounts:
        senders.add(threading.current_thread())
        return SyncCounts()

    with Journal(tmp_path) as journal, Memory(journal, send, warn=lambda _: None) as memory:
        for number in range(3):
            other = threading.Thread(target=memory.remember, args=(trial(f"t{number}", number),))
            other.start()
            other.join(BOUND_S)
    (sender,) = senders
    assert sender is not threading.current_thread()
    assert not sender.is_alive()


def test_a_journal_that_cannot_be_told_what_was_sent_ends_the_study(tmp_path: Path) -> None:
    tried = threading.Event()

    def send() -> SyncCounts:
        tried.set()
        raise JournalProblem("the disk is full")

    with Journal(tmp_path) as journal, Memory(journal, send, warn=lambda _: None) as memory:
        memory.remember(trial("t1", 1))
        assert tried.wait(BOUND_S)
        with pytest.raises(JournalProblem, match="the disk is full"):
            memory.wait()
        with pytest.raises(JournalProblem, match="the disk is full"):
            memory.remember(trial("t2", 2))
        assert len(journal.records()) == 2, "it is on disk all the same"


def test_numbers_go_on_after_those_on_disk(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(trial("t7", 7))
        memory = Memory(journal, None, warn=lambda _: None)
        assert [memory.next_number("s"), memory.next_number("s"), memory.next_number("other")] == [8, 9, 0]


def test_launches_in_turn_with_another_stack_are_no_replicates_of_another_day(tmp_path: Path) -> None:
    here, speed = two.configuration("ngram", 2), 100.0
    precision = two.plan().precision
    with Journal(tmp_path) as journal, Memory(journal, None, pytest.fail) as memory:
        memory.remember(two.record("s", 0, two.OLD, here, speed))
        memory.remember(two.record("s", 1, two.OLD, here, 0.8 * speed, role="in_turn"))
        assert memory.noise("generate", "decode_tok_s", precision).sd == precision.launch_noise
        memory.remember(two.record("s", 2, two.OLD, here, 0.8 * speed, role="finalist"))
        assert memory.noise("generate", "decode_tok_s", precision).sd > precision.launch_noise
        own = memory.noise("generate", "decode_tok_s", precision, but=here.key)
        assert own.sd == precision.launch_noise, "its own launches do not hide their disagreement"


def test_a_start_is_given_five_times_the_slowest_of_its_own_study_and_half_an_hour_before_any(tmp_path: Path) -> None:
    with Journal(tmp_path / "p") as journal:
        memory = Memory(journal, None, warn=lambda _: None)
        assert start_bound(None, "s") == start_bound(memory, "s") == 1800.0
        for number, ready_s in enumerate([90.0, 200.0, None]):
            launches = (Launch(launch=0, started_at=92.0, ready_s=ready_s),)
            memory.remember(trial(f"t{number}", number, launches=launches))
        assert (start_bound(memory, "s"), start_bound(memory, "another")) == (1000.0, 1800.0)
    with Journal(tmp_path / "p") as journal:
        assert start_bound(Memory(journal, None, warn=lambda _: None), "s") == 1000.0, "it learns from earlier runs"


def test_what_was_measured_is_known_in_whatever_role(tmp_path: Path) -> None:
    with Journal(tmp_path / "p") as journal:
        memory = Memory(journal, None, warn=lambda _: None)
        in_turn, failed = trial("a", 1, role="in_turn"), trial("b", 2, state="engine_failed", estimates={})
        for record in (in_turn, failed):
            memory.remember(record)
        ran = [memory.was_measured(study, one.configuration.key) for one in (in_turn, failed) for study in ("s", "t")]
        assert ran == [True, False, False, False]
