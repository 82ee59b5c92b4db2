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
        pair = [SimpleNamespace(key="old"), SimpleNamespace(key="new")]
        paid = _paid(pair, memory)  # type: ignore[arg-type]
    assert [(one.study, one.role) for one in paid] == [("new", "search"), ("new", "anchor"), ("old", "in_turn")]
    assert Budget(launches=4, time_s=None, before=paid, clock=SystemClock()).used == 3
