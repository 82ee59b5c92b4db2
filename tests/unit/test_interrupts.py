"""Once ends the current launches; SIGUSR1 only lets nothing more start."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from orchestrator.interrupts import stop_on_last, stop_on_signals


def test_sigusr1_asks_for_no_more_and_ends_nothing() -> None:
    before, last = signal.getsignal(signal.SIGUSR1), threading.Event()
    with (
        stop_on_last(last.set),
        stop_on_signals(lambda: pytest.fail("ends a launch"), lambda: pytest.fail("kills")),
    ):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert last.wait(5)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone() -> None:
    before, entered = signal.getsignal(signal.SIGUSR1), list[bool]()

    def work() -> None:
        with stop_on_last(lambda: None):
            entered.append(signal.getsignal(signal.SIGUSR1) is before)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(5)
    assert entered == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_current_launches_and_the_handlers_are_given_back(number: signal.Signals) -> None:
    before, ended = signal.getsignal(number), threading.Event()
    with stop_on_signals(ended.set, lambda: pytest.fail("kills")):
        os.kill(os.getpid(), number)
        assert ended.wait(5)
    assert signal.getsignal(number) is before
