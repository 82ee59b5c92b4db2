"""What a study taken up alone has cost: its own launches, and those of the old engine in turn with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import two_engines as two

from orchestrator.budget import Budget
from orchestrator.clock import SystemClock
from orchestrator.memory import Memory
from orchestrator.session import _paid
from trackers.journal import Journal


def test_an_old_engine_s_own_finals_are_no_cost_of_the_study_that_comes_after(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        memory = Memory(journal, None, pytest.fail)
        for number, (study, role) in enumerate(
            [("old", "search"), ("new", "search"), ("old", "finalist"), ("new", "anchor"), ("old", "in_turn")]
        ):
            engine = two.OLD if study == "old" else two.NEW
            memory.remember(two.record(study, number, engine, two.configuration(), 100.0, role=role))
        for number, beside in ((5, "another"), (6, "new")):  # one in turn with yet another engine, one with this
            told = {"role": "in_turn", "beside": beside}
            memory.remember(two.record("old", number, two.OLD, two.configuration(), 100.0, **told))
        pair = [SimpleNamespace(key="old"), SimpleNamespace(key="new")]
        paid = _paid(pair, memory)  # type: ignore[arg-type]
    assert [(one.study, one.number) for one in paid] == [("new", 1), ("new", 3), ("old", 4), ("old", 6)]
    assert Budget(launches=5, time_s=None, before=paid, clock=SystemClock()).used == 4
