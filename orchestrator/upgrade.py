"""Upgrade: what moved under a plan's peaks, taken up one study after another, the newest engine first."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from .advice import Advice, advice_text
from .check import Ask, Checked, check_plan, engines_of, follow, look_at, peaks_here
from .engine_environment import EnvironmentRequest, make_environment
from .environment_recipe import recipe_for
from .errors import EnvironmentBroken, PlanError
from .library import Shelf, plan_names
from .notices import send_notice
from .pip_settings import uv_settings
from .plan import EngineSpec, TuningPlan
from .prepare import environments_root, request_of, study_name
from .releases import Release, newer_release, remember_broken
from .session import Result, Scope, journal_directory
from .uv_steps import Uv
from .window import Window

__all__ = ["Job", "Upgraded", "asking", "checked", "jobs", "upgrade", "with_index"]

_TRAFFIC = ("workload", "settings")


def asking(plan: TuningPlan, environ: Mapping[str, str], told: dict[str, Release]) -> Ask:
    """Asks the index as the plan follows it, each question once (`told` remembers, over several plans)."""
    steps = Uv(with_index(environ, plan.upgrades.index), lambda _: None)

    def ask(distribution: str, installed: str, request: EnvironmentRequest) -> Release:
        key = repr((distribution, installed, request, plan.upgrades))
        if key not in told:
            more = {"upgrades": plan.upgrades, "broken_in": environments_root()}
            told[key] = newer_release(steps, distribution, installed, request, **more)  # type: ignore[arg-type]
        return told[key]

    return ask


def with_index(environ: Mapping[str, str], index: str | None) -> dict[str, str]:
    """The variables with a further package index, the best version of all of them counting."""
    if index is None:
        return dict(environ)
    known = uv_settings(environ).environ.get("UV_INDEX", "")
    return {**environ, "UV_INDEX": f"{known} {index}".strip(), "UV_INDEX_STRATEGY": "unsafe-best-match"}


def checked(plan: TuningPlan, ask: Ask) -> Checked:
    """What moved under a plan's peaks; one that never ran has none, and says so."""
    if plan.name not in plan_names():
        return Checked(notes=(f"no peak yet: `repeak tune` the plan {plan.name} first",))
    with tempfile.TemporaryDirectory() as scratch:
        return check_plan(plan, lambda engine: look_at(engine, Path(scratch)), ask)


class Job(NamedTuple):
    """One study to be made: of which version, where, after what and why; `cold`: old numbers are of other traffic."""

    version: Version
    scope: Scope
    why: str
    cold: bool = False


def jobs(plan: TuningPlan, found: Checked, now: float) -> list[Job]:
    """Each new release, each stale peak and each engine of the plan without one: the newest version first."""
    recorded, _ = peaks_here(plan, now)
    engines = engines_of(plan, [shelf for every in recorded.values() for shelf in every])
    made = [job for variant in plan.models for job in _jobs(plan, variant, found, recorded, engines)]
    return sorted(made, key=lambda job: job.version, reverse=True)


def _jobs(
    plan: TuningPlan,
    variant: str,
    found: Checked,
    recorded: Mapping[str, Sequence[Shelf]],
    engines: Sequence[EngineSpec],
) -> Iterator[Job]:
    named = {study_name(plan, engine, variant): engine for engine in engines}
    at = {engine.name: recorded.get(name, ()) for name, engine in named.items()}

    def job(engine: EngineSpec, old: Shelf, why: str, facts: Mapping[str, str]) -> Job:
        before = named.get(old.opened.facts.get("engine", ""))
        study = study_name(plan, engine, variant)
        scope = Scope(engine=engine, study=study, old=old, facts=facts, before=None if before == engine else before)
        version = recipe_for(engine.requirement).version if engine.requirement else None
        return Job(Version(version) if version else _version(old), scope, f"{study}: {why}")

    latest = max((here[-1] for here in at.values() if here), key=_version, default=None)
    if latest is None:
        return
    stale = {peak.engine: peak for peak in found.peaks if peak.state == "stale"}
    for release in found.releases:
        base = next((one for one in engines if one.name == release.engine), None)
        if base is not None and release.version is not None:
            wanted = f"{release.distribution}=={release.version}"
            roots = [shelf.opened.facts.get("follows", base.name) for shelf in at[base.name]]
            facts = {"follows": [*roots, base.name][0], "requirement": wanted}
            yield job(follow(base, wanted), latest, f"{wanted} is new", facts)
    for engine in engines:
        moved = stale.get(study_name(plan, engine, variant))
        if moved is not None:
            old = next(one for one in at[engine.name] if one.opened.study == moved.study)
            why = ", ".join(f"{one.name} {one.old or 'absent'} -> {one.new or 'absent'}" for one in moved.moves)
            facts = {name: text for name, text in old.opened.facts.items() if name in ("follows", "requirement")}
            again = job(engine, old, why, facts)
            yield again._replace(cold=any(one.kind in _TRAFFIC for one in moved.moves))
        elif not at[engine.name]:
            yield job(engine, latest, "it has no peak yet", {})


