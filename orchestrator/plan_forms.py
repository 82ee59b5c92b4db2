"""The short forms a plan may use, each turned into the one form that is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema

from search_spaces.space import Problem, problems_error

from .serve_line import OWN_FLAGS, is_secret

__all__ = ["Also", "Seconds", "Share", "named_engine", "parsed_limit", "serve_forms", "single_model"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Also:
    """Short forms of a field in its JSON Schema, beside the form of its type."""

    def __init__(self, *forms: dict[str, Any] | type[BaseModel]) -> None:
        self.forms = forms

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        forms = [form if isinstance(form, dict) else handler(form.__pydantic_core_schema__) for form in self.forms]
        return {"anyOf": [*forms, handler(core)]}


def _seconds(given: Any) -> Any:
    if isinstance(given, float):
        return given
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", str(given))
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != re.sub(r"\s", "", str(given)):
        raise ValueError("must be a time with its unit, such as 90s, 35m, 2h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _share(given: Any) -> Any:
    if isinstance(given, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", given):
        return float(given.strip().rstrip("%")) / 100
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 1:
        return given
    raise ValueError("must be a share above 0 and under 100 %, such as 15% or 0.15")


Seconds = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    BeforeValidator(_seconds),
    WithJsonSchema({"type": "string", "pattern": r"^(\d+(\.\d+)?\s*[smhd]\s*)+$", "examples": ["35m", "1h30m"]}),
]
Share = Annotated[
    float,
    Field(gt=0, lt=1),
    BeforeValidator(_share),
    WithJsonSchema({"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?\s*%$", "examples": ["15%", 0.15]}),
]


def parsed_limit(given: Any) -> Any:
    """`p99_ttft_ms <= 200` -> its three parts."""
    if not isinstance(given, str):
        return given
    found = re.fullmatch(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=)\s*(-?\d+(?:\.\d+)?(?:e\d+)?)\s*", given)
    if not found:
        raise ValueError("must be a limit; write it like p99_ttft_ms <= 200 or kv_tokens >= 262144")
    return {"metric": found[1], "op": found[2], "bound": float(found[3])}


def single_model(given: Any) -> Any:
    """One model alone as the only variant, `model`."""
    if isinstance(given, str):
        path = given.startswith(("/", ".", "~", "$"))
        return {"model": {"path" if path else "id": given}}
    variants = isinstance(given, Mapping) and given and all(isinstance(one, Mapping) for one in given.values())
    return given if variants or not isinstance(given, Mapping) else {"model": given}


def named_engine(given: Any) -> Any:
    """`vllm==0.32.0` or an interpreter's path as a mapping, with a name made from it."""
    if isinstance(given, str):
        given = {"python" if given.startswith(("/", ".", "~", "$")) else "requirement": given}
    if not isinstance(given, Mapping):
        raise ValueError("must be a requirement such as vllm==0.32.0, an interpreter's path, or a mapping")  # noqa: TRY004
    if given.get("name"):
        return given
    return {**given, "name": _engine_name(given)}


def _engine_name(given: Mapping[str, Any]) -> str:
    text = str(given.get("requirement") or "")
    if given.get("image"):
        return re.sub(r"[^A-Za-z0-9._+-]", "-", str(given["image"]).rpartition("/")[2].partition("@")[0])[:64]
    if not text:
        python = str(given.get("python") or "")
        # bin/python of an environment: the environment's directory names it
        return re.sub(
            r"[^A-Za-z0-9._+-]",
            "-",
            Path(python).parent.parent.name or str(given.get("simulated") or "engine"),
        )
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return "engine"
    version = str(wanted.specifier).lstrip("=") or Path(wanted.url or "").stem
    return re.sub(r"[^A-Za-z0-9._+-]", "-", f"{wanted.name}-{version}")[:64]


def serve_forms(given: Any) -> Any:
    """A plan's `serve:` as flags under underscore names, and env as text; what no plan may set is refused."""
    if not isinstance(given, Mapping) or "flags" in given:
        return given
    flags, problems = dict[str, Any](), list[Problem]()
    for name, value in given.items():
        plain = str(name).lstrip("-").replace("-", "_") if "." not in str(name) else str(name)
        refused = _refused(plain, value) or ("stands here twice" if plain in flags else "")
        if plain != "env" and refused:
            problems.append(((name,), refused))
        elif plain != "env":
            flags[plain] = value
    env = given.get("env") or {}
    if not isinstance(env, Mapping):
        raise problems_error([*problems, (("env",), "is a mapping of names to text")])
    for name, value in env.items():
        if is_secret(str(name), value):
            problems.append((("env", name), "is a secret; export it in the shell, engines inherit it"))
    if problems:
        raise problems_error(problems)
    return {"flags": flags, "env": {str(name): _shell(value) for name, value in env.items()}}


def _refused(name: str, value: Any) -> str:
    if name in OWN_FLAGS:
        return "is set by each launch itself; leave it out"
    if is_secret(name, value):
        return "is a secret; export it in the shell, engines inherit it"
    if name.startswith("speculative_config") or name in ("spec_method", "spec_model", "spec_tokens"):
        return "stands in space.drafter, where one drafter with one k fixes it"
    return "names a file of settings; write them here" if name == "config" else ""


def _shell(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
