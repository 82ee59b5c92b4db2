"""The report's model and its text: answers first, nothing that the records do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import two_engines as two
from two_engines import NEW, OLD

from orchestrator.errors import PlanError
from orchestrator.kept_plan import kept_plan
from orchestrator.library import shelves
from orchestrator.report import Report, build_report, report_text
from trackers.entries import StudyClosed
from trackers.journal import Journal


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    return tmp_path


def report(home: Path, **how: object) -> Report:
    two.write(home, **how)
    return build_report(shelves("plan"), kept_plan("plan"))


def test_the_latest_engine_s_answer_comes_first_with_command_gain_and_certainty(home: Path) -> None:
    first = report(home).answers[0]
    assert first.engine == NEW
    assert "vllm serve org/model" in first.command
    assert '"num_speculative_tokens": 8' in first.command
    assert first.command.startswith("VLLM_MARLIN_USE_ATOMIC_ADD=0 ")
    assert first.better.startswith("1.8")
    assert "95 % interval over 3 launches;" in first.sure
    assert "windows behind this number" in first.evidence


def test_an_incumbent_that_stays_is_said_in_words(home: Path) -> None:
    def flat(engine: str, one: two.Configuration) -> float:
        return 100.0 if one.drafter == "none" else 90.0

    assert report(home, truth=flat).answers[0].better == "Keep what you run: nothing is shown to beat it."


def test_charts_hold_the_k_curve_of_both_engines_and_every_fresh_launch(home: Path) -> None:
    charts = {chart.title: chart for chart in report(home).charts}
    curve = charts["Draft tokens: generate"]
    points = {one.name: [(bar.at, round(bar.value, -1)) for bar in one.bars] for one in curve.series}
    assert [at for at, _ in points[f"ngram, {NEW}"]] == [2.0, 4.0, 8.0]
    assert max(points[f"ngram, {NEW}"], key=lambda pair: pair[1])[0] == 8.0
    assert all(bar.low < bar.value < bar.high for one in curve.series for bar in one.bars)
    spread = charts[f"Launch to launch: generate on {NEW}"]
    assert len([bar for one in spread.series if one.name == "launched afresh" for bar in one.bars]) == 9
    history = charts["Peaks over engines: generate"]
    assert [bar.at for bar in history.series[0].bars] == [OLD, NEW]
    assert all(chart.says for chart in charts.values())


def test_failures_are_counted_by_kind_and_told_once(home: Path) -> None:
    bad = [
        two.record(
            "bpla00000000", 200 + n, NEW, two.configuration("ngram", 8), 1.0,
            state="engine_failed", reason=f"out_of_memory_kv: {n} GiB", windows=(), estimates={},
        )
        for n in range(3)
    ]  # fmt: skip
    found = report(home, extra=bad)
    assert found.failures == {f"{NEW}: engine_failed: out_of_memory_kv: 0 GiB": 3}
    assert "3 x vllm-0.32.0: engine_failed" in report_text(found)


def test_the_audit_s_rows_are_there_and_a_lost_file_costs_nothing(home: Path) -> None:
    folder = two.write(home)
    row = {
        "name": "kv pool",
        "reported": 100.0,
        "expected": 400.0,
        "unit": "tokens",
        "verdict": "report differs",
    }
    (home / "audit.json").write_text(json.dumps({"generate": [row]}))
    with Journal(folder) as journal:
        (last,) = journal.closings("bpla00000000")
        held = last.model_dump() | {"at": 100.0, "files": {"audit.json": str(home / "audit.json")}}
        journal.peak(StudyClosed.model_validate(held))
        other = journal.closings("apla00000000")[0].model_dump()
        journal.peak(StudyClosed.model_validate(other | {"at": 100.0, "files": {"audit.json": "/gone"}}))
    audits = build_report(shelves("plan"), None).audits
    assert [r.verdict for r in audits[f"generate on {NEW}"]] == ["report differs"]
    assert len(audits) == 1


def test_the_text_fits_eighty_columns_but_for_commands(home: Path) -> None:
    found = report(home)
    commands = {line for one in found.answers for line in one.command.splitlines()}
    lines = [line for line in report_text(found).splitlines() if line.strip() not in {c.strip() for c in commands}]
    assert max(map(len, lines)) <= 80
    assert "peak moved" in "\n".join(lines)


def test_nothing_measured_is_an_error_that_says_where_to_look(home: Path) -> None:
    folder = home / "journals" / "plan"
    with Journal(folder):
        pass
    with pytest.raises(PlanError, match="No study of this plan has a peak"):
        build_report(shelves("plan"), None)


def test_the_model_is_plain_json(home: Path) -> None:
    found = report(home)
    assert Report.model_validate_json(found.model_dump_json()) == found