def _version(shelf: Shelf) -> Version:
    try:
        return Version(shelf.opened.fingerprint.items.get("vllm", ""))
    except InvalidVersion:
        return Version("0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """What became of all that had moved: what was found, what failed to be built, what is left for another time."""

    plan: str
    found: Checked
    results: Sequence[Result] = ()
    failures: Sequence[str] = ()
    left: Sequence[str] = ()

    @property
    def advice(self) -> list[Advice]:
        return [one for result in self.results for one in result.outcome.advice]

    @property
    def interrupted(self) -> bool:
        return any(result.interrupted for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 done or nothing to do, 3 an environment could not be made, 4 nothing could be measured."""
        codes = [result.exit_code for result in self.results]
        return 3 if self.failures else max(codes, default=0)

    def text(self) -> str:
        told = [advice_text(one) for one in self.advice]
        told += [f"could not be had: {one}\n" for one in self.failures]
        told += [f"left for another run: {one}\n" for one in self.left]
        unknown = [one for one in self.found.releases if one.state in ("offline", "unknown")]
        told += [f"releases of {one.distribution} could not be looked up: {one.why}\n" for one in unknown]
        if not (self.results or self.failures or self.left):
            told += ["Nothing moved, as far as it could be seen.\n", *(f"{note}\n" for note in self.found.notes)]
        return "\n".join(told)

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "text": self.text(),
            "moved": self.found.model_dump(mode="json"),
            "advice": [one.model_dump(mode="json") for one in self.advice],
            "failures": list(self.failures),
            "left": list(self.left),
        }


def upgrade(
    plan: TuningPlan,
    found: Checked,
    tune: Callable[[Job], Result],
    window: Window,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    now: Callable[[], float] = time.time,
) -> Upgraded:
    """Build and tune what moved, one after another, as long as the window lasts; then tell whoever is to know.

    An engine that cannot be built is said to be so, and nothing else changes. `tune` runs one job (see
    `tune_plan`), `environ` has the package settings and the webhook.
    """
    results, failures, left = list[Result](), list[str](), list[str]()
    for job in jobs(plan, found, now()):
        if window.ended or (results and results[-1].interrupted):
            left.append(job.why)
            continue
        say(job.why)
        try:
            _built(plan, job.scope.engine, environ, say)
            results.append(tune(job))
        except (EnvironmentBroken, PlanError) as error:
            failures.append(f"{job.scope.study}: {error.message}")
            say(failures[-1])
            continue
        if job.scope.study not in results[-1].finished:
            left.append(f"{job.why} ({', '.join(results[-1].outcome.ended.values())})")
    done = Upgraded(plan=plan.name, found=found, results=results, failures=failures, left=left)
    if results or failures:
        _tell(plan, done, environ, say)
    return done


def _built(plan: TuningPlan, engine: EngineSpec, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    if engine.requirement is None:
        return
    told = with_index(environ, plan.upgrades.index)
    try:
        make_environment(request_of(engine), root=environments_root(), progress=say, environ=told)
    except EnvironmentBroken as error:
        remember_broken(environments_root(), engine.requirement, error.message)
        raise


def _tell(plan: TuningPlan, done: Upgraded, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    folder, notice = journal_directory(plan), done.as_json()
    (folder / "outcome.txt").write_text(done.text(), encoding="utf-8")
    (folder / "outcome.json").write_text(json.dumps(notice, indent=1) + "\n", encoding="utf-8")
    send_notice(plan.upgrades, notice, environ, say)
