"""Check: whether the stack under a recorded peak is still what it was, and whether a newer engine can be had."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from trackers.records import Frozen, StackFingerprint

from .engine_environment import EngineEnvironment, EnvironmentRequest, existing_environment
from .environment_recipe import Flavour, recipe_for
from .errors import RepeakError
from .fingerprint import PACKAGES, model_items, shell_variables, static_stack
from .interpreters import probe_interpreter
from .library import Shelf, glances, plan_names
from .plan import EngineSpec, ModelSource, TuningPlan
from .plan_forms import named_engine
from .prepare import environments_root, request_of, stack_of, study_key, study_name
from .rehearsal import simulated
from .releases import Release
from .retune_view import FAST

__all__ = [
    "Ask",
    "Checked",
    "Look",
    "Move",
    "PeakCheck",
    "Sight",
    "check_plan",
    "engines_of",
    "follow",
    "look_at",
    "peaks_here",
]

Kind = Literal[
    "vllm", "torch", "cuda", "packages", "python", "driver", "gpu", "host", "model", "env", "workload", "settings"
]
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("machine", "os", "cpu"), "host"),
    **dict.fromkeys(("cuda", "hip"), "cuda"),
    "vllm": "vllm",
    "torch": "torch",
    "python": "python",
    "driver": "driver",
    "gpu": "gpu",
    "model": "model",
    "env": "env",
}
_SEEN_FROM_OUTSIDE = ("driver", "gpu", "host", "model", "env")


class Move(Frozen):
    """One thing that is not as it was when the peak was found; None where it was or is absent."""

    kind: Kind
    name: str
    old: str | None
    new: str | None


class PeakCheck(Frozen):
    """The peaks of one study against what is here: `unknown` where its environment cannot be looked at."""

    plan: str
    engine: str
    study: str
    state: Literal["stands", "stale", "unknown"]
    moves: tuple[Move, ...] = ()
    note: str = ""
    launch_s: float | None = None  # what a launch with its windows took there, on average


class Checked(Frozen):
    """What was found. A retune takes about `launches` where the peak stayed and at most `most_launches`."""

    peaks: tuple[PeakCheck, ...] = ()
    releases: tuple[Release, ...] = ()
    notes: tuple[str, ...] = ()
    launches: int = 0
    most_launches: int = 0
    seconds: float | None = None
    most_seconds: float | None = None

    @property
    def moved(self) -> bool:
        return any(peak.state == "stale" for peak in self.peaks) or any(
            release.state == "new" for release in self.releases
        )


class Sight(NamedTuple):
    """An engine's environment as it is now and what its Python says; no environment where none is here."""

    environment: EngineEnvironment | None
    probe: Mapping[str, Any]
    why: str = ""


Look = Callable[[EngineSpec], Sight]
Ask = Callable[[str, str, EnvironmentRequest], Release]


def look_at(engine: EngineSpec, scratch: Path) -> Sight:
    """Looks without building; a rehearsal's engine is written into `scratch`, its own directory untouched."""
    try:
        if engine.simulated is not None:
            made = simulated(engine.simulated, scratch / engine.name)
            return Sight(made, {**probe_interpreter(made.python), "packages": made.packages})
        found = existing_environment(request_of(engine), environments_root())
        if found is not None:
            return Sight(found, probe_interpreter(found.python))
        why = "its environment is not on this machine"
    except RepeakError as error:
        why = error.message
    return Sight(None, probe_interpreter(Path(sys.executable)), why)


def follow(base: EngineSpec, requirement: str) -> EngineSpec:
    """Another version of an engine, built as that one was; of an adopted one it is built afresh."""
    held = base.model_dump(include={"build_python", "torch_backend", "constraints", "packages"})
    held |= {"requirement": requirement}
    return EngineSpec.model_validate(named_engine(held))


def engines_of(plan: TuningPlan, shelves: Sequence[Shelf]) -> list[EngineSpec]:
    """The plan's engines, and the newer versions of them that were followed to (a study's facts say so)."""
    named = {engine.name: engine for engine in plan.engines}
    for facts in (shelf.opened.facts for shelf in shelves):
        if facts.get("follows") in named:
            found = follow(named[facts["follows"]], facts["requirement"])
            named.setdefault(found.name, found)
    return list(named.values())


