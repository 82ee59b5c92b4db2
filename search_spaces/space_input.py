"""The space as a plan writes it: ready-made spaces, drafters with their k, knobs in short forms."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from .catalog import CATALOG, READY_MADE
from .configuration import Scalar
from .drafters import DRAFTERS, SETTINGS, drafter_knobs
from .knob import Knob, KnobInput
from .space import Problem, SearchSpace, problems_error
from .values import Values

__all__ = ["DrafterInput", "Drafting", "SpaceInput", "close_to", "local_path"]

_READY_DRAFTERS = ("none", "ngram", "suffix", "mtp")  # those that need no further model
_RANGE = ("choices", "low", "high", "step", "log", "default")


def close_to(name: str, known: Any) -> str:
    """`; did you mean X?` where a known name is near; else nothing."""
    found = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def local_path(text: str, context: Any, *, always: bool = False) -> str | None:
    """A path made absolute, `~` and `${REPEAK_HOME}` replaced; None where the text looks like a hub id.

    Args:
        text: As the plan writes it.
        context: `{"folder": Path, "home": Path}` of the plan; without it nothing is looked up.
        always: Whether a bare name is a path too.

    Raises:
        ValueError: Nothing is there.
    """
    if not always and not text.startswith(("/", ".", "~", "$")):
        return None
    if not context:
        return text
    expanded = text.replace("${REPEAK_HOME}", str(context["home"]))
    # Links are kept: an interpreter's link into its environment is what makes it that environment's.
    path = os.path.abspath(Path(context["folder"]) / Path(expanded).expanduser())  # noqa: PTH100
    if not os.path.exists(path):  # noqa: PTH110
        raise ValueError(f"there is nothing at {path}; give a path that exists, or a hub id like org/name")
    return path


class DrafterInput(BaseModel):
    """One drafter: its draft tokens `k`, its `model`, and fixed keys of the engine's speculative settings."""

    model_config = ConfigDict(frozen=True, extra="allow")

    k: Values | None = Field(None, description="Draft tokens a pass: one number, a list, or {low, high}.")
    model: str | None = Field(None, description="Draft checkpoint: a path, or a hub id.")

    @field_validator("model")
    @classmethod
    def _found(cls, model: str | None, info: ValidationInfo) -> str | None:
        return model and (local_path(model, info.context) or model)

    @property
    def settings(self) -> dict[str, Scalar]:
        """Fixed settings as scalars: an object or a list as its JSON text."""
        given = {**(self.model_extra or {}), **({"model": self.model} if self.model else {})}
        return {key: json.dumps(one) if isinstance(one, dict | list) else one for key, one in given.items()}


