"""What is remembered is on disk at once, however long the store takes to hear of it."""

from __future__ import annotations

import threading
from pathlib import Path

from trial_records import started, trial, window

from orchestrator.memory import Memory
from trackers.journal import Journal
from trackers.sync import SyncCounts

BOUND_S = 30


def test_a_store_that_hangs_delays_no_other_thread_and_is_told_of_all_in_the_end(tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()
    told: list[int] = []

    with Journal(tmp_path) as journal:

        def send() -> SyncCounts:
            told.append(len(journal.records()))
            reached.set()
            assert go_on.wait(BOUND_S)
            return SyncCounts()

        memory = Memory(journal, send, warn=lambda _: None)
        for number in (1, 2):
            memory.begin(started(f"t{number}", number))
        hung = threading.Thread(target=memory.remember, args=(trial("t1", 1),))
        hung.start()
        assert reached.wait(BOUND_S)

        def others() -> None:
            memory.window("t2", window(0, 0))
            memory.remember(trial("t2", 2, windows=(window(0, 0),)))

        busy = threading.Thread(target=others)
        busy.start()
        busy.join(BOUND_S)
        assert not busy.is_alive(), "it waits for the store"
        assert [record.trial_id for record in journal.records()] == ["t1", "t2"]
        go_on.set()
        hung.join(BOUND_S)
        memory.send()
    assert told == [1, 2], "what came meanwhile goes with the next call"
