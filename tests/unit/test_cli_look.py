"""Looking is quick: it loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import two_engines as two
from two_engines import NEW, OLD

import orchestrator

HEAVY = {"httpx", "matplotlib", "mlflow", "numpy", "optuna", "ray", "scipy"}


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["show"], set()),
        (["show", "plan"], set()),
        (["compare", OLD, NEW, "--ui", "http://127.0.0.1:1"], {"numpy", "scipy"}),
    ],
)
def test_commands_that_look_import_nothing_heavy_that_they_do_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], needed: set[str]
) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    two.write(tmp_path)
    code = (
        "import atexit, sys; from orchestrator.cli import main; "
        f"atexit.register(lambda: print('LOADED', *({HEAVY!r} & sys.modules.keys()))); main({command!r})"
    )
    root = Path(orchestrator.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, timeout=60
    )
    shown, _, loaded = done.stdout.rpartition("LOADED")
    assert "ngram k=8" in shown
    assert set(loaded.split()) == needed
