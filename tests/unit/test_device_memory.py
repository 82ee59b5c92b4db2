"""GPUs on which somebody works are told from idle ones by what the driver says; without a driver there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.device_memory import busy_devices


@pytest.mark.parametrize(
    ("rows", "busy"),
    [
        ("0, 4, 0\n1, 312, 3\n", []),
        ("0, 70000, 0\n1, 4, 0\n", ["GPU 0: 70000 MiB in use, 0 % busy"]),
        ("0, 4, 97\n", ["GPU 0: 4 MiB in use, 97 % busy"]),
        ("0, [N/A], [N/A]\n", []),
        ("", []),
    ],
)
def test_memory_or_work_on_a_gpu_makes_it_busy(tmp_path: Path, rows: str, busy: list[str]) -> None:
    tool = tmp_path / "smi"
    tool.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    tool.chmod(0o755)
    assert busy_devices(str(tool)) == busy


def test_only_the_gpus_that_are_ours_to_see_keep_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "smi"
    known = "*--id=2,3*) echo 2, 4, 0;; *--id*) exit 6;; *) echo 0, 70000, 99;;"
    tool.write_text(f'#!/bin/sh\ncase "$*" in {known} esac\n')
    tool.chmod(0o755)
    assert len(busy_devices(str(tool))) == 1
    for ours, busy in {"2, 3": 0, "": 0, "-1": 0, "MIG-of-one-of-them": 1}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ours)
        assert len(busy_devices(str(tool))) == busy


def test_no_driver_no_gpus(tmp_path: Path) -> None:
    assert busy_devices(str(tmp_path / "absent")) == []
