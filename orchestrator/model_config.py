"""Reads a model's config.json and safetensors headers: bounded in time and memory, trusting no field."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import PlanError

__all__ = ["Fields", "Tensor", "locate_model", "read_config", "read_tensors"]

MAX_CONFIG_BYTES = 4 * 2**20
MAX_INDEX_BYTES = 32 * 2**20
MAX_HEADER_BYTES = 16 * 2**20
MAX_ALL_HEADERS_BYTES = 64 * 2**20
MAX_FILES = 2_000
MAX_DIGITS = 18
MAX_VALUE = 10**9
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Tensor(NamedTuple):
    """One stored tensor: its name, its safetensors dtype, how many elements, how many bytes on disk."""

    name: str
    dtype: str
    elements: int
    nbytes: int


class Fields:
    """Checked access to a config: each answer has its type and range, or a PlanError names the field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def broken(self, name: str, wanted: str) -> PlanError:
        found = repr(self.values.get(name))[:40]
        return PlanError(f"{self.where}: {name} must be {wanted}, found {found}.", "Repair that file.")

    def _checked(self, name: str, wanted: str, good: Callable[[Any], bool]) -> Any:
        value = self.values.get(name)
        if value is not None and not good(value):
            raise self.broken(name, wanted)
        return value

    def maybe_integer(self, *names: str, low: int = 1, high: int = MAX_VALUE) -> int | None:
        """The first of the names that is present; None where all are absent or null."""
        wanted = f"a whole number from {low} to {high}"
        found = (
            self._checked(name, wanted, lambda value: type(value) is int and low <= value <= high) for name in names
        )
        return next((value for value in found if value is not None), None)

    def integer(self, *names: str, default: int | None = None, low: int = 1, high: int = MAX_VALUE) -> int:
        value = self.maybe_integer(*names, low=low, high=high)
        found = default if value is None else value
        if found is None:
            raise PlanError(f"{self.where}: {names[0]} is missing.", "Use a complete config.json.")
        return found

    def number(self, name: str, default: float) -> float:
        wanted = f"a number above 0 and up to {MAX_VALUE}"
        value = self._checked(name, wanted, lambda value: type(value) in (int, float) and 0 < value <= MAX_VALUE)
        return default if value is None else float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._checked(name, "true or false", lambda value: isinstance(value, bool))
        return default if value is None else bool(value)

    def text(self, name: str, default: str = "") -> str:
        value = self._checked(name, "a short text", lambda value: isinstance(value, str) and len(value) <= 1_000)
        return default if value is None else str(value)

    def items(self, name: str, of: type[str | int], limit: int = 10_000) -> tuple[Any, ...] | None:
        def good(value: Any) -> bool:
            return isinstance(value, list) and len(value) <= limit and all(type(item) is of for item in value)

        value = self._checked(name, f"a list of at most {limit} {of.__name__}", good)
        return None if value is None else tuple(value)

    def section(self, name: str) -> Fields:
        """A nested object; empty where it is absent."""
        value = self._checked(name, "an object", lambda value: isinstance(value, dict))
        return Fields(value or {}, f"{self.where}: {name}")


def locate_model(model: str, revision: str = "main") -> Path | None:
    """The directory of a model: the path itself, or its snapshot in the hub's cache; None if not here."""
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or not re.fullmatch(r"\w[\w.-]*", revision):
        return None
    base = os.environ.get("HF_HOME", "") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", "") or Path(base) / "hub")
    kept = hub / f"models--{model.replace('/', '--')}"
    ref = kept / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip()[:64] if ref.is_file() else revision
    snapshot = kept / "snapshots" / commit
    return snapshot if re.fullmatch(r"\w[\w.-]*", commit) and snapshot.is_dir() else None


def read_config(directory: Path) -> Fields:
    """The model's config.json.

    Raises:
        PlanError: it is absent, too large, not JSON, nested beyond reason, or not an object.
    """
    path = directory / "config.json"
    return Fields(_object(_read(path, MAX_CONFIG_BYTES), path.name), path.name)


def read_tensors(directory: Path) -> tuple[Tensor, ...]:
    """Every tensor of the safetensors files, from their headers alone; empty where there are no such files.

    Raises:
        PlanError: a header is malformed, or a file is shorter than its header says (an unfinished download).
    """
    tensors: list[Tensor] = []
    budget = MAX_ALL_HEADERS_BYTES
    for path in _weight_files(directory):
        header, size = _header(path, min(budget, MAX_HEADER_BYTES))
        budget -= size
        tensors += header
    return tuple(tensors)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        # The index decides: some repositories hold the same weights twice under two names.
        held = _object(_read(index, MAX_INDEX_BYTES), index.name).get("weight_map")
        names = set(held.values()) if isinstance(held, dict) and all(map(_plain, held.values())) else set()
        if not names or len(names) > MAX_FILES:
            raise PlanError(f"{index.name}: its weight_map names no usable files.", "Download the model again.")
        return [directory / name for name in sorted(names)]
    found = sorted(directory.glob("*.safetensors"))[:MAX_FILES]
    return [path for path in found if not path.name.startswith("consolidated")] or found


def _plain(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name) is not None


def _header(path: Path, limit: int) -> tuple[list[Tensor], int]:
    size = _regular(path)
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else limit + 1
        if length > limit or length + 8 > size:
            raise PlanError(f"{path.name}: no usable safetensors header.", "Download the file again.")
        held = _object(file.read(length), path.name)
    held.pop("__metadata__", None)
    return [_tensor(path.name, name, entry, size - 8 - length) for name, entry in held.items()], length


def _tensor(file: str, name: str, entry: object, payload: int) -> Tensor:
    try:
        fields = Fields(entry if isinstance(entry, dict) else {}, file)
        dtype = fields.text("dtype")
        begin, end = fields.items("data_offsets", int, 2) or ()
        elements = 1
        for side in fields.items("shape", int, 16) or ():
            elements *= side if 0 <= side <= MAX_VALUE else -1
        whole = 0 <= begin <= end <= payload and (end - begin) * 8 == elements * DTYPE_BITS[dtype]
    except (ValueError, KeyError, PlanError):
        whole = False
    if not whole:
        raise PlanError(
            f"{file}: tensor {name[:80]} has a broken header, or its data is not all there.",
            "Finish the download of the model, or download the file again.",
        )
    return Tensor(name, dtype, elements, end - begin)


def _regular(path: Path) -> int:
    try:
        found = path.stat()
    except OSError as error:
        raise PlanError(f"{path.name} cannot be read: {error.strerror}.", f"Look at {path.parent}.") from error
    if not stat.S_ISREG(found.st_mode):
        raise PlanError(f"{path.name} is not a regular file.", f"Look at {path.parent}.")
    return found.st_size


def _read(path: Path, limit: int) -> bytes:
    if _regular(path) > limit:
        raise PlanError(f"{path.name} is larger than {limit >> 20} MiB.", "That is no model's config; look at it.")
    with path.open("rb") as file:
        return file.read(limit + 1)


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _object(text: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_int=_int)
    except RecursionError as error:
        raise PlanError(f"{name} is nested too deeply.", "That is no model's file; look at it.") from error
    except ValueError as error:
        raise PlanError(f"{name} is not usable JSON: {str(error)[:100]}.", "Download the file again.") from error
    if not isinstance(value, dict):
        raise PlanError(f"{name} holds no JSON object.", "Download the file again.")
    return value
