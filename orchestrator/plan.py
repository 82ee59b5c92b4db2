"""TuningPlan: all that one study is asked to do, validated whole before anything starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from search_spaces.knob import normal_flag
from search_spaces.space import Problem, SearchSpace, problems_error, same_target
from search_spaces.space_input import SpaceInput, close_to, local_path

from .plan_forms import Also, Seconds, Share, named_engine, parsed_limit, serve_forms, single_model
from .plan_sources import EngineSpec, ModelSource, PlanPart, ServeSettings, unique_engines
from .plan_upgrades import Upgrades
from .serve_line import ServeLine, is_secret, parse_serve_line
from .stability import StabilityRule
from .workload import Workload

__all__ = [
    "Budget",
    "EngineSpec",
    "Finalists",
    "Gates",
    "Limit",
    "ModelSource",
    "Objective",
    "Precision",
    "Search",
    "ServeSettings",
    "Slots",
    "Tracking",
    "TuningPlan",
    "Upgrades",
]

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Settings whose product is the number of GPUs that one engine takes."""


class Limit(PlanPart):
    """A bound on a metric, such as `p99_ttft_ms <= 200`."""

    metric: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    op: Literal["<=", ">="]
    bound: float

    def excess(self, value: float) -> float:
        """How far a value is past the bound, in units of it; met at or under zero."""
        past = value - self.bound if self.op == "<=" else self.bound - value
        return past / (abs(self.bound) or 1.0)

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.bound:g}"


class Objective(PlanPart):
    metric: str = Field("decode_tok_s", pattern=r"^[a-z][a-z0-9_]*$", description="What is compared.")
    goal: Literal["maximize", "minimize"] = "maximize"
    over: Literal["per_workload", "weighted", "robust"] = Field(
        "per_workload", description="A peak for each workload, one for their weighted mean, or for the worst."
    )
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    limits: tuple[
        Annotated[Limit, BeforeValidator(parsed_limit), Also({"type": "string", "examples": ["p99_ttft_ms <= 200"]})],
        ...,
    ] = ()


class Precision(PlanPart):
    """How well a number is to be known. `launch_noise` is the spread expected between two launches."""

    relative: Share = Field(0.01, description="Half-width asked of a launch, such as 1%.")
    min_windows: int = Field(5, ge=2, description="Windows of a launch at least.")
    max_windows: int = Field(12, ge=2, le=1000, description="Windows after which a launch ends, settled or not.")
    launch_noise: Share = Field(0.02, description="Prior for the spread between launches, such as 2%.")
    indifference: Share | None = Field(None, description="Differences under this are ties.")
    launches: int = Field(1, ge=1, description="Launches of each configuration in the search.")
    max_launches: int = Field(1, ge=1, description="Launches after which repeating ends.")

    @model_validator(mode="after")
    def _ordered(self) -> Precision:
        if self.min_windows > self.max_windows:
            raise ValueError(f"has min_windows {self.min_windows} above max_windows {self.max_windows}")
        if "max_launches" in self.model_fields_set and self.launches > self.max_launches:
            raise ValueError(f"has launches {self.launches} above max_launches {self.max_launches}")
        return self

    @property
    def zone(self) -> float:
        """The indifference zone (relative): given, or the precision itself."""
        return self.indifference if self.indifference is not None else self.relative

    def rule(self, *, finalist: bool = False) -> StabilityRule:
        """When to stop: a finalist is one fresh launch at a time, as finalists take turns."""
        return StabilityRule(
            precision=self.relative,
            min_windows=self.min_windows,
            max_windows=self.max_windows,
            min_launches=1 if finalist else self.launches,
            max_launches=1 if finalist else max(self.launches, self.max_launches),
        )


class Finalists(PlanPart):
    count: int = Field(3, ge=1, description="Candidates launched afresh before a peak is declared.")
    launches: int = Field(3, ge=1, description="Fresh launches of each; one more where one did not settle.")


class Search(PlanPart):
    sampler: Literal["tpe", "gp", "cmaes", "random", "grid", "one_knob"] = "tpe"
    seed: int = Field(0, ge=0)
    launches: int = Field(40, ge=1, description="Most launches on one engine where the budget has no number.")


class Budget(PlanPart):
    """Over all engines together; what is reached first ends the study."""

    launches: int | None = Field(None, ge=1, description="Engine starts.")
    time_s: Seconds | None = Field(None, alias="time", description="Time, such as 35m or 2h.")


class Gates(PlanPart):
    """Capabilities asked for once in each launch, beside its speed."""

    names: tuple[Literal["needle", "tools", "json_schema", "logit_bias", "min_p"], ...] = Field(
        (), description="Asked in this order, after the windows."
    )
    exclude: bool = Field(False, description="What breaks a gate that the incumbent passes is no peak.")


class Slots(PlanPart):
    """Where engines run: each slot on one node, all of them on nodes of one kind."""

    count: int = Field(1, ge=1, description="Engines that run at once.")
    gpus: int = Field(0, ge=0, description="GPUs of each; an engine that takes fewer sees only as many.")
    gpu_type: str | None = Field(None, description="Ray's name of the GPU's type, such as H200.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels that a node must have.")
    nodes: int = Field(1, ge=1, description="Nodes that the slots are spread over, at least.")
    isolate: bool = Field(False, description="No two slots of one machine start or measure at the same time.")


