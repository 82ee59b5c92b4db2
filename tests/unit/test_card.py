"""Cards by the names that drivers give them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.card import find_card, measure_card, read_cards
from orchestrator.errors import EnvironmentBroken


@pytest.mark.parametrize(
    ("name", "gb_s", "tflops"),
    [
        ("NVIDIA H200", 4800, 990),
        ("NVIDIA H100 80GB HBM3", 3350, 990),
        ("NVIDIA H100 PCIe", 2000, 756),
        ("NVIDIA H100 NVL", 3900, 836),
        ("NVIDIA GH200 480GB", 4000, 990),
        ("NVIDIA GH200 144G HBM3e", 4900, 990),
        ("NVIDIA GB10", 273, 125),
        ("NVIDIA A100-SXM4-80GB", 2039, 312),
        ("NVIDIA A100-SXM4-40GB", 1555, 312),
        ("NVIDIA L40S", 864, 362),
        ("NVIDIA GeForce RTX 4090", 1008, 330),
    ],
)
def test_a_known_card_has_its_makers_numbers(name, gb_s, tflops) -> None:
    card = find_card(name)
    assert card.bandwidth_bytes_s == gb_s * 1e9
    assert card.flops_16bit == tflops * 1e12
    assert card.source != "not in the table"


def test_a_card_that_is_not_in_the_table_gets_no_other_cards_numbers() -> None:
    for name in ("NVIDIA A10G", "NVIDIA L400", "NVIDIA H2000", ""):
        assert find_card(name).bandwidth_bytes_s is None
        assert find_card(name).peak_flops() is None


def test_the_peak_is_that_of_the_widest_format_the_weights_allow() -> None:
    card = find_card("NVIDIA B200")
    assert card.peak_flops() == 2250e12
    assert card.peak_flops("fp8") == 4500e12
    assert card.peak_flops("mxfp4") == 9000e12
    assert find_card("NVIDIA A100-SXM4-80GB").peak_flops("fp8") == 312e12


def test_memory_is_read_live_and_may_be_unknown() -> None:
    def said(*args, **kwargs):
        return subprocess.CompletedProcess(args, 0, "NVIDIA H200, 143771, 5\nNVIDIA GB10, [N/A], [N/A]\n", "")

    h200, gb10 = read_cards(run=said)
    assert (h200.memory_bytes, h200.used_bytes) == (143771 << 20, 5 << 20)
    assert (gb10.memory_bytes, gb10.bandwidth_bytes_s) == (None, 273e9)


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("x", 1), subprocess.CalledProcessError(9, "x")]
)
def test_without_a_driver_there_are_no_cards(error) -> None:
    def fails(*args, **kwargs):
        raise error

    assert read_cards(run=fails) == ()


def fake_python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\ncat > {path}.script\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_measured_card_has_the_faster_of_reading_and_copying(tmp_path) -> None:
    said = '{"name": "cpu", "read_bytes_s": 5e9, "copy_bytes_s": 6e9, "flops": 3e10}'
    card = measure_card(fake_python(tmp_path / "python", f"echo noise; echo '{said}'"))
    assert (card.name, card.source) == ("cpu", "measured")
    assert (card.bandwidth_bytes_s, card.flops_16bit) == (6e9, 3e10)
    assert "torch" in (tmp_path / "python.script").read_text(), "the script comes on standard input"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo No module named torch >&2; exit 1", "No module named torch"),
        ("echo '{'", "Expecting property name"),
        ("exec sleep 9", "timed out"),
    ],
)
def test_a_python_that_cannot_measure_is_told_with_its_own_last_words(tmp_path, body, why) -> None:
    python = fake_python(tmp_path / "python", body)
    with pytest.raises(EnvironmentBroken, match=why) as told:
        measure_card(python, timeout_s=0.5)
    assert str(python) in told.value.message


def test_no_such_python_is_told(tmp_path) -> None:
    with pytest.raises(EnvironmentBroken, match="was not measured"):
        measure_card(tmp_path / "none")
