"""Memory: records of this run and earlier ones; the journal first, then MLflow, then whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from trackers.entries import TrialStarted
from trackers.journal import Journal
from trackers.records import Launch, Measurement, TrialRecord
from trackers.sync import SyncCounts

from .launch_noise import LaunchNoise, pooled
from .plan import Precision
from .stability import StabilityRule, judge_windows, launch_values

__all__ = ["Memory", "launch_means"]


class Memory:
    """Thread-safe; one writer per journal; leaving it waits for what is being sent.

    Args:
        journal: Open for writing, refilled from disk.
        send: Brings MLflow to what the journal says; called after each trial, in a thread of its own so that no
            slot waits for it and one thread alone holds what MLflow allocates. None where nothing is tracked.
        warn: Told once when the store is out: the study goes on, the journal is its spool.
    """

    def __init__(self, journal: Journal, send: Callable[[], SyncCounts] | None, warn: Callable[[str], None]) -> None:
        self._journal, self._send, self._warn = journal, send, warn
        self._lock = threading.RLock()
        self._sender, self._sent = ThreadPoolExecutor(1, "mlflow"), Future[None]()
        self._sent.set_result(None)
        self._records: dict[str, list[TrialRecord]] = {}
        self._taken: dict[str, int] = {}
        self._slowest: dict[str, float] = {}
        self._measured: set[tuple[str, str]] = set()
        self._alike: dict[tuple[str, str], list[TrialRecord]] = {}
        # Configurations that were launched more than once: what the launch noise is read from, at every estimate.
        self._repeated: dict[tuple[str, str], list[TrialRecord]] = {}
        self._noise: dict[tuple[str, str, Precision, str], LaunchNoise] = {}  # what those say, until one more does
        self.outage = False
        for record in journal.records():
            self._file(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Before the journal and the store are closed: what is being sent is sent."""
        self._sender.shutdown()

    def of(self, study: str) -> list[TrialRecord]:
        with self._lock:
            return list(self._records.get(study, ()))

    def all(self) -> list[TrialRecord]:
        with self._lock:
            return [record for records in self._records.values() for record in records]

    def slowest_start(self, study: str) -> float | None:
        """Seconds; None where no engine of the study has started yet."""
        with self._lock:
            return self._slowest.get(study)

    def was_measured(self, study: str, key: str) -> bool:
        """Whether the configuration of this key was, in whatever role."""
        with self._lock:
            return (study, key) in self._measured

    def next_number(self, study: str) -> int:
        """Counts up within a study, over all its runs; two threads never get the same."""
        with self._lock:
            number = self._taken[study] = self._taken.get(study, -1) + 1
            return number

    def begin(self, start: TrialStarted) -> None:
        with self._lock:
            self._journal.begin(start)

    def launch(self, trial_id: str, launch: Launch) -> None:
        with self._lock:
            self._journal.launch(trial_id, launch)

    def window(self, trial_id: str, window: Measurement) -> None:
        with self._lock:
            self._journal.window(trial_id, window)

    def remember(self, record: TrialRecord) -> None:
        """On disk before anything else hears of it."""
        with self._lock:
            self._journal.trial(record)
            self._file(record)
            if self._send and self._sent.done() and not self.outage:
                self.wait()
                self._sent = self._sender.submit(self._bring)

    def send(self) -> None:
        """Bring the store up to date; an outage is told once and mended by the next run or `repeak sync`."""
        self.wait()
        self._bring()

    def wait(self) -> None:
        """Until what is being sent is sent; raises JournalProblem where the journal could not be told of it."""
        self._sent.result()

    def _bring(self) -> None:
        if self._send is None:
            return
        counts = self._send()
        if counts.outage or counts.problems:
            self._warn(f"MLflow: {'; '.join(counts.problems[:2])} The journal has everything.")
        self.outage = counts.outage

    def noise(self, workload: str, metric: str, precision: Precision, *, but: str = "") -> LaunchNoise:
        """Launch noise of this machine and model: configurations launched more than once, and the prior.

        `but` names the configuration about to be judged with it, which must not hide its own disagreement.
        """
        with self._lock:
            out = but if any(key == but for _, key in self._repeated) else ""
            asked = workload, metric, precision, out
            if asked not in self._noise:
                rule = precision.rule()
                repeated = [group for (_, key), group in self._repeated.items() if key != out]
                means = [[x for one in group for x in launch_means(one, workload, metric, rule)] for group in repeated]
                self._noise[asked] = pooled(precision.launch_noise, [group for group in means if len(group) > 1])
            return self._noise[asked]

    def _file(self, record: TrialRecord) -> None:
        self._records.setdefault(record.study, []).append(record)
        self._taken[record.study] = max(self._taken.get(record.study, -1), record.number)
        for launch in record.launches:
            if launch.ready_s is not None:
                self._slowest[record.study] = max(self._slowest.get(record.study, 0.0), launch.ready_s)
        if record.state != "measured":
            return
        at = record.study, record.configuration.key
        self._measured.add(at)
        if record.role != "in_turn":
            group = self._alike.setdefault(at, [])
            group.append(record)
            if sum(len(one.launches) for one in group) > 1:
                self._repeated[at] = group
                self._noise.clear()


def launch_means(record: TrialRecord, workload: str, metric: str, rule: StabilityRule) -> list[float]:
    """What each good launch of a trial gave, in the metric's unit: the replicates of every comparison."""
    good = {launch.launch for launch in record.launches if launch.failure is None}
    by_launch = launch_values(record.windows, workload, metric)
    return [
        judge_windows(values, rule).value
        for launch, values in by_launch.items()
        if launch in good and all(value > 0 for value in values)
    ]
