"""Engines side by side: by how much the anchor moved is said, and where they may not be, they take turns."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from trial_records import STACK, trial, window

from orchestrator.engine_environment import EngineEnvironment
from orchestrator.local_slot import LocalSlot
from orchestrator.neighbours import _beside, _by_machine, neighbours_said
from orchestrator.slot import LaunchOrder
from trackers.records import Estimate, Measurement, TrialRecord


def at(begun: float, value: float, role: str = "incumbent", name: str = "t", **changes: Any) -> TrialRecord:
    estimate = Estimate(value=value, half_width=value / 100, launches=1, windows=2, ending="stable")
    windows = tuple(window(0, n, started_at=begun + n) for n in range(2))
    return trial(name, role=role, windows=windows, estimates={"edit/decode_tok_s": estimate}, **changes)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (99.0, "Beside a neighbour the anchor read -1.0% (within 1.4%) of what it reads alone."),
        (80.0, "read -20.0% (within 1.4%) of what it reads alone; neighbours move it: set slots.isolate."),
    ],
)
def test_an_anchor_measured_beside_and_alone_says_by_how_much_it_moved(read: float, said: str) -> None:
    own = [at(10, read, name="a"), at(90, 100.0, "finalist", name="b"), at(200, 70.0, "in_turn", name="c")]
    assert said in neighbours_said(own, [*own, at(10.5, 1.0, "search", name="other")], "decode_tok_s")


def test_nothing_is_said_where_nothing_ran_side_by_side_or_on_another_machine() -> None:
    own = [at(10, 50.0, name="a"), at(90, 100.0, "finalist", name="b")]
    assert neighbours_said(own, [*own, at(50, 1.0, name="other")], "decode_tok_s") == ""
    far = at(10, 1.0, name="far")
    far = far.model_copy(update={"fingerprint": far.fingerprint.model_copy(update={"items": {"machine": "2"}})})
    assert neighbours_said(own, [*own, far], "decode_tok_s") == ""


def test_without_an_anchor_measured_alone_it_is_said_that_nothing_speaks_for_it() -> None:
    own = [at(10, 50.0, name="a")]
    assert "no anchor" in neighbours_said(own, [*own, at(10, 1.0, name="other")], "decode_tok_s")


def test_many_windows_are_counted_as_each_against_all_of_others_would() -> None:
    dice = random.Random(5)

    def some(_: int) -> Measurement:
        return window(started_at=float(dice.randrange(90)), duration_s=float(dice.choice([1, 3])))

    def on(machine: str, n: int) -> TrialRecord:
        stack = STACK.model_copy(update={"items": {**STACK.items, "machine": machine}})
        return trial(f"{machine}{n}", windows=tuple(map(some, range(3))), fingerprint=stack)

    many = [on(machine, n) for machine in "ab" for n in range(8)]
    spans = {one.trial_id: [(w.started_at, w.started_at + w.duration_s) for w in one.windows] for one in many}
    shares = set()
    for one in many:
        near = [name for name in spans if name != one.trial_id and name[0] == one.trial_id[0]]
        others = [span for name in near for span in spans[name]]
        met = [any(a < end and begun < b for a, b in others) for begun, end in spans[one.trial_id]]
        shares.add(sum(met) / 3)
        assert _beside(one, _by_machine(many)) == sum(met) / 3
    assert len(shares) > 2, "too much of the same to tell anything"


def test_isolated_slots_of_a_machine_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    environment = EngineEnvironment(
        key="k", requirement="vllm==1", version="1", python=Path("python"), directory=None, flavour="other",
        lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    common = {"environment": environment, "model": "m", "args": (), "run_dir": tmp_path, "run_id": "r"}
    order = LaunchOrder(**common, trial_id="t", launch=0, start_timeout_s=1, isolate=True)
    free = order.model_copy(update={"isolate": False})
    entered, other, beside = threading.Event(), LocalSlot("b"), threading.Event()

    def wait_for_it() -> None:
        with other._turn(order):
            entered.set()

    with LocalSlot("a")._turn(order):
        with LocalSlot("c")._turn(free):
            beside.set()
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert not entered.wait(0.3)
        assert other.status() == "waiting for its turn"
    assert entered.wait(10)
    thread.join()
    assert beside.is_set()
