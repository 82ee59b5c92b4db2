"""Of two runs on a machine one runs and the other says who does; what a dead one left is taken over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import LockHeld
from orchestrator.machine_lock import machine_held

HOLDER = """
import sys
from pathlib import Path
from orchestrator.machine_lock import machine_held
with machine_held(Path(sys.argv[1]), "repeak retune night.yaml", print, lambda: 1.76e9):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_other_says_who_holds_it_what_that_runs_and_since_when(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(LockHeld) as told, machine_held(tmp_path, "repeak tune", pytest.fail):
            pytest.fail("two at once")
        assert told.value.exit_code == 6
        assert f"process {process.pid} (repeak retune night.yaml), since 2025-10-09" in told.value.message
        assert f"kill -USR1 {process.pid}" in told.value.hint
    finally:
        process.communicate("end\n", timeout=30)
    said: list[str] = []
    with machine_held(tmp_path, "repeak tune", said.append):
        assert said == [], "it ended in good order: there is nothing to take over"


def test_the_lock_of_a_dead_process_is_taken_over_with_a_message(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    said: list[str] = []
    with machine_held(tmp_path, "repeak tune", said.append):
        pass
    assert len(said) == 1
    assert f"took over the lock of process {process.pid} (repeak retune night.yaml)" in said[0]


def test_a_lock_file_that_says_nothing_of_use_is_taken_over_too(tmp_path: Path) -> None:
    with machine_held(tmp_path, "first", pytest.fail):
        pass
    (file,) = tmp_path.glob("*.lock")
    file.write_text("{torn")
    said: list[str] = []
    with machine_held(tmp_path, "second", said.append):
        assert str(os.getpid()) in file.read_text()
    assert "has not said who it is" in said[0]
