"""What a plan would do, told without launching: environments to build, commands, launches, time."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .home import home
from .orders import shown_command
from .plan import TuningPlan
from .prepare import missing_environments, prepare_studies
from .progress import PlainProgress
from .tune import launch_bounds

__all__ = ["preview", "preview_text"]

# A launch on a small CPU engine and on a large GPU one that compiles, before anything is known of this machine.
_START_S = (40.0, 300.0)
_WINDOW_S = (2.0, 60.0)
_BUILD_S = (60.0, 900.0)
_SHOWN = 40


def preview(plan: TuningPlan) -> dict[str, Any]:
    """The preview as plain data; commands only of engines whose environment is there already."""
    missing = missing_environments(plan)
    present = plan.model_copy(update={"engines": tuple(engine for engine in plan.engines if engine not in missing)})
    lines: list[str] = []
    studies = prepare_studies(present, logs=home() / "journals", memory=None, progress=PlainProgress(lines.append))
    low, high = launch_bounds(plan, studies) if studies else (1, plan.budget.launches or plan.search.launches)
    windows = len(plan.workloads)
    rule = plan.precision.rule()
    least = low * (_START_S[0] + windows * rule.min_windows * _WINDOW_S[0]) + len(missing) * _BUILD_S[0]
    most = high * (_START_S[1] + windows * rule.max_windows * _WINDOW_S[1]) + len(missing) * _BUILD_S[1]
    limit = plan.budget.time_s
    return {
        "plan": plan.name,
        "build": [engine.name for engine in missing],
        "commands": {
            study.engine: [shlex.join(shown_command(study.pad, one)) for one in study.space.enumerate(limit=_SHOWN)]
            for study in studies
        },
        "configurations": {study.engine: study.space.size() for study in studies},
        "launches": {"least": low, "most": high},
        "seconds": {"least": least, "most": min(most, limit) if limit else most},
        "notes": lines,
    }


def preview_text(shown: Mapping[str, Any]) -> str:
    parts = [f"plan {shown['plan']}"]
    parts += [f"would build the environment of {name}" for name in shown["build"]]
    parts += list(shown["notes"])
    for engine, commands in shown["commands"].items():
        size = shown["configurations"][engine]
        parts.append(f"{engine}: {'a continuous space' if size is None else f'{size} configurations'}")
        parts += [f"  {_short(command)}" for command in commands]
        if size is None or size > len(commands):
            parts.append("  ...")
    launches, seconds = shown["launches"], shown["seconds"]
    parts.append(f"launches: at least {launches['least']}, at most {launches['most']}")
    parts.append(f"time: at least {_minutes(seconds['least'])}, at most {_minutes(seconds['most'])}")
    return "\n".join(parts) + "\n"


def _short(command: str) -> str:
    here = str(Path.home())
    return command.replace(here, "~") if here != "/" else command


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
