"""Refind: yesterday's peak found again on another stack, a launch at a time, to a verdict for each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from pydantic import ValidationError

from search_spaces.configuration import Configuration
from trackers.entries import StudyClosed

from .advice import Advice, advise
from .candidates import Target, noise_of
from .errors import EnvironmentBroken, Interrupted, PlanError
from .joint_model import Reading, fit_scales
from .objective import targets
from .peak import Peak
from .refusal import refuse
from .retune import next_step
from .retune_view import Effort, Frame, Seen, Verdict, both_seen, restated
from .study import Bench, Study, attempt
from .tune import Outcome, conclude, peaks_of, run_studies

__all__ = ["named_study", "refind"]


def refind(
    effort: Effort,
    old_name: str | None = None,
    new_name: str | None = None,
    *,
    cold: bool = False,
    alternate: bool = False,
    closed: StudyClosed | None = None,
) -> Callable[[Sequence[Study], Bench], Outcome]:
    """The work of a session: from the old engine's records to the new engine's verdict, target by target.

    An old engine without a peak has nothing to be re-found: the new one is searched cold, and it is said; so it
    is with `cold`, where the traffic changed and old numbers are of other things. Until every target has its
    verdict the new engine has no peak, and the next run goes on. With `alternate` the old engine is launched in
    turn, where its stack is still here. Its study has ended as `closed` says, where that is known.
    """

    def work(studies: Sequence[Study], bench: Bench) -> Outcome:
        old, new, in_turn = _pair(studies, old_name, new_name, alternate=alternate)
        before = _recorded(peaks_of(old, bench.plan, bench.memory.of(old.key)), closed)
        peaks = {**conclude(studies, bench.plan, bench.memory).peaks, old.engine: before}
        if cold or not before:
            why = "the traffic is another" if cold else f"{old.engine} has no peak to start from"
            bench.progress.line(f"{why}: {new.engine} is searched cold")
            found = run_studies([new], bench)
            return Outcome(ended=found.ended, peaks={**peaks, **found.peaks}, shifts=[])
        verdicts, advice, ended, interrupted = list[Verdict](), list[Advice](), "", False
        for target in targets(bench.plan.objective, bench.plan.workload_names):
            if target.name not in before:
                continue
            try:
                peak = before[target.name].configuration
                verdict = _refind_one(old, new, target, peak, bench, effort, alternate=in_turn)
            except Interrupted:
                verdict, interrupted = bench.budget.spent() or "interrupted", True
            if isinstance(verdict, str):
                ended = f"{target.name}: {verdict}"
                break
            verdicts.append(verdict)
            _say_likelier(verdict, target, bench)
            then, now = _both(old, new, target, bench)
            fields, most = (restated(then, peak), now.field), bench.plan.upgrades.regression
            advice.append(advise(old, new, before[target.name], verdict, fields, most))
        at = {} if ended else {one.peak.target.name: one.peak for one in verdicts if one.peak}
        return Outcome(
            ended={new.engine: ended or "the verdict is in"},
            peaks={**peaks, new.engine: at},
            shifts=[one.shift for one in verdicts],
            advice=advice,
            interrupted=interrupted,
        )

    return work


def _pair(
    studies: Sequence[Study], old_name: str | None, new_name: str | None, *, alternate: bool
) -> tuple[Study, Study, bool]:
    """The two that are compared, and whether the old one can be launched in turn."""
    old, new = named_study(studies, old_name, 0), named_study(studies, new_name, -1)
    if old.key == new.key:
        raise PlanError("The old and the new engine are the same stack.", "Name two engines of the plan.")
    # An old stack that is here no more has no launchpad of its own (see `Scope.studies`).
    in_turn = alternate and old.pad is not new.pad
    served = [study.stack.items.get("model") for study in (old, new)]
    if in_turn and served[0] != served[1]:
        said = f"{old.engine} serves {served[0]}, {new.engine} serves {served[1]}: one's peak is not the other's."
        raise PlanError(said, "Name two engines with the same model in --from and --to.")
    return old, new, in_turn


def named_study(studies: Sequence[Study], name: str | None, at: int) -> Study:
    """The study of an engine, or the one at a place where none is named."""
    if name is None:
        return studies[at]
    found = next((study for study in studies if study.engine == name), None)
    if found is None:
        raise PlanError(f"The plan has no engine {name}.", f"It has {', '.join(one.engine for one in studies)}.")
    return found


def _recorded(found: dict[str, Peak], closed: StudyClosed | None) -> dict[str, Peak]:
    """The peaks as they were declared: what a retune declared, its study's records alone do not show."""
    recorded = dict(found)
    for name, peak in found.items():
        with suppress(ValidationError, KeyError, TypeError):
            one = Peak.model_validate((closed.peak or {})[name]) if closed else peak
            recorded[name] = one if one.target == peak.target else peak
    return recorded


def _both(old: Study, new: Study, target: Target, bench: Bench) -> tuple[Seen, Seen]:
    records = bench.memory.of(old.key), bench.memory.of(new.key)
    return both_seen(*records, target, bench.plan.precision.rule())


def _refind_one(
    old: Study,
    new: Study,
    target: Target,
    peak: Configuration,
    bench: Bench,
    effort: Effort,
    *,
    alternate: bool,
) -> Verdict | str:
    """Launch what the planner asks for until it has a verdict; why it stopped where the budget ended first."""
    plan, past = bench.plan, _both(old, new, target, bench)[0]
    readings = [Reading(c, target.score(values), len(values)) for c, values in past.readings]
    frame = Frame(
        space=new.space,
        old_peak=peak,
        target=target,
        delta=plan.precision.zone,
        launch_noise=plan.precision.launch_noise,
        scales=fit_scales(new.space, readings, past.rates, noise_of(past.field, plan.precision.launch_noise).sd),
        effort=effort,
        refuses=lambda one: refuse(new, one, bench.memory.of(new.key)) is not None,
        streams=_streams(target, bench),
        alternate=alternate,
        known_then=old.space.contains,
    )
    while True:
        step = next_step(*_both(old, new, target, bench), frame)
        if isinstance(step, Verdict):
            return step
        if not bench.budget.take():
            if step.stack == "old":
                frame = replace(frame, alternate=False)  # a verdict may stand without it
                continue
            return f"{bench.budget.spent()} before the verdict"
        bench.progress.line(f"{target.name}: {step.reason}")
        try:
            on, beside = (old, new.key) if step.stack == "old" else (new, "")
            record = attempt(on, bench, step.configuration, step.role, reserved=1, beside=beside)
            # It was tried twice, says nothing and costs nothing: asked for again it might never end.
            why = record.reason if record.state == "lost" else ""
        except EnvironmentBroken as broken:
            why = broken.message
        if why and step.stack == "new":
            return f"stopped: {why}"
        if why:
            bench.progress.line(f"{old.engine} is not launched in turn: {why}")
            frame = replace(frame, alternate=False)


def _say_likelier(verdict: Verdict, target: Target, bench: Bench) -> None:
    """What is likelier best than the declared peak, though not shown to be."""
    one = verdict.recommended
    if one is not None and verdict.lead and (verdict.peak is None or verdict.peak.configuration != one):
        said = "likelier best, though not shown: {:+.1%} ± {:.1%} over the old peak".format(*verdict.lead)
        bench.progress.line(f"{target.name}: {one.label()} is {said}")


def _streams(target: Target, bench: Bench) -> int | None:
    """Requests in flight at most, where every workload of the target keeps to a number of them."""
    counts = [one.in_flight for one in bench.plan.workloads if one.name in target.workloads]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None
