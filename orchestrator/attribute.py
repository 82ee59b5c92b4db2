"""Attribute: each target's two peaks made a factorial, and what it lacks launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trackers.records import Frozen, TrialRecord

from .compare import lens_of, peaks_of
from .errors import Interrupted, PlanError
from .kept_plan import kept_plan
from .library import shelves
from .peak import Peak
from .peak_factors import Attributed, Ends, attributed, lacking
from .plan import TuningPlan
from .reproduce import slots_of
from .session import tune_plan
from .study import Bench, Study, attempt
from .tune import Outcome, conclude

__all__ = ["Asked", "from_its_records", "launched"]


class Asked(Frozen):
    """Engines of the old and the new peak (the plan's first and last), which target, the engine as a factor."""

    old: str | None = None
    new: str | None = None
    target: str | None = None
    engine: bool = False
    replicates: int = 1

    def ends(self, have: Mapping[str, Mapping[str, Peak]]) -> list[Ends]:
        """Both peaks of each target asked for, from engine -> its peaks."""
        names = list(have)
        first, last = self.old or (names[0] if names else ""), self.new or (names[-1] if names else "")
        if first == last or first not in have or last not in have:
            known = ", ".join(names) or "none"
            raise PlanError("It takes two engines with a peak each.", f"Peaks are known of: {known}.")
        both = [name for name in have[first] if name in have[last] and self.target in (None, name)]
        if not both:
            raise PlanError(f"Both have no peak of {self.target}.", f"There are: {', '.join(have[first])}.")
        return [
            Ends(old=first, new=last, old_peak=have[first][name], new_peak=have[last][name], engine=self.engine)
            for name in both
        ]


def from_its_records(name: str, asked: Asked) -> list[Attributed]:
    """Of a plan by its name: launches nothing, needs no engine.

    Raises:
        PlanError: There are not two engines with a peak, or no such target.
    """
    latest = {shelf.opened.facts.get("engine", ""): shelf for shelf in shelves(name) if peaks_of(shelf)}
    plan, found = kept_plan(name), []
    for ends in asked.ends({engine: peaks_of(shelf) for engine, shelf in latest.items()}):
        lens = lens_of(plan, ends.new_peak)
        found.append(attributed(ends, ends.design(asked.replicates), lambda one: latest[one].records, lens))
    return found


def launched(plan: TuningPlan, asked: Asked, address: str | None = None) -> list[Attributed]:
    """The same, once every run that the design lacks was launched.

    Raises:
        PlanError: As above.
        Interrupted: The user asked to stop.
    """
    found: list[Attributed] = []

    def work(studies: Sequence[Study], bench: Bench) -> Outcome:
        by_name = {study.engine: study for study in studies}
        peaks = conclude(studies, plan, bench.memory).peaks

        def records(name: str) -> list[TrialRecord]:
            return bench.memory.of(by_name[name].key)

        for ends in asked.ends({name: one for name, one in peaks.items() if one}):
            design = ends.design(asked.replicates)
            if design is not None:
                runs = lacking(ends, design, records)
                bench.progress.line(f"{ends.new_peak.target.name}: {len(runs)} launches are lacking, {design.note}")
                for run in runs:
                    where, configuration = ends.cell(design, run)
                    attempt(by_name[where], bench, configuration, "attribute")
            found.append(attributed(ends, design, records, lens_of(plan, ends.new_peak)))
        return conclude(studies, plan, bench.memory)

    result = tune_plan(plan, address=address, slots=slots_of(plan), work=work)
    if result.interrupted:
        raise Interrupted("Stopped; everything measured is kept.", "The same command goes on from here.")
    return found
