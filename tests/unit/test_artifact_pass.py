"""What goes to the store as files: all of it in one directory, without secrets, bounded in size."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackers import artifact_pass
from trackers.artifact_pass import stage
from trackers.mlflow_layout import RunContent
from trackers.redaction import redactor


def content(texts: dict[str, str], files: dict[str, Path]) -> RunContent:
    return RunContent(name="x", tags={}, texts=texts, files=files, started_ms=0, ended_ms=0)


def test_texts_and_files_stand_under_their_paths(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_bytes(b"\x89PNG\xff")
    place = tmp_path / "place"
    made = content({"a/b.json": "{}"}, {"c/plot.png": tmp_path / "plot.png", "gone.log": tmp_path / "gone.log"})
    stage(made, place, redactor({}))
    assert (place / "a" / "b.json").read_text() == "{}"
    assert (place / "c" / "plot.png").read_bytes() == b"\x89PNG\xff"
    assert not (place / "gone.log").exists()


def test_a_log_loses_its_secrets_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"HF_TOKEN=abc\nnot utf-8: \xff\nINFO ready\n")
    stage(content({}, {"x.log": tmp_path / "x.log"}), tmp_path / "place", redactor({}))
    assert (tmp_path / "place" / "x.log").read_text() == "HF_TOKEN=***\nnot utf-8: �\nINFO ready\n"


@pytest.mark.parametrize(("size", "left"), [(100, 0), (101, 1), (1000, 900)])
def test_of_a_very_long_log_start_and_end_are_kept_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, left: int
) -> None:
    monkeypatch.setattr(artifact_pass, "_HEAD", 30)
    monkeypatch.setattr(artifact_pass, "_TAIL", 70)
    text = "".join(chr(65 + n % 26) for n in range(size))
    (tmp_path / "x.log").write_text(text)
    stage(content({}, {"x.log": tmp_path / "x.log"}), tmp_path / "place", redactor({}))
    middle = f"\n[... {left} bytes left out here ...]\n" if left else ""
    assert (tmp_path / "place" / "x.log").read_text() == text[:30] + middle + text[size - 70 :]


def test_a_path_cannot_leave_the_directory(tmp_path: Path) -> None:
    stage(content({"../../etc/x": "1", "/abs/y": "2"}, {}), tmp_path / "place", redactor({}))
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"place/etc/x", "place/abs/y"}
