"""Others' results become records that are never a peak."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.candidates import Target, candidates
from orchestrator.errors import PlanError
from orchestrator.imports import import_results, read_results
from orchestrator.stability import StabilityRule
from trackers.journal import Journal

# As `vllm bench serve --save-result` writes it.
RESULT = {
    "date": "20261101-101500", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "org/model", "tokenizer_id": "org/model", "num_prompts": 100, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 8, "duration": 12.5, "completed": 99, "failed": 1,
    "total_input_tokens": 102400, "total_output_tokens": 12672, "request_throughput": 7.92,
    "request_goodput": None, "output_throughput": 1013.8, "total_token_throughput": 9205.8,
    "max_output_tokens_per_s": 1200.0, "max_concurrent_requests": 9, "mean_ttft_ms": 35.2,
    "median_ttft_ms": 33.0, "std_ttft_ms": 4.0, "p99_ttft_ms": 60.1, "mean_tpot_ms": 7.1,
    "median_tpot_ms": 7.0, "std_tpot_ms": 0.2, "p99_tpot_ms": 8.0, "mean_itl_ms": 14.0,
    "spec_decode_acceptance_rate": 61.0, "spec_decode_acceptance_length": 2.83,
    "spec_decode_num_drafts": 4478, "spec_decode_draft_tokens": 13434, "spec_decode_accepted_tokens": 8195,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.6, 0.43],
}  # fmt: skip


def sweep(folder: Path) -> Path:
    """Two combinations of two runs each, a warm-up, a failure, a summary beside the runs."""
    for seqs in (16, 32):
        for width in (8,):
            place = folder / f"SERVE--max_num_seqs={seqs}-BENCH--max_concurrency={width}"
            place.mkdir(parents=True)
            merged = {"max_num_seqs": seqs, "max_concurrency": width, "random_input_len": 1024}
            runs = [RESULT | merged | {"run_number": n, "output_throughput": 1000.0 + n} for n in range(2)]
            for n, run in enumerate(runs):
                (place / f"run={n}.json").write_text(json.dumps(run, indent=4))
            (place / "summary.json").write_text(json.dumps(runs, indent=4))
            (place / "warmup.json").write_text(json.dumps(RESULT))
            (place / "run=2.failure.json").write_text(json.dumps({"run_number": 2, "error": "x"}))
    (folder / "summary.csv").write_text("a,b\n")
    return folder


def imported(path: Path, tmp_path: Path, version: str = "0.26.0"):
    return import_results(path, tmp_path / "journals" / "past", plan="past", version=version, machine="Card")


def test_a_result_becomes_one_window_with_its_numbers_under_their_own_names(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(RESULT))
    (record,) = imported(file, tmp_path)
    (window,) = record.windows
    assert record.state == record.role == "imported"
    assert window.metrics["output_throughput"] == 1013.8
    assert window.metrics["p99_ttft_ms"] == 60.1
    assert "request_goodput" not in window.metrics, "null is no number"
    assert "duration" not in window.metrics
    assert (window.completed, window.failed, window.duration_s) == (99, 1, 12.5)
    assert window.acceptance.length == pytest.approx(2.83, abs=0.01)
    assert record.fingerprint.items == {"vllm": "0.26.0", "model": "org/model"}
    assert record.configuration.values == {}, "a single result does not say with what flags it was served"
    assert record.workloads[0].name == "bench c8"


def test_a_sweep_is_one_record_for_each_combination_with_its_runs_as_windows(tmp_path: Path) -> None:
    records = imported(sweep(tmp_path / "sweep"), tmp_path)
    assert {r.configuration.values["max_num_seqs"] for r in records} == {16, 32}
    assert all(set(r.configuration.values) == {"max_num_seqs"} for r in records), "traffic is no setting"
    assert all([w.metrics["output_throughput"] for w in r.windows] == [1000.0, 1001.0] for r in records)
    assert len({r.workloads[0].sha256 for r in records}) == 1


def test_importing_twice_is_once(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "sweep")
    imported(folder, tmp_path)
    imported(folder, tmp_path)
    with Journal(tmp_path / "journals" / "past", read_only=True) as journal:
        assert len(journal.records()) == 2
        assert not journal.orphans()
        (opened,) = journal.studies().values()
    assert opened.facts["engine"] == "imported 0.26.0"


def test_an_imported_record_is_never_a_candidate(tmp_path: Path) -> None:
    records = imported(sweep(tmp_path / "sweep"), tmp_path)
    target = Target(name="x", metric="output_throughput", workloads=(records[0].workloads[0].name,))
    assert candidates(records, target, StabilityRule(precision=0.02, min_windows=2)) == ()


def test_appended_results_and_lists_are_read(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps(RESULT) + "\n" + json.dumps(RESULT) + "\n")
    ((_, runs),) = read_results(file)
    assert len(runs) == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", '{"completed": 1}', "\udcff", "[1, 2]"])
def test_what_is_no_result_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanError, match="no result"):
        read_results(file)
    with pytest.raises(PlanError, match="no result"):
        read_results(tmp_path)