def peaks_here(plan: TuningPlan, now: float) -> tuple[dict[str, list[Shelf]], list[str]]:
    """Studies that ended with a peak launched afresh, by engine, the latest last; and what is left out."""
    recorded, notes = dict[str, list[Shelf]](), list[str]()
    for shelf in glances(plan.name) if plan.name in plan_names() else ():
        name = shelf.opened.facts.get("engine", shelf.opened.study)
        if shelf.closed is None or not shelf.closed.peak:
            continue
        if not all(peak["confirmed"] for peak in shelf.closed.peak.values()):
            notes.append(f"{name}: its search is not finished (`repeak tune` goes on)")
        elif plan.upgrades.look_back and now - shelf.closed.at > plan.upgrades.look_back:
            notes.append(f"{name}: its peak is older than look_back, so it is left alone")
        else:
            recorded.setdefault(name, []).append(shelf)
    return recorded, notes


def check_plan(plan: TuningPlan, look: Look, ask: Ask, now: Callable[[], float] = time.time) -> Checked:
    """Every recorded peak of a plan against the live stack, then what the index has above its engines.

    Args:
        plan: As it is now; what it says is compared with what was measured.
        look: Looks at an engine's environment (see `look_at`).
        ask: Asks the index for a newer version (see `newer_release`).
        now: Seconds since the epoch.
    """
    recorded, notes = peaks_here(plan, now())
    engines = engines_of(plan, [shelf for shelves in recorded.values() for shelf in shelves])
    peaks, standing = [], {}
    for engine in engines:
        sight = look(engine)
        for variant, source in plan.models.items():
            name = study_name(plan, engine, variant)
            shelves = recorded.pop(name, [])
            if not shelves:
                notes.append(f"{name}: no peak yet")
                continue
            if source.id and not source.revision:
                notes.append(f"{source.id}: no revision in the plan, so a change on the hub is not seen")
            notes += [
                f"{drafter}: what changes within its checkpoint is not seen; give a new one a new folder or revision"
                for drafter, settings in plan.space.settings.items()
                if "model" in settings
            ]
            found = [(_against(plan, engine, source, shelf, sight), shelf) for shelf in shelves]
            # A stack that was moved back has its peak already.
            peak, shelf = next((one for one in found if one[0].state != "stale"), found[-1])
            peaks.append(peak.model_copy(update={"engine": name}))
            standing[engine.name] = shelf.opened.fingerprint
    notes += [f"{name}: has a peak, but is no longer in the plan" for name in recorded]
    releases = [ask(*one).model_copy(update={"engine": name}) for name, one in _askable(engines, standing).items()]
    return _with_cost(plan, peaks, releases, list(dict.fromkeys(notes)))


def _with_cost(
    plan: TuningPlan, peaks: Sequence[PeakCheck], releases: Sequence[Release], notes: Sequence[str]
) -> Checked:
    """Each stale peak and each new release is one retune, within the plan's budget."""
    retunes = sum(peak.state == "stale" for peak in peaks) + sum(one.state == "new" for one in releases)
    most = FAST.most + FAST.finals * (FAST.rivals + 1)
    cap = plan.budget.launches or sys.maxsize
    few, many = min(cap, retunes * FAST.calm), min(cap, retunes * most)
    known = [peak.launch_s for peak in peaks if peak.launch_s]
    each = max(known) if known else None
    return Checked(
        peaks=tuple(peaks),
        releases=tuple(releases),
        notes=tuple(notes),
        launches=few,
        most_launches=many,
        seconds=each and few * each,
        most_seconds=each and many * each,
    )


def _against(plan: TuningPlan, engine: EngineSpec, source: ModelSource, shelf: Shelf, sight: Sight) -> PeakCheck:
    before = shelf.opened.fingerprint
    moves = list(_stack_moves(before, _live(plan, source, sight, before)))
    if sight.environment is None:
        moves = [move for move in moves if move.kind in _SEEN_FROM_OUTSIDE]
    elif not engine.simulated:
        moves += _drift(sight, moves)
    moves += _traffic_moves(plan, source, shelf)
    launches = sum(len(record.launches) for record in shelf.records)
    state: Literal["stands", "stale", "unknown"] = "stale" if moves else "stands"
    return PeakCheck(
        plan=plan.name,
        engine=engine.name,
        study=shelf.opened.study,
        state="unknown" if sight.environment is None and not moves else state,
        moves=tuple(moves),
        note=sight.why,
        launch_s=sum(record.duration_s for record in shelf.records) / launches if launches else None,
    )


