"""An interpreter is one that runs, and what it says of itself is asked with a bound."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from orchestrator.errors import EnvironmentBroken, PlanError
from orchestrator.interpreters import find_interpreter, probe_interpreter


def script(file: Path, body: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def test_the_running_python_is_meant_where_none_is_named_but_not_its_virtual_environment() -> None:
    path, version = find_interpreter(None)
    assert version == platform.python_version()
    assert path == Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"


def test_a_path_is_used_as_it_is() -> None:
    assert find_interpreter(sys.executable)[0] == Path(sys.executable)


def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "a" / "python3.11", "exit 127")
    good = script(tmp_path / "b" / "python3.11", "echo 3.11.9")
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b")
    assert find_interpreter("3.11") == (good, "3.11.9")


def test_a_version_managers_own_folder_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = script(tmp_path / "versions" / "3.12.4" / "bin" / "python3.12", "echo 3.12.4")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert find_interpreter("3.12") == (good, "3.12.4")
    assert find_interpreter("3.12.4") == (good, "3.12.4")


def test_one_that_is_too_old_or_absent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    script(tmp_path / "python3.9", "echo 3.9.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    for wanted in ("3.9", "3.99", str(tmp_path / "none")):
        with pytest.raises(PlanError, match="No working interpreter"):
            find_interpreter(wanted)


def test_a_probe_that_says_nothing_and_dies_names_the_processor(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match=r"ended with -4.*\n.*does not suit this processor"):
        probe_interpreter(script(tmp_path / "python", "kill -ILL $$"))


def test_a_probe_that_fails_passes_on_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match="No module named torch"):
        probe_interpreter(script(tmp_path / "python", "echo 'No module named torch' >&2; exit 1"))


def test_a_probe_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentBroken, match="timed out"):
        probe_interpreter(script(tmp_path / "python", "exec sleep 60"), timeout_s=0.2)


def test_what_is_printed_before_the_report_does_not_spoil_it(tmp_path: Path) -> None:
    python = script(tmp_path / "python", """cat >/dev/null; echo 'INFO banner'; echo '{"python": "3.11"}'""")
    assert probe_interpreter(python) == {"python": "3.11"}


def test_the_probe_sees_no_module_path_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    python = script(tmp_path / "python", """cat >/dev/null; echo "{\\"path\\": \\"$PYTHONPATH\\"}" """)
    assert probe_interpreter(python) == {"path": ""}
