"""Reading model files that may be anything at all."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.model_config import Fields, locate_model, read_config, read_tensors


def write(directory: Path, text: str | bytes, name: str = "config.json") -> Path:
    (directory / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return directory


def safetensors(tensors: dict, payload: int | None = None) -> bytes:
    header = json.dumps(tensors).encode()
    size = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    return struct.pack("<Q", len(header)) + header + bytes(size if payload is None else payload)


ONE = {"a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}


def test_a_config_is_read_as_fields(tmp_path) -> None:
    config = read_config(write(tmp_path, '{"hidden_size": 8, "x": null, "limit": Infinity}'))
    assert config.integer("hidden_size") == 8
    assert "x" not in config
    assert config.maybe_integer("x", "hidden_size") == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[1, 2]",
        '"text"',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "9" * 19 + "}",
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        b"\xff\xfe\x00{",
        b"\x00" * 4096,
    ],
    ids=range(10),
)
def test_a_file_that_is_no_config_gives_one_clear_error(tmp_path, text) -> None:
    with pytest.raises(PlanError, match=r"config\.json"):
        read_config(write(tmp_path, text))


def test_a_huge_config_is_refused_without_being_read(tmp_path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(100 * 2**20)
    tracemalloc.start()
    begun = time.monotonic()
    with pytest.raises(PlanError, match="larger than"):
        read_config(tmp_path)
    assert time.monotonic() - begun < 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_memory_for_a_dense_config_is_a_small_multiple_of_its_size(tmp_path) -> None:
    text = '{"a": [' + "[]," * 100_000 + "1]}"
    tracemalloc.start()
    read_config(write(tmp_path, text))
    assert tracemalloc.get_traced_memory()[1] < 50 * len(text)
    tracemalloc.stop()


def test_what_is_no_regular_file_is_refused(tmp_path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        read_config(tmp_path)
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(PlanError, match="regular"):
        read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(PlanError, match="cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize("value", ["8", True, 0, -1, 10**12, 1.0, [], {}], ids=str)
def test_a_whole_number_is_nothing_else(value) -> None:
    with pytest.raises(PlanError, match="c: n must be a whole number"):
        Fields({"n": value}, "c").integer("n")


def test_an_error_shows_a_short_piece_of_what_was_found() -> None:
    with pytest.raises(PlanError) as caught:
        Fields({"n": "x" * 10_000}, "c").integer("n")
    assert len(str(caught.value)) < 200


def test_other_kinds_of_field_are_checked_too() -> None:
    fields = Fields({"flag": 1, "text": 2, "list": [1, "a"], "part": [], "rate": "fast"}, "c")
    for read in (
        lambda: fields.flag("flag"),
        lambda: fields.text("text"),
        lambda: fields.items("list", str),
        lambda: fields.section("part"),
        lambda: fields.number("rate", 1.0),
    ):
        with pytest.raises(PlanError):
            read()
    assert fields.section("absent").values == {}
    assert fields.flag("absent", default=True)
    assert fields.integer("absent", default=3) == 3


def test_tensors_come_from_the_headers_alone(tmp_path) -> None:
    write(tmp_path, safetensors(ONE | {"__metadata__": {"data_offsets": [0, 0]}}), "model.safetensors")
    (tensor,) = read_tensors(tmp_path)
    assert tensor == ("a.weight", "BF16", 6, 12)


def test_a_model_without_weight_files_has_no_tensors(tmp_path) -> None:
    assert read_tensors(tmp_path) == ()


def test_the_index_decides_which_files_count(tmp_path) -> None:
    write(tmp_path, safetensors(ONE), "model-00001.safetensors")
    write(tmp_path, safetensors(ONE), "consolidated.safetensors")
    assert len(read_tensors(tmp_path)) == 1
    index = {"weight_map": {"a.weight": "model-00001.safetensors"}}
    write(tmp_path, json.dumps(index), "model.safetensors.index.json")
    assert len(read_tensors(tmp_path)) == 1


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b.safetensors", 7])
def test_an_index_cannot_point_elsewhere(tmp_path, name) -> None:
    write(tmp_path, json.dumps({"weight_map": {"a": name}}), "model.safetensors.index.json")
    with pytest.raises(PlanError, match="weight_map"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        safetensors(ONE, payload=5),
        safetensors({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 13]}}),
        safetensors({"a": {"dtype": "BF16", "shape": [-2, -3], "data_offsets": [0, 12]}}),
        safetensors({"a": {"dtype": "Q9", "shape": [2, 3], "data_offsets": [0, 12]}}),
        safetensors({"a": {"dtype": "BF16", "shape": [True, 6], "data_offsets": [0, 12]}}),
        safetensors({"a": {"dtype": "BF16", "shape": [10**9] * 16, "data_offsets": [0, 12]}}),
        safetensors({"a": {"dtype": "BF16", "shape": [6], "data_offsets": [12, 0]}}, payload=20),
        safetensors({"a": {"dtype": "BF16", "shape": [6], "data_offsets": [0, 12, 3]}}, payload=20),
    ],
    ids=range(13),
)
def test_a_broken_weight_file_gives_one_clear_error(tmp_path, content) -> None:
    with pytest.raises(PlanError, match=r"model\.safetensors"):
        read_tensors(write(tmp_path, content, "model.safetensors"))


def test_a_model_is_found_by_path_or_in_the_hubs_cache(tmp_path, monkeypatch) -> None:
    assert locate_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--org--name"
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc\n")
    assert locate_model("org/name") == kept / "snapshots" / "abc"
    assert locate_model("org/name", "abc") == kept / "snapshots" / "abc"
    assert locate_model("org/other") is None
    assert locate_model("org/name", "../..") is None
    assert locate_model("../name") is None or not locate_model("../name").exists()