class Drafting(BaseModel):
    """Drafters to choose from, `none` among them where drafting nothing is a choice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    none: DrafterInput | None = None
    ngram: DrafterInput | None = None
    suffix: DrafterInput | None = None
    draft_model: DrafterInput | None = None
    eagle3: DrafterInput | None = None
    mtp: DrafterInput | None = None
    dflash: DrafterInput | None = None
    dspark: DrafterInput | None = None

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, given: Any) -> Any:
        names = [given] if isinstance(given, str) else given
        if isinstance(names, list):
            return {str(name): {} for name in names}
        return {name: one or {} for name, one in names.items()} if isinstance(names, Mapping) else names

    @model_validator(mode="after")
    def _fits(self) -> Drafting:
        problems = [problem for name, one in self.chosen.items() for problem in _drafter_problems(name, one)]
        if problems or not self.chosen:
            raise problems_error(problems or [((), f"names no drafter; there are {', '.join(DRAFTERS)}")])
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        names = {"enum": list(DRAFTERS)}
        return {"anyOf": [names, {"type": "array", "items": names}, handler(core)]}

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A null in a plan is a drafter in its usual form, so what is not chosen is left out.
        return {name: one for name, one in write(self).items() if one is not None}

    @property
    def chosen(self) -> dict[str, DrafterInput]:
        return {name: one for name, one in self if one is not None}

    def k_values(self) -> dict[str, Values | None]:
        """Each drafter with its k: the plan's, else the drafter's usual range."""
        return {name: one.k or _usual_k(name) for name, one in self.chosen.items()}


class SpaceInput(BaseModel):
    """What may be chosen. Every other key is a knob: a value (fixed), a list, or {low, high, step or log}."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, KnobInput | None] = Field(init=False)

    use: tuple[Literal["vllm-speculative", "vllm-batching", "vllm-memory", "vllm-kernels"], ...] = Field(
        (), description="Ready-made spaces; a key of your own replaces theirs, and null takes it out."
    )
    drafter: Drafting | None = Field(None, description="Drafters by name, each with its own k.")
    forbid: tuple[str, ...] = Field(
        (), description="Conditions that no configuration may meet: max_num_seqs > 64 and drafter == dspark"
    )

    @model_validator(mode="after")
    def _builds(self) -> SpaceInput:
        problems = [problem for name, one in self._own() for problem in _knob_problems(name, one)]
        if problems:
            raise problems_error(problems)
        try:
            self.build()
        except ValidationError as error:
            found = [one for each in error.errors() for one in each.get("ctx", {}).get("problems", [])]
            raise problems_error(found) from None
        return self

    def build(self) -> SearchSpace:
        """The space itself: ready-made knobs, this plan's in their place or beside them, drafters first."""
        knobs = {name: knob for ready in self.use for name, knob in READY_MADE[ready].items()}
        for name, one in self._own():
            knobs.pop(name, None)
            if one is not None:
                knobs[name] = _overlaid(name, one)
        ready = _READY_DRAFTERS if "vllm-speculative" in self.use else ("none",)
        drafting = self.drafter or Drafting.model_validate(list(ready))
        return SearchSpace(
            knobs=(*drafter_knobs(drafting.k_values()), *knobs.values()),
            settings={name: one.settings for name, one in drafting.chosen.items() if one.settings},
            forbid=self.forbid,
        )

    def _own(self) -> Iterator[tuple[str, KnobInput | None]]:
        yield from (self.__pydantic_extra__ or {}).items()


def _usual_k(name: str) -> Values | None:
    usual = DRAFTERS[name].k
    return Values(low=usual[0], high=usual[1]) if usual else None


def _drafter_problems(name: str, one: DrafterInput) -> Iterator[Problem]:
    drafter = DRAFTERS[name]
    if drafter.k is None:
        if one.k or one.settings:
            yield (
                (name, "k") if one.k else (name,),
                f"{name} drafts nothing, so it takes no k and no settings",
            )
        return
    if one.k and not all(isinstance(k, int) and not isinstance(k, bool) and k >= 1 for k in one.k.grid()):
        yield (name, "k"), "k counts draft tokens: whole numbers from 1"
    if drafter.needs_model and not one.model:
        yield (name,), f"{name} needs its draft checkpoint: model, a path or a hub id"
    if name in ("ngram", "suffix") and one.model:
        yield (name, "model"), f"{name} takes no model"
    for key in (one.model_extra or {}).keys() - SETTINGS:
        yield (name, key), f"unknown drafter setting{close_to(key, SETTINGS)}"


def _knob_problems(name: str, one: KnobInput | None) -> Iterator[Problem]:
    known = CATALOG.get(name)
    if one is None or known or ((one.flag or one.env) and name not in ("k", "drafter")):
        return
    where = "k stands under its drafter" if name == "k" else "not a ready-made knob"
    how = "for any flag of the engine write {flag: --its-name, choices: [...]}"
    yield (name,), f"{where}{close_to(name, CATALOG)}; {how}"


def _overlaid(name: str, one: KnobInput) -> Knob:
    known = CATALOG.get(name)
    base = known.model_dump(exclude={*_RANGE, "name"}, exclude_unset=True) if known else {}
    return Knob(name=name, **{**base, **one.model_dump(exclude_defaults=True)})