class Tracking(PlanPart):
    uri: str | None = Field(None, description="MLflow tracking URI; a local SQLite store where absent.")
    experiment: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="MLflow experiment; one for each plan, model and machine if absent.",
    )

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        if is_secret("", uri):
            raise ValueError("carries a password; set MLFLOW_TRACKING_URI in the environment instead")
        return uri


def _workload(given: Any, info: ValidationInfo) -> Any:
    if isinstance(given, dict) and isinstance(given.get("path"), str):
        return {**given, "path": local_path(given["path"], info.context, always=True)}
    return given


def _some_traffic(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    if not workloads:
        raise ValueError("the list is empty; name at least one workload, such as {name: edit, kind: edit}")
    return workloads


class TuningPlan(PlanPart):
    """One study. Absent parts have defaults; `model`, `engines` and `workloads` have none."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", description="Names the experiment.")
    models: Annotated[
        dict[str, ModelSource],
        BeforeValidator(single_model),
        Also(ModelSource, {"type": "string"}),
    ] = Field(alias="model", description="The model, or variants of it by name (bf16, fp8).")
    engines: Annotated[
        tuple[Annotated[EngineSpec, BeforeValidator(named_engine), Also({"type": "string"})], ...],
        AfterValidator(unique_engines),
    ] = Field(description="In the order compared: the first is the old stack.")
    serve: Annotated[
        ServeSettings,
        BeforeValidator(serve_forms),
        WithJsonSchema({"type": "object", "properties": {"env": {"type": "object"}}, "additionalProperties": True}),
    ] = Field(default_factory=ServeSettings, description="Flags fixed for every launch, and env.")
    incumbent: Annotated[
        ServeLine | None,
        BeforeValidator(lambda given: parse_serve_line(given) if isinstance(given, str) else given),
        WithJsonSchema({"type": "string"}),
    ] = Field(None, description="The vllm serve line that runs today; measured first.")
    workloads: Annotated[tuple[Annotated[Workload, BeforeValidator(_workload)], ...], AfterValidator(_some_traffic)] = (
        Field(description="The traffic that decides; all of it is measured in each launch.")
    )
    chosen: SpaceInput = Field(default_factory=SpaceInput, alias="space")
    objective: Objective = Objective()
    precision: Precision = Precision()
    finalists: Finalists = Finalists()
    search: Search = Search()
    budget: Budget = Budget()
    gates: Annotated[
        Gates,
        BeforeValidator(lambda given: {"names": given} if isinstance(given, list | tuple) else given),
        Also({"type": "array", "items": {"type": "string"}, "examples": [["tools", "json_schema"]]}),
    ] = Field(Gates(), description="Names, or {names, exclude}; a failed one is flagged.")
    slots: Slots = Slots()
    tracking: Tracking = Tracking()
    upgrades: Upgrades = Upgrades()

    @model_validator(mode="after")
    def _consistent(self) -> TuningPlan:
        problems = [*self._workload_problems(), *self._flag_problems()]
        if problems:
            raise problems_error(problems)
        return self

    @cached_property
    def space(self) -> SearchSpace:
        return self.chosen.build()

    @property
    def workload_names(self) -> tuple[str, ...]:
        return tuple(workload.name for workload in self.workloads)

    def _workload_problems(self) -> Iterator[Problem]:
        counts = Counter(self.workload_names)
        for index, name in enumerate(self.workload_names):
            if name in self.workload_names[:index]:
                yield ("workloads", index, "name"), f"{name} names {counts[name]} workloads"
        for name in self.objective.weights.keys() - set(self.workload_names):
            yield (
                ("objective", "weights", name),
                f"{name} is no workload{close_to(name, self.workload_names)}",
            )
        if self.objective.weights and self.objective.over != "weighted":
            yield (
                ("objective", "weights"),
                f"weights mean nothing over {self.objective.over}; set over: weighted",
            )

    def _flag_problems(self) -> Iterator[Problem]:
        for knob in self.space.knobs:
            for name in self.serve.flags:
                if same_target(knob.flag, normal_flag(name)):
                    yield (
                        ("serve", name),
                        f"{name} is a knob of the space too ({knob.name}); keep one of them",
                    )
            if knob.env in self.serve.env:
                yield ("serve", "env", knob.env), f"{knob.env} is the knob {knob.name} too; keep one of them"
        yield from self._parallel_problems()
        names = {knob.name: knob for knob in self.space.knobs}
        share = names.get("gpu_memory_utilization")
        if share and not share.fixed and {"kv_cache_memory_bytes"} & (names.keys() | self.serve.flags.keys()):
            yield ("space", share.name), "has no effect while kv_cache_memory_bytes is set; keep one of them"

    def _parallel_problems(self) -> Iterator[Problem]:
        fixed = [{**self.serve.flags, **source.serve} for source in self.models.values()]
        sizes = {}
        for name in PARALLEL:
            knobs = [knob for knob in self.space.knobs if knob.flag == normal_flag(name)]
            asked = [value for knob in knobs for value in knob.choices or (knob.high,)]
            sizes[name] = max(int(value) for value in (*asked, *(flags.get(name, 1) for flags in fixed)) if value)
        largest = math.prod(sizes.values())
        if self.slots.gpus and largest > self.slots.gpus:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            yield ("slots", "gpus"), f"is {self.slots.gpus}, and a configuration takes {largest} ({told})"
