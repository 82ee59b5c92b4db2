"""The plan beside its journal, as the last run used it: for verbs that come later and know only its name."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from .errors import PlanError
from .home import home
from .library import plan_names
from .plan import TuningPlan
from .plan_file import load_plan

__all__ = ["find_any_plan", "keep_plan", "kept_plan"]

_NAME = "plan.json"


def keep_plan(plan: TuningPlan, directory: Path) -> None:
    """Write it; a plan holds no secret, since plans that carry one are refused."""
    text = plan.model_dump_json(indent=1)
    file = directory / _NAME
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def kept_plan(name: str) -> TuningPlan | None:
    """The plan of a journal; None where none was kept, or this version cannot read it."""
    file = home() / "journals" / name / _NAME
    try:
        return TuningPlan.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def find_any_plan(what: str) -> TuningPlan:
    """A plan from its file, or by the name of one that ran here.

    Raises:
        PlanError: There is neither, or the file has mistakes.
    """
    if Path(what).suffix in (".yaml", ".yml"):
        return load_plan(what)
    plan = kept_plan(what)
    if plan is None:
        known = ", ".join(plan_names()) or "none yet"
        raise PlanError(f"No plan {what!r} ran here.", f"Name a plan's file, or one of: {known}.")
    return plan
