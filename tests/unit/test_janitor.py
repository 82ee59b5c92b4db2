"""The register of running engines, and what is removed on its word: only what is proven ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.janitor import Running, forget, here, register, sweep, wait_memory_back
from orchestrator.process_tree import Process, identify, running

DEAD = Process(2**30, 1)


def written(directory: Path, entry: Running) -> None:
    (directory / f"{entry.cookie}.json").write_text(entry.model_dump_json())


class Strayed:
    """A process that carries a cookie, as an engine does whose owner is gone."""

    def __init__(self) -> None:
        self.cookie = f"stray-{uuid4().hex}"
        self.popen = subprocess.Popen(
            [sys.executable, "-c", "print('up', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "REPEAK_COOKIE": self.cookie},
        )
        assert self.popen.stdout is not None
        self.popen.stdout.readline()
        self.who = identify(self.popen.pid)

    @property
    def runs(self) -> bool:
        return self.who is not None and running(self.who)

    def entry(self, **more: object) -> Running:
        fields = {"cookie": self.cookie, "run": "run-1", "place": here(), "owner": DEAD, "engine": self.who}
        return Running.model_validate({**fields, **more})


@pytest.fixture
def stray() -> Iterator[Strayed]:
    stray = Strayed()
    yield stray
    stray.popen.kill()
    stray.popen.communicate()


def test_a_stray_with_a_dead_owner_is_removed_and_told(tmp_path: Path, stray: Strayed) -> None:
    written(tmp_path, stray.entry())
    (removed,) = sweep(tmp_path)
    assert (removed.cookie, removed.run, removed.left) == (stray.cookie, "run-1", 0)
    assert removed.removed == (stray.popen.pid,)
    assert not stray.runs
    assert list(tmp_path.iterdir()) == []


def test_an_engine_whose_owner_lives_is_left_alone(tmp_path: Path, stray: Strayed) -> None:
    entry = stray.entry(owner=identify(os.getpid()))
    written(tmp_path, entry)
    assert sweep(tmp_path) == []
    assert stray.runs
    assert len(list(tmp_path.iterdir())) == 1


def test_an_owner_s_pid_that_is_now_another_process_does_not_count_as_living(tmp_path: Path, stray: Strayed) -> None:
    me = identify(os.getpid())
    assert me is not None
    written(tmp_path, stray.entry(owner=Process(me.pid, me.start - 1)))
    assert len(sweep(tmp_path)) == 1


def test_a_process_without_the_cookie_is_left_alone_even_under_a_registered_pid(tmp_path: Path, stray: Strayed) -> None:
    written(tmp_path, stray.entry(cookie="stray-another", engine=stray.who, watchdog=None))
    assert sweep(tmp_path) == []
    assert stray.runs
    assert list(tmp_path.iterdir()) == []


def test_an_entry_of_another_machine_is_left_alone(tmp_path: Path, stray: Strayed) -> None:
    written(tmp_path, stray.entry(place="elsewhere pid:[1]"))
    assert sweep(tmp_path) == []
    assert stray.runs
    assert len(list(tmp_path.iterdir())) == 1


def test_a_watchdog_that_never_finishes_is_not_waited_for_endlessly(tmp_path: Path, stray: Strayed) -> None:
    written(tmp_path, stray.entry(watchdog=stray.who))
    (removed,) = sweep(tmp_path, patience_s=0.2)
    assert removed.seconds >= 0.2
    assert not stray.runs


def test_of_directories_only_one_that_was_made_for_an_engine_is_removed(tmp_path: Path) -> None:
    running, gone, kept = tmp_path / "running", tmp_path / "repeak-0123456789ab", tmp_path / "repeak-models"
    for folder in (running, gone, kept):
        folder.mkdir()
    for number, scratch in enumerate((gone, kept, gone / "..")):
        fields = {"cookie": f"none-{number}", "run": "r", "place": here(), "owner": DEAD, "scratch": str(scratch)}
        written(running, Running.model_validate(fields))
    assert sweep(running) == []
    assert (gone.exists(), kept.exists(), list(running.iterdir())) == (False, True, [])


def test_a_file_that_is_no_entry_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"cookie": "x"')
    assert sweep(tmp_path) == []
    assert (tmp_path / "half.json").exists()


def test_a_directory_that_does_not_exist_has_no_strays(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []


def test_registering_again_replaces_and_forgetting_is_repeatable(tmp_path: Path) -> None:
    register(tmp_path / "new", "a", "run-1")
    register(tmp_path / "new", "a", "run-1", None, DEAD)
    (path,) = (tmp_path / "new").iterdir()
    entry = Running.model_validate_json(path.read_bytes())
    assert (entry.engine, entry.watchdog, entry.owner) == (DEAD, None, identify(os.getpid()))
    forget(tmp_path / "new", "a")
    forget(tmp_path / "new", "a")
    assert list((tmp_path / "new").iterdir()) == []


class Ticking:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_memory_is_waited_for_until_it_is_back() -> None:
    clock = Ticking()
    assert wait_memory_back(80 << 30, lambda: int(10 + 20 * clock.now) << 30, clock, 60)
    assert 3 <= clock.now <= 4


def test_memory_that_never_comes_back_ends_the_waiting() -> None:
    clock = Ticking()
    assert not wait_memory_back(80 << 30, lambda: 10 << 30, clock, 60)
    assert clock.now == 60


def test_a_little_less_memory_than_before_is_enough() -> None:
    clock = Ticking()
    assert wait_memory_back(80 << 30, lambda: (80 << 30) - (200 << 20), clock, 60)
    assert clock.now == 0