def _live(plan: TuningPlan, source: ModelSource, sight: Sight, before: StackFingerprint) -> StackFingerprint:
    """The stack as a run would read it now, from what is installed rather than from what was written down."""
    environment, probe = sight.environment, sight.probe
    if environment is None:
        model = model_items(source.reference, source.revision)
        flavour: Flavour = "cpu" if "cpu" in before.items.get("vllm.distribution", "") else "cuda"
        env = shell_variables(flavour, os.environ) | plan.serve.env
        return static_stack(environment={}, model=model, env=env, probe=probe)
    version = probe["engine"]["version"] or environment.version
    now = environment.model_copy(update={"packages": probe["packages"], "version": version})
    return stack_of(plan, source, now, probe)


def _stack_moves(before: StackFingerprint, now: StackFingerprint) -> Iterator[Move]:
    moved = before.diff(now)
    kinds = {name: _KINDS.get(name.split(".", 1)[0], "packages") for name in moved}
    # The lock stands for what has no name here; where something named moved, it only repeats that.
    named = {kind for name, kind in kinds.items() if name != "lock"} & {"vllm", "torch", "packages", "python"}
    for name, (old, new) in moved.items():
        if name != "lock" or not named:
            yield Move(kind=kinds[name], name=name, old=old, new=new)


def _drift(sight: Sight, moves: Sequence[Move]) -> Iterator[Move]:
    """What was installed into or removed from an environment after it was made."""
    made = sight.environment.packages if sight.environment else {}
    now, told = sight.probe["packages"], {move.name for move in moves} | {*PACKAGES, "vllm"}
    for name in sorted(made.keys() | now.keys()):
        if made.get(name) != now.get(name) and name not in told:
            yield Move(kind="packages", name=name, old=made.get(name), new=now.get(name))


def _traffic_moves(plan: TuningPlan, source: ModelSource, shelf: Shelf) -> list[Move]:
    """Workloads, the metric and fixed flags; the flags stand in the study's key alone."""
    then = {ref.name: ref.sha256 for record in shelf.records for ref in record.workloads}
    now = {workload.name: workload.ref.sha256 for workload in plan.workloads}
    found = [
        Move(kind="workload", name=name, old=then.get(name), new=now.get(name))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
    metrics = {peak["target"]["metric"] for peak in (shelf.closed.peak or {}).values()} if shelf.closed else set()
    if metrics and metrics != {plan.objective.metric}:
        found.append(Move(kind="settings", name="metric", old=", ".join(metrics), new=plan.objective.metric))
    key = study_key(plan, shelf.opened.fingerprint, {**plan.serve.flags, **source.serve})
    if not found and key != shelf.opened.study:
        found.append(Move(kind="settings", name="serve flags", old=shelf.opened.study, new=key))
    return found


def _askable(
    engines: Sequence[EngineSpec], stacks: Mapping[str, StackFingerprint]
) -> dict[str, tuple[str, str, EnvironmentRequest]]:
    """For each distribution under a peak its highest version here: engine -> what is asked about it."""
    found: dict[str, tuple[Version, str, str, EnvironmentRequest]] = {}
    for engine in engines if stacks else ():
        if engine.simulated is not None:
            continue
        items = stacks[engine.name].items if engine.name in stacks else {}
        name, version = items.get("vllm.distribution", ""), items.get("vllm", "")
        if engine.requirement is not None:
            recipe = recipe_for(engine.requirement)
            name, version = canonicalize_name(recipe.distribution), recipe.version or version
        request = request_of(engine)
        if request.requirement is None:
            request = EnvironmentRequest(requirement=f"{name}=={version}")
        try:
            ordered = Version(version)
        except InvalidVersion:
            continue
        if name and (name not in found or ordered > found[name][0]):
            found[name] = (ordered, version, engine.name, request)
    return {engine: (name, version, request) for name, (_, version, engine, request) in found.items()}
