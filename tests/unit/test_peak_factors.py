"""From two peaks to a factorial: factors, cells, what is lacking, effects."""

from __future__ import annotations

from pathlib import Path

import pytest
import two_engines as two
from two_engines import NEW, OLD

from orchestrator.compare import Lens, find_studies, lens_of, peaks_of
from orchestrator.compare_text import attributed_text
from orchestrator.kept_plan import kept_plan
from orchestrator.peak_factors import Ends, attributed, factors_between, lacking
from search_spaces.configuration import Configuration


def names(old: Configuration, new: Configuration) -> list[str]:
    return [factor.name for factor in factors_between(old, new)]


def test_a_drafter_with_its_k_and_settings_is_one_factor() -> None:
    old = two.configuration("none")
    new = two.configuration("ngram", 4, **{"drafter.prompt_lookup_max": 4, "max_num_seqs": 16})
    assert names(old, new) == ["drafter", "max_num_seqs"]
    assert names(two.configuration("ngram", 2), two.configuration("ngram", 8)) == ["k"]
    assert names(old, old) == []


def test_a_knob_that_exists_only_under_the_new_drafter_moves_with_it() -> None:
    new = two.configuration("ngram", 4, draft_width=2)
    (factor,) = factors_between(two.configuration("none"), new)
    assert factor.new == {"drafter": "ngram", "k": 4, "draft_width": 2}


def test_a_flag_of_the_incumbent_alone_is_a_factor_of_its_own() -> None:
    old = two.configuration("none", **{"serve.seed": 1})
    factors = {factor.name: factor for factor in factors_between(old, two.configuration("ngram", 2))}
    assert factors["serve.seed"].new == {}


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ends (k and width both moved), the records by engine, and the lens."""
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))

    def wide(engine: str, one: Configuration) -> float:
        gain = 1.08 if engine == NEW and one.values["max_num_seqs"] == 16 else 1.0
        return two.moved(engine, one) * gain

    two.write(tmp_path, truth=wide, anchors=0)
    old, new = find_studies(OLD, NEW)
    records = {OLD: list(old.records), NEW: list(new.records)}
    plan = kept_plan("plan")

    def ends(*, engine: bool = False) -> Ends:
        before, after = peaks_of(old)["generate"], peaks_of(new)["generate"]
        return Ends(old=OLD, new=NEW, old_peak=before, new_peak=after, engine=engine)

    return ends, records, lens_of(plan, peaks_of(new)["generate"]), wide


def test_only_what_no_finalist_stands_for_is_lacking(studied) -> None:
    ends, records, _, _ = studied
    at = ends()
    design = at.design()
    assert {factor.name for factor in design.factors} == {"k", "max_num_seqs"}
    runs = lacking(at, design, lambda name: records[name])
    cells = [at.cell(design, run)[1].label() for run in runs]
    assert "ngram k=8, atomic_add=0, max_num_seqs=16" not in cells, "the new peak was launched as a finalist"
    assert "ngram k=2, atomic_add=0, max_num_seqs=8" in cells, "the old peak was only searched on the new engine"
    assert {at.cell(design, run)[0] for run in runs} == {NEW}


def test_launches_in_turn_with_another_stack_stand_for_no_run_of_a_design(studied) -> None:
    ends, records, lens, truth = studied
    at = ends()
    design = at.design()
    before = lacking(at, design, lambda name: records[name])
    found = attributed(at, design, lambda name: records[name], lens)
    study = records[NEW][0].study
    for n, run in enumerate(before):
        where, one = at.cell(design, run)
        records[NEW].append(two.record(study, 100 + n, where, one, 0.8 * truth(where, one), role="in_turn"))
    assert lacking(at, design, lambda name: records[name]) == before
    assert attributed(at, design, lambda name: records[name], lens) == found


def test_effects_of_a_whole_design_are_the_truth_s(studied) -> None:
    ends, records, lens, truth = studied
    at = ends()
    design = at.design()
    runs = lacking(at, design, lambda name: records[name])
    study = records[NEW][0].study
    for n, run in enumerate(runs):
        where, one = at.cell(design, run)
        records[NEW].append(two.record(study, 100 + n, where, one, truth(where, one), role="attribute"))
    assert lacking(at, design, lambda name: records[name]) == []
    found = attributed(at, design, lambda name: records[name], lens)
    assert found.lacking == 0
    effects = {main.factor: main.averaged for main in found.found.mains}
    assert effects["k"].resolved
    assert effects["k"].low < 200 / 150 - 1 < effects["k"].high
    assert effects["max_num_seqs"].low < 0.97 * 1.08 - 1 < effects["max_num_seqs"].high
    text = attributed_text(found)
    assert "unresolved (+-" in text, "an interaction that is not there is not claimed"
    assert max(map(len, text.splitlines())) <= 80


def test_the_engine_is_a_factor_only_when_asked(studied) -> None:
    ends, _records, _, _ = studied
    assert "engine" not in {factor.name for factor in ends().design().factors}
    at = ends(engine=True)
    design = at.design()
    assert {at.cell(design, run)[0] for run in design.runs} == {OLD, NEW}


def test_from_records_alone_what_the_search_launched_speaks_and_is_called_lucky(studied) -> None:
    ends, records, lens, _ = studied
    at = ends()
    found = attributed(at, at.design(), lambda name: records[name], lens)
    assert found.found is not None
    assert found.lacking > 0
    assert any("luck" in note for note in found.notes)


def test_launches_that_do_not_separate_the_factors_are_refused_in_words(studied) -> None:
    ends, records, lens, _ = studied
    at = ends()
    keep = {at.old_peak.configuration, at.new_peak.configuration}
    few = {name: [r for r in all_ if r.configuration in keep] for name, all_ in records.items()}
    found = attributed(at, at.design(), lambda name: few[name], lens)
    assert found.found is None
    assert "do not separate" in found.refused


def test_equal_peaks_have_nothing_to_attribute(studied) -> None:
    ends, records, lens, _ = studied
    at = ends().model_copy(update={"new_peak": ends().old_peak})
    assert at.design() is None
    assert "only the engine differs" in attributed(at, None, lambda name: records[name], lens).refused


def test_a_lens_without_a_plan_takes_the_peak_s_own_noise(studied) -> None:
    ends, *_ = studied
    peak = ends().old_peak
    lens = lens_of(None, peak)
    assert isinstance(lens, Lens)
    assert (lens.prior, lens.delta) == (peak.noise.sd, peak.delta)
