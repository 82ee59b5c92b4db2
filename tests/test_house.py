"""The drawing is held by tests: doors between rooms, fences around libraries, sizes, names, the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from orchestrator.cli import cli

ROOT = Path(__file__).resolve().parent.parent
_CONTEXT = click.Context(cli)
VERBS = {name: cli.get_command(_CONTEXT, name) for name in cli.list_commands(_CONTEXT)}
ROOMS = ("orchestrator", "search_spaces", "trackers")
MAY_IMPORT = {
    "search_spaces": set(),
    "trackers": {"search_spaces"},
    "orchestrator": {"search_spaces", "trackers"},
}
FENCES = {
    "ray": {"orchestrator/cluster.py", "orchestrator/engine_actor.py"},
    "optuna": {"orchestrator/searcher.py"},
    "mlflow": {"trackers/mlflow_tracker.py"},
    "vllm": set(),
}
LIGHT = {
    "search_spaces": {"pydantic", "pydantic_core"},
    "trackers": {"pydantic", "pydantic_core", "mlflow", "sqlalchemy"},
}
FILE_LINES, FUNCTION_LINES = 330, 60


def files() -> list[Path]:
    return [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]


def imports(file: Path) -> set[str]:
    """Top-level names imported anywhere in a file, relative ones left out."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_doors_fences_and_sizes(file: Path) -> None:
    name, room = str(file.relative_to(ROOT)), file.relative_to(ROOT).parts[0]
    found = imports(file)
    assert not (found & set(ROOMS)) - MAY_IMPORT[room] - {room}, "imports a room it has no door to"
    assert room not in found, "imports its own room by name: siblings are relative"
    for library, allowed in FENCES.items():
        assert library not in found or name in allowed, f"{library} is fenced into {sorted(allowed)}"
    if room in LIGHT:
        outside = found - set(ROOMS) - LIGHT[room] - set(sys.stdlib_module_names) - {"__future__"}
        assert not outside, f"{room} is standard library and pydantic only, not {outside}"
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES, "a file explains one thing"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the first line says what the file is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


def test_no_drawer_for_everything_and_no_package_that_hides_another() -> None:
    drawers = {"utils", "util", "common", "helpers", "manager", "misc"}
    assert not [file for file in files() if file.stem in drawers]
    assert not (ROOT / "docker" / "__init__.py").exists(), "it would hide the SDK that MLflow imports"
    assert not (ROOT / "tests" / "__init__.py").exists()


def test_the_readme_names_every_room_and_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for room in (*ROOMS, "tests", "docker", "examples", "benchmarks"):
        assert f"`{room}/`" in readme
    for command in VERBS:
        assert f"repeak {command}" in readme, f"the README does not know {command}"


def test_every_command_has_help_with_an_example() -> None:
    for name, command in VERBS.items():
        assert "Example" in (command.help or ""), f"repeak {name} --help shows no example"


def test_the_locks_are_hashed_and_name_no_index() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text, f"{name} holds an address"
        pins = re.findall(r"^[a-z0-9][\w.-]*==", text, re.MULTILINE)
        assert len(pins) > 40
        assert text.count("--hash=sha256:") >= len(pins)


def test_the_wheel_holds_the_three_rooms_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == set(ROOMS)
    assert "orchestrator/py.typed" in zipfile.ZipFile(wheel).namelist()
