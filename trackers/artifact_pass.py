"""One directory with all artifacts of a run, secrets blotted out, to be handed over in one pass."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from .mlflow_layout import RunContent

__all__ = ["stage"]

_TEXT = {
    "",
    ".csv",
    ".html",
    ".json",
    ".jsonl",
    ".lock",
    ".log",
    ".md",
    ".prom",
    ".svg",
    ".txt",
    ".yaml",
    ".yml",
}
_HEAD, _TAIL = 1 << 20, 7 << 20


def stage(content: RunContent, place: Path, redact: Callable[[str], str]) -> None:
    """Write `content.texts` and copy `content.files` under `place`.

    A file that is no longer there is left out; of a very long text the middle is left out, and it says so.
    """
    for name, text in content.texts.items():
        _under(place, name).write_text(text, encoding="utf-8")
    for name, file in content.files.items():
        if not file.is_file():
            continue
        target = _under(place, name)
        if file.suffix in _TEXT:
            target.write_text(redact(_read(file)), encoding="utf-8")
        else:
            shutil.copyfile(file, target)


def _read(file: Path) -> str:
    with file.open("rb") as source:
        start = source.read(_HEAD + _TAIL)
        left = os.fstat(source.fileno()).st_size - len(start)
        if left > 0:
            source.seek(-_TAIL, os.SEEK_END)
            start = start[:_HEAD] + b"\n[... %d bytes left out here ...]\n" % left + source.read()
    return start.decode(errors="replace")


def _under(place: Path, name: str) -> Path:
    target = place.joinpath(*(part for part in Path(name).parts if part not in ("..", "/")))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
