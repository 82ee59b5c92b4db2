"""From a plan to studies: environments found or built, stacks read, everything a launch will need."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from search_spaces.feasibility import KnownFacts
from search_spaces.space import SearchSpace
from trackers.records import StackFingerprint

from .engine_environment import (
    EngineEnvironment,
    EnvironmentRequest,
    existing_environment,
    make_environment,
)
from .environment_recipe import needs_bfloat16
from .fingerprint import environment_items, model_items, shell_variables, static_stack
from .home import home
from .interpreters import probe_interpreter
from .memory import Memory
from .orders import Launchpad
from .plan import EngineSpec, ModelSource, TuningPlan
from .progress import Progress
from .rehearsal import simulated
from .serve_line import incumbent_configuration
from .study import Study

__all__ = [
    "environments_root",
    "missing_environments",
    "prepare_studies",
    "request_of",
    "stack_of",
    "study_key",
    "study_name",
]


def environments_root() -> Path:
    return home() / "environments"


def missing_environments(plan: TuningPlan) -> list[EngineSpec]:
    """Engines whose environment a run would have to build first."""
    return [
        engine
        for engine in plan.engines
        if engine.simulated is None and existing_environment(request_of(engine), environments_root()) is None
    ]


def prepare_studies(plan: TuningPlan, *, logs: Path, memory: Memory | None, progress: Progress) -> list[Study]:
    """One study per engine and model variant, in plan order; builds the environments that are missing.

    Raises:
        EnvironmentBroken: An environment could not be made.
    """
    run_id = uuid.uuid4().hex[:8]
    studies = []
    for engine in plan.engines:
        environment = _environment(engine, progress)
        probe = probe_interpreter(environment.python)
        space, lacking = plan.space.on(environment.version)
        for sentence in lacking:
            progress.line(f"{engine.name}: {sentence}")
        for variant, source in plan.models.items():
            held = _Held(plan, engine, environment, probe, space, source, run_id, logs, memory)
            studies.append(_study(study_name(plan, engine, variant), held))
    return studies


class _Held(NamedTuple):
    plan: TuningPlan
    engine: EngineSpec
    environment: EngineEnvironment
    probe: Mapping[str, Any]
    space: SearchSpace
    source: ModelSource
    run_id: str
    logs: Path
    memory: Memory | None

    @property
    def flags(self) -> dict[str, Any]:
        return {**self.plan.serve.flags, **self.source.serve}


def study_key(plan: TuningPlan, stack: StackFingerprint, flags: Mapping[str, Any]) -> str:
    """Twelve hex digits over what makes numbers comparable: workloads, fixed flags, stack, metric."""
    held = {
        "stack": stack.items,
        "serve": dict(flags),
        "workloads": {workload.name: workload.ref.sha256 for workload in plan.workloads},
        "metric": plan.objective.metric,
    }
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()[:12]


def study_name(plan: TuningPlan, engine: EngineSpec, variant: str) -> str:
    """An engine's name, with the model's variant where the plan has several."""
    return engine.name if len(plan.models) == 1 else f"{engine.name} {variant}"


def request_of(engine: EngineSpec) -> EnvironmentRequest:
    """The environment that an engine of a plan wants."""
    if engine.python is not None:
        return EnvironmentRequest(adopt=engine.python)
    if engine.image is not None:
        return EnvironmentRequest(image=engine.image)
    return EnvironmentRequest(
        requirement=engine.requirement,
        python=engine.build_python,
        constraints=engine.constraints,
        packages=engine.packages,
        torch_backend=engine.torch_backend,
    )


def _environment(engine: EngineSpec, progress: Progress) -> EngineEnvironment:
    def say(text: str) -> None:
        progress.now(engine.name, f"environment| {text}")

    if engine.simulated is not None:
        return simulated(engine.simulated, home() / "simulated" / engine.name)
    try:
        return make_environment(request_of(engine), root=environments_root(), progress=say)
    finally:
        progress.now(engine.name, "")


def _study(name: str, held: _Held) -> Study:
    plan, source, memory = held.plan, held.source, held.memory
    config = _config(source)
    stack = stack_of(plan, source, held.environment, held.probe)
    key = study_key(plan, stack, held.flags)
    incumbent = None
    if plan.incumbent is not None:
        incumbent, _ = incumbent_configuration(plan.incumbent, held.space, held.flags, plan.serve.env)
    return Study(
        engine=name,
        key=key,
        stack=stack,
        space=held.space,
        facts=KnownFacts() if held.engine.simulated else _facts(config),
        incumbent=incumbent,
        pad=Launchpad(
            environment=held.environment,
            space=held.space,
            model=source.reference,
            serve=held.flags,
            env=plan.serve.env,
            bfloat16=needs_bfloat16(config),
            logs=held.logs,
            run_id=held.run_id,
            start_timeout_s=lambda: start_bound(memory, key),
            isolate=plan.slots.isolate,
        ),
    )


def start_bound(memory: Memory | None, study: str) -> float:
    """How long a start may take: half an hour while caches are cold, then five times the slowest seen."""
    seen = memory.slowest_start(study) if memory is not None else None
    return 1800.0 if seen is None else max(300.0, 5 * seen)


def stack_of(
    plan: TuningPlan, source: ModelSource, environment: EngineEnvironment, probe: Mapping[str, Any]
) -> StackFingerprint:
    """The stack under a study: environment and host as `probe` (of its interpreter) tells them, model, variables."""
    return static_stack(
        environment=environment_items(
            version=environment.version,
            distribution=canonicalize_name(environment.requirement.split("==")[0].split("@")[0].strip()),
            python=str(probe.get("python", "")),
            packages=environment.packages,
            lock_sha256=environment.lock_sha256,
            image=environment.image,
        ),
        model=model_items(source.reference, source.revision),
        env=shell_variables(environment.flavour, os.environ) | plan.serve.env,
        probe=probe,
    )


def _config(source: ModelSource) -> dict[str, Any]:
    """The model's config.json where it lies in a folder of ours; empty for a hub id."""
    file = Path(source.reference) / "config.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def _facts(config: Mapping[str, Any]) -> KnownFacts:
    text = config.get("text_config") or config
    heads = next((text[name] for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers") if name in text), 0)
    return KnownFacts(model_max_len=text.get("max_position_embeddings"), n_predict=heads if config else None)
