"""The plan beside its journal."""

from __future__ import annotations

from pathlib import Path

import pytest
import two_engines as two

from orchestrator.errors import PlanError
from orchestrator.kept_plan import find_any_plan, keep_plan, kept_plan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    return tmp_path


def test_what_was_kept_comes_back_equal(home: Path) -> None:
    plan = two.plan(
        objective={"limits": ["p99_ttft_ms <= 200"]},
        budget={"launches": 4, "time": "35m"},
        serve={"max_model_len": 2048, "env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    )
    folder = home / "journals" / "plan"
    folder.mkdir(parents=True)
    keep_plan(plan, folder)
    found = kept_plan("plan")
    assert found == plan
    assert found.space == plan.space


def test_an_unreadable_one_is_none(home: Path) -> None:
    folder = home / "journals" / "plan"
    folder.mkdir(parents=True)
    assert kept_plan("plan") is None
    (folder / "plan.json").write_text('{"from": "the future"}')
    assert kept_plan("plan") is None


def test_a_plan_is_found_by_name_or_file(home: Path) -> None:
    two.write(home)
    assert find_any_plan("plan").name == "plan"
    with pytest.raises(PlanError, match="No plan 'other' ran here") as error:
        find_any_plan("other")
    assert "plan" in error.value.hint
    with pytest.raises(PlanError, match="cannot be read"):
        find_any_plan(str(home / "none.yaml"))
