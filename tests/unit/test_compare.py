"""Compare: any two studies, read from their records alone."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import two_engines as two
from two_engines import NEW, OLD

from orchestrator.compare import compare, find_studies
from orchestrator.compare_text import compared_text
from orchestrator.errors import PlanError
from orchestrator.kept_plan import kept_plan
from orchestrator.library import Shelf
from search_spaces.configuration import Configuration
from trackers.records import TrialRecord

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu" / "records"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    return tmp_path


def test_it_tells_the_stack_the_old_settings_the_gain_and_what_stayed(home: Path) -> None:
    two.write(home)
    found = compare(*find_studies(OLD, NEW), plan=kept_plan("plan"))
    assert found.moved == {"vllm": ("0.27.1", "0.32.0"), "torch": ("2.11.0", "2.13.0")}
    (move,) = found.targets
    assert move.shift.verdict == "peak moved"
    assert {step.name: step.configuration.label() for step in move.steps} == {
        "old settings": "ngram k=2, atomic_add=0, max_num_seqs=8",
        "new peak": "ngram k=8, atomic_add=0, max_num_seqs=8",
    }
    old = move.steps[0].new_over_old
    assert old is not None
    assert old.low < 150 / 140 < old.high
    assert move.gain is not None
    assert move.gain.verdict == "better"
    assert move.gain.low < 200 / 150 < move.gain.high
    stayed = {(one.metric, one.declared): one.found.verdict for one in move.stayed}
    assert stayed["prefill_tok_s", False] == "unchanged"
    assert stayed["prefill_tok_s", True] == "unchanged"


def test_a_verdict_that_a_retune_gave_of_the_same_records_is_told_beside_it(home: Path) -> None:
    two.write(home)
    old, new = find_studies(OLD, NEW)
    assert new.closed is not None
    closed = new.closed.model_copy(update={"facts": {"shift.generate": "cannot tell"}})
    (note,) = compare(old, new.model_copy(update={"closed": closed}), kept_plan("plan")).notes
    assert note == "generate: the verdict when the peak was looked for was 'cannot tell'"
    assert compare(old, new, kept_plan("plan")).notes == ()


def test_a_declared_null_that_moved_is_a_failed_control(home: Path) -> None:
    two.write(home)
    old, new = find_studies(OLD, NEW)

    def faster(record):
        windows = tuple(
            w.model_copy(update={"metrics": {**w.metrics, "prefill_tok_s": 2 * w.metrics["prefill_tok_s"]}})
            for w in record.windows
        )
        return record.model_copy(update={"windows": windows}) if record.configuration.k == 8 else record

    new = new.model_copy(update={"records": tuple(map(faster, new.records))})
    text = compared_text(compare(old, new, kept_plan("plan")))
    assert "CONTROL FAILED" in text


def test_a_regression_of_the_old_settings_is_told_beside_the_gain(home: Path) -> None:
    def slower(engine: str, one: Configuration) -> float:
        return two.moved(engine, one) * (0.7 if engine == NEW and one.k == 2 else 1.0)

    two.write(home, truth=slower)
    (move,) = compare(*find_studies(OLD, NEW), plan=kept_plan("plan")).targets
    assert move.steps[0].new_over_old is not None
    assert move.steps[0].new_over_old.verdict == "worse"
    assert move.gain is not None
    assert move.gain.verdict == "better"


def test_old_settings_that_the_new_engine_never_ran_leave_the_gain_unknown(home: Path) -> None:
    two.write(home)
    old, new = find_studies(OLD, NEW)
    kept = tuple(r for r in new.records if r.configuration.k != 2)
    found = compare(old, new.model_copy(update={"records": kept}), kept_plan("plan"))
    assert found.targets[0].gain is None
    assert "the gain over them is not known" in " ".join(compared_text(found).split())


def test_nothing_moved_says_so(home: Path) -> None:
    two.write(home, truth=lambda _, one: two.moved(OLD, one))
    (move,) = compare(*find_studies(OLD, NEW), plan=kept_plan("plan")).targets
    assert move.shift.verdict == "same"
    assert move.gain is None


def test_the_text_fits_eighty_columns_and_names_every_number_s_interval(home: Path) -> None:
    two.write(home)
    text = compared_text(compare(*find_studies(OLD, NEW), plan=kept_plan("plan")))
    assert max(map(len, text.splitlines())) <= 80
    assert "generate, decode_tok_s: peak moved" in text
    assert text.count("±") == 4


def test_without_the_kept_plan_the_peaks_record_is_enough(home: Path) -> None:
    (two.write(home) / "plan.json").unlink()
    (move,) = compare(*find_studies(OLD, NEW), plan=kept_plan("plan")).targets
    assert move.shift.verdict == "peak moved"


def test_studies_are_found_by_engine_key_and_stack(home: Path) -> None:
    two.write(home)
    by_engine = find_studies(OLD, NEW)
    by_key = find_studies(by_engine[0].opened.study[:6], by_engine[1].opened.fingerprint.key)
    assert [one.opened.study for one in by_key] == [one.opened.study for one in by_engine]
    with pytest.raises(PlanError, match="no study 'vllm-9'"):
        find_studies(OLD, "vllm-9")


def test_studies_of_two_plans_are_compared_and_of_one_plan_preferred(home: Path) -> None:
    two.write(home)
    two.write(home, wanted=two.plan("other"))
    old, new = find_studies("apla00000000", "both00000000")
    assert (old.opened.plan, new.opened.plan) == ("plan", "other")
    assert find_studies(OLD, NEW, plan="plan")[0].opened.plan == "plan"


def test_other_traffic_under_one_name_is_left_out(home: Path) -> None:
    two.write(home)
    longer = {"name": "generate", "kind": "generate", "prompt_tokens": 512, "output_tokens": 64}
    two.write(home, wanted=two.plan("other", workloads=[longer]))
    found = compare(*find_studies("apla00000000", "both00000000"))
    assert not found.targets
    assert "not the same traffic" in found.notes[0]


def test_of_very_many_trials_the_verdict_is_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write(home)
    pair = find_studies(OLD, NEW)
    whole = compare(*pair, plan=kept_plan("plan")).targets[0].shift
    monkeypatch.setattr("orchestrator.compare._MOST", 3)
    assert compare(*pair, plan=kept_plan("plan")).targets[0].shift.verdict == whole.verdict


def on_a_card(home: Path) -> list[Shelf]:
    """The two studies of a retune on a real card."""
    journal = home / "journals" / "gpu-g-batching" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(gzip.decompress((GPU / "g3.jsonl.gz").read_bytes()))
    return find_studies("vllm-0.20.2", "vllm-0.26.0")


def faster(record: TrialRecord, speed: float, **changes: Any) -> TrialRecord:
    windows = tuple(
        one.model_copy(update={"metrics": {name: speed * value for name, value in one.metrics.items()}})
        for one in record.windows
    )
    return record.model_copy(update={"windows": windows, **changes})


def test_after_a_retune_it_reads_what_was_launched_in_turn_as_the_retune_did(home: Path) -> None:
    found = compare(*on_a_card(home))
    (move,) = found.targets
    assert move.shift.said == "other settings are better on both engines: the old study had missed them"
    assert found.notes == ()
    settings, best, *_ = move.steps
    assert settings.old is not None
    assert (round(settings.old.value), settings.old.launches) == (2293, 3), "those of the retune's own day"
    assert best.new_over_old is not None
    assert best.new_over_old.low < 2821 / 2704 < best.new_over_old.high, "64 seats, launched once on the old engine"
    assert move.drift is not None
    text = " ".join(compared_text(found).split())
    assert "launched in turn it ran at 1.01x (" in text
    assert "would decide" not in text


def test_what_was_launched_in_turn_with_another_engine_is_not_this_one_s(home: Path) -> None:
    old, new = on_a_card(home)
    turns = [one for one in old.records if one.role == "in_turn"]
    later = [faster(one, 0.9, beside="another", started_at=one.started_at + 3e6) for one in turns]
    more = old.model_copy(update={"records": (*old.records, *later)})
    assert compare(more, new) == compare(old, new)
    hers = [one.model_copy(update={"beside": new.opened.study}) for one in later]
    assert compare(old.model_copy(update={"records": (*old.records, *hers)}), new) != compare(old, new)


def test_a_host_that_drifted_since_the_old_study_moves_no_number_between_the_engines(home: Path) -> None:
    old, new = on_a_card(home)
    drifted = tuple(one if one.role == "in_turn" else faster(one, 1.1) for one in old.records)
    then, today = (compare(side, new).targets[0] for side in (old.model_copy(update={"records": drifted}), old))
    assert then.drift is not None
    assert then.drift.high < 0.95
    for moved in (then, today):
        assert [round(step.new_over_old.ratio, 2) for step in moved.steps if step.new_over_old] == [1.05, 1.04]
        stayed = {one.metric: one.found.ratio for one in moved.stayed if one.claim == "same settings"}
        assert stayed["passes_s"] == pytest.approx(1.053, abs=0.002)
