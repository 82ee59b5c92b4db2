"""From an old peak to a new one: what differs, which launches tell its effects, and which are lacking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from search_spaces.configuration import Configuration, Scalar
from trackers.records import AGAIN, Frozen, TrialRecord

from .attribution import Attribution, Design, Factor, Observation, Run, attribute, plan_design
from .candidates import Target, candidates, noise_of
from .compare import Lens
from .peak import Peak

__all__ = ["Attributed", "Ends", "attributed", "factors_between", "lacking"]

ENGINE = "engine"


class Attributed(Frozen):
    """The effects of one target, or in `refused` why there are none; `lacking` runs were not launched."""

    target: Target
    old: str
    new: str
    old_peak: Configuration
    new_peak: Configuration
    found: Attribution | None = None
    design: str = ""
    lacking: int = 0
    notes: tuple[str, ...] = ()
    refused: str = ""


class Ends(Frozen):
    """The two peaks of one target, and the engines they were found on."""

    old: str
    new: str
    old_peak: Peak
    new_peak: Peak
    engine: bool = False

    def design(self, replicates: int = 1) -> Design | None:
        """The launches that tell the factors apart; None where nothing differs."""
        factors = factors_between(self.old_peak.configuration, self.new_peak.configuration)
        factors += [Factor(name=ENGINE, old={}, new={})] if self.engine else []
        return plan_design(factors, replicates=replicates) if factors else None

    def cell(self, design: Design, run: Run) -> tuple[str, Configuration]:
        """On which engine a run is launched, and with what."""
        moving = {name for factor in design.factors for name in (*factor.old, *factor.new)}
        held = {n: v for n, v in self.old_peak.configuration.values.items() if n not in moving}
        where = self.new if run.levels.get(ENGINE, True) else self.old
        return where, Configuration(values={**held, **run.settings})


def factors_between(old: Configuration, new: Configuration) -> list[Factor]:
    """One factor for each setting that differs; a drafter, its k and what exists only under it are one."""
    names = sorted(old.values.keys() | new.values.keys())
    other = [name for name in names if old.values.get(name) != new.values.get(name)]
    switched = old.drafter != new.drafter

    def drafting(name: str) -> bool:
        one_sided = (name in old.values) != (name in new.values) and not name.startswith(("serve.", "env."))
        return name in ("drafter", "k") or name.startswith("drafter.") or (switched and one_sided)

    def levels(chosen: Sequence[str]) -> list[dict[str, Scalar]]:
        return [{n: side.values[n] for n in chosen if n in side.values} for side in (old, new)]

    drafts = [name for name in other if drafting(name)]
    groups = [("drafter" if switched else "k" if drafts == ["k"] else "drafting", drafts)] if drafts else []
    groups += [(name, [name]) for name in other if name not in drafts]
    return [Factor(name=name, old=levels(chosen)[0], new=levels(chosen)[1]) for name, chosen in groups]


def lacking(ends: Ends, design: Design, records: Callable[[str], Sequence[TrialRecord]]) -> list[Run]:
    """Runs of the design, in its order, that nothing but a search has launched so far."""
    have: Counter[tuple[str, Configuration]] = Counter()
    for where in {ends.old, ends.new}:
        for record in records(where):
            if record.role not in ("search", "in_turn") and record.state not in AGAIN:
                have[where, record.configuration] += max(1, len(record.launches))
    runs = []
    for run in design.runs:
        at = ends.cell(design, run)
        have[at] -= 1
        if have[at] < 0:
            runs.append(run)
    return runs


def attributed(
    ends: Ends, design: Design | None, records: Callable[[str], Sequence[TrialRecord]], lens: Lens
) -> Attributed:
    """Effects from the launches that exist; those made for a reason speak where there are any."""
    target = ends.new_peak.target
    said = Attributed(
        target=target,
        old=ends.old,
        new=ends.new,
        old_peak=ends.old_peak.configuration,
        new_peak=ends.new_peak.configuration,
    )
    if design is None:
        return said.model_copy(update={"refused": "the peaks have the same settings: only the engine differs"})
    seen: list[tuple[float, Observation]] = []
    lucky = False
    for run in {frozenset(run.levels.items()): run for run in design.runs}.values():
        where, configuration = ends.cell(design, run)
        own = [r for r in records(where) if r.state == "measured" and r.role != "in_turn"]
        whole = [r for r in own if r.configuration == configuration]
        chosen = [r for r in whole if r.role != "search"] or whole
        lucky |= any(r.role == "search" for r in chosen)
        for record in chosen:
            for one in candidates([record], target, lens.rule):
                seen += [
                    (record.started_at + n, Observation(levels=run.levels, value=value))
                    for n, value in enumerate(one.evidence)
                ]
    field = [c for where in {ends.old, ends.new} for c in candidates(records(where), target, lens.rule)]
    notes = ("some cells were launched by the search alone, which picked by their luck",) if lucky else ()
    update = {"design": design.note, "lacking": len(lacking(ends, design, records)), "notes": notes}
    try:
        found = attribute([one for _, one in sorted(seen, key=lambda pair: pair[0])], noise_of(field, lens.prior))
    except ValueError as error:
        return said.model_copy(update={**update, "refused": str(error)})
    return said.model_copy(update={**update, "found": found})
