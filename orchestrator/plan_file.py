"""Plan file: YAML read without running anything in it, and every mistake told with its line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from search_spaces.space_input import close_to

from .errors import PlanError
from .home import home
from .plan import TuningPlan

__all__ = ["load_plan", "plan_schema", "read_plan"]

_LARGEST = 250_000  # bytes
_DEEPEST = 40
_MOST_ALIASES = 20
_SCALARS = {"str", "int", "float", "bool", "null", "timestamp"}
_Place = tuple[str | int, ...]
_TYPES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "missing": "is missing",
}


def load_plan(path: Path | str) -> TuningPlan:
    """Read and validate a plan; relative paths in it are taken from its folder.

    Raises:
        PlanError: Every mistake in it, one a line, each as `file:line: field: what is wrong`.
    """
    file = Path(path)
    return read_plan(_text(file), file)


def read_plan(text: str, file: Path) -> TuningPlan:
    """The same from text that stands for `file`."""
    try:
        data, lines = _data(text)
        context = {"folder": file.absolute().parent, "home": home()}
        return TuningPlan.model_validate(data, context=context)
    except _Unreadable as error:
        raise PlanError(f"{file}:{error.line}: {error.what}.", "Nothing was started.") from None
    except ValidationError as error:
        told = sorted({(_line(lines, place), _named(place), what) for place, what in _mistakes(error, lines)})
        many = f"{len(told)} mistakes" if len(told) > 1 else "a mistake"
        listed = [f"{file}:{line}: {field}: {what}" for line, field, what in told]
        raise PlanError("\n".join([f"the plan has {many}:", *listed]), "Nothing was started.") from None


def plan_schema() -> dict[str, Any]:
    """JSON Schema of a plan, short forms included, for editors."""
    schema = TuningPlan.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _Unreadable(Exception):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


def _text(file: Path) -> str:
    try:
        # A pipe or a device would be waited for without end.
        if file.exists() and not file.is_file():
            raise PlanError(f"{file} is not a file.", "Name a YAML file; `repeak init` writes one.")
        raw = file.read_bytes()
    except OSError as error:
        raise PlanError(f"the plan {file} cannot be read: {error.strerror}.", "`repeak init` writes a plan.") from error
    if len(raw) > _LARGEST:
        raise PlanError(f"{file} has {len(raw)} bytes; a plan has at most {_LARGEST}.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PlanError(f"{file}:{line}: is not UTF-8.", "Save the file as UTF-8.") from None


def _data(text: str) -> tuple[Any, dict[_Place, int]]:
    """Plain data, and the line on which each place begins."""
    lines: dict[_Place, int] = {(): 1}
    try:
        _bounded(text)
        node = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise _Unreadable(1, "a plan is a mapping of fields, such as `name:` and `model:`")
        return _plain(node, (), lines, ()), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        at = text.splitlines()[line : line + 1]
        tab = "\t" in (at[0] if at else "") or "'\\t'" in str(error.problem)
        what = "a tab; YAML is indented with spaces" if tab else f"is no YAML: {error.problem}"
        raise _Unreadable(line + 1, what) from None
    except yaml.YAMLError as error:
        raise _Unreadable(1, f"is no YAML: {' '.join(str(error).split())}") from None


def _bounded(text: str) -> None:
    """Refuse what would take long or much memory, before anything is built from it."""
    aliases = depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if aliases > _MOST_ALIASES:
            raise _Unreadable(line, f"more than {_MOST_ALIASES} aliases; write the values out")
        if depth > _DEEPEST:
            raise _Unreadable(line, f"more than {_DEEPEST} levels deep; a plan is flat")


def _plain(node: yaml.Node, place: _Place, lines: dict[_Place, int], above: Sequence[yaml.Node]) -> Any:
    lines.setdefault(place, node.start_mark.line + 1)
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if any(node is one for one in above):
        raise _Unreadable(lines[place], f"{_named(place)} contains itself")
    inside = (*above, node)
    if isinstance(node, yaml.MappingNode) and kind == "map":
        return _mapping(node, place, lines, inside)
    if isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_plain(one, (*place, index), lines, inside) for index, one in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
        # 1:30 would be 90 and a date would be a date: a plan has neither, so both stay text.
        text = kind == "timestamp" or (kind in ("int", "float") and ":" in node.value)
        return node.value if text else yaml.SafeLoader("").construct_object(node)
    raise _Unreadable(lines[place], f"{_named(place)} has the tag {node.tag}, which a plan may not; nothing was run")


def _mapping(
    node: yaml.MappingNode, place: _Place, lines: dict[_Place, int], inside: Sequence[yaml.Node]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith(":str"):
            shown = key.value if isinstance(key, yaml.ScalarNode) else "this key"
            raise _Unreadable(line, f"{shown} as a key is not text; put it into quotes")
        if key.value in found:
            first = lines[*place, key.value]
            raise _Unreadable(line, f"{_named((*place, key.value))} stands here twice, first on line {first}")
        lines[*place, key.value] = line
        found[key.value] = _plain(value, (*place, key.value), lines, inside)
    return found


def _mistakes(error: ValidationError, lines: Mapping[_Place, int]) -> Iterator[tuple[_Place, str]]:
    for each in error.errors():
        place = _place(each["loc"], lines)
        if each["type"] == "problems":
            yield from ((_place((*place, *below), lines), what) for below, what in each["ctx"]["problems"])
        elif each["type"] == "extra_forbidden":
            known = _fields(TuningPlan, each["loc"][:-1])
            near = close_to(str(each["loc"][-1]), known)
            yield place, f"unknown field{near or '; there are ' + ', '.join(known)}"
        else:
            known = _fields(TuningPlan, each["loc"]) if each["type"].startswith("model_") else []
            missing = (*place, str(each["loc"][-1])) if each["type"] == "missing" else place
            yield missing, _sentence(each) + (f"; its fields are {', '.join(known)}" if known else "")


def _sentence(each: Any) -> str:
    """What is wrong in one sentence, with what was given."""
    given = each["input"]
    shown = (
        "" if isinstance(given, dict) or each["type"] in ("missing", "value_error") else json.dumps(given, default=str)
    )
    what = _TYPES.get(each["type"]) or each["msg"].removeprefix("Value error, ")
    what = what.replace("Input should be", "must be")
    return f"{what}, not {shown[:80]}" if shown else what


def _place(loc: Sequence[str | int], lines: Mapping[_Place, int]) -> _Place:
    """An error's location without what the checker put between (forms it tried), as the file has it."""
    place: _Place = ()
    for part in loc:
        if (*place, part) in lines:
            place = (*place, part)
    return place


def _line(lines: Mapping[_Place, int], place: _Place) -> int:
    while place not in lines:
        place = place[:-1]
    return lines[place]


def _named(place: _Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "plan"


def _fields(model: Any, loc: Sequence[str | int]) -> list[str]:
    """Field names that the plan's form has at a location; empty where it has no fixed ones."""
    for part in loc:
        fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        by_name = {info.alias or name: info.annotation for name, info in fields.items()}
        model = _model_in(by_name[str(part)]) if part in by_name else model
    return [info.alias or name for name, info in getattr(model, "model_fields", {}).items()]


def _model_in(annotation: Any) -> Any:
    """The model within `tuple[Annotated[Model, ...], ...] | None` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [_model_in(one) for one in get_args(annotation)]
    return next((one for one in inner if one is not None), None)
