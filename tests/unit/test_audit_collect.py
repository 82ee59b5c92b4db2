"""The facts of an audit, from a trial's record and log, and from what a command line asks for."""

from __future__ import annotations

import json
import shutil

import pytest
from hybrid_trial import ARGV, LABELLED, LOG, SERVE, STACK, TINY
from trial_records import trial, window

from orchestrator.audit import audit
from orchestrator.audit_collect import asked_of, audit_trial, facts_from_trial
from orchestrator.audit_facts import NullCheck
from orchestrator.engine_log import reported
from orchestrator.errors import PlanError
from search_spaces.configuration import Configuration
from trackers.records import Check, Launch, StackFingerprint, WorkloadRef


def record(argv=ARGV, reported_=LABELLED, items=STACK, **changes):
    launch = Launch(launch=0, started_at=0.0, ready_s=1.0, argv=argv, reported=reported_)
    held = {
        "launches": (launch,),
        "fingerprint": StackFingerprint(items=items),
        "configuration": Configuration(values={"drafter": "none"}),
        "windows": (),
    }
    return trial(**(held | changes))


def by_name(rows):
    return {row.name: row for row in rows}


def test_a_trials_labels_log_and_model_give_the_pool_of_a_real_hybrid_without_a_finding() -> None:
    rows = by_name(audit_trial(record(), LOG))
    for name in ("block size", "blocks", "pool bytes", "KV bytes per token", "pool report", "state blocks"):
        assert rows[name].verdict == "agrees", rows[name]
    assert rows["pool report"].reported == rows["pool report"].expected == 4_129_713
    assert not [row for row in rows.values() if row.finding]


def test_without_its_log_what_the_launch_kept_of_it_is_used() -> None:
    kept = LABELLED | reported(LOG)
    assert facts_from_trial(record(reported_=kept)) == facts_from_trial(record(reported_=kept), LOG)
    assert by_name(audit_trial(record(reported_=kept)))["pool report"].verdict == "agrees"


def test_a_flag_that_took_another_value_is_named() -> None:
    argv = (*ARGV, "--gpu-memory-utilization", "0.5")
    rows = by_name(audit_trial(record(argv), LOG))
    assert rows["requested gpu_memory_utilization"].reported == "0.92"
    assert rows["requested gpu_memory_utilization"].expected == "0.5"
    assert "requested max_model_len" not in rows


def test_a_command_line_is_read_as_what_it_means_and_keeps_no_secret() -> None:
    facts = facts_from_trial(
        record(
            (*SERVE, "--dtype=half", "--max-model-len", "8K", "--kv-cache-memory-bytes", "300M",
             "--block-size", "auto", "--api-key", "s3cret", "-tp", "2")
        )
    )  # fmt: skip
    assert facts.requested == {
        "dtype": "float16", "max_model_len": "8192", "kv_cache_memory_bytes": str(300 << 20),
        "tensor_parallel_size": "2", "VLLM_CPU_KVCACHE_SPACE": "1",
    }  # fmt: skip
    assert facts.cards == 2
    assert facts.model_dtype == "float16"
    assert "s3cret" not in facts.model_dump_json()
    assert asked_of(("python", "other.py")).args == {}


@pytest.mark.parametrize(
    ("method", "known"),
    [("qwen3_next_mtp", True), ("mtp", True), ("ngram", True), ("eagle3", False), ("draft_model", False)],
)
def test_a_drafter_whose_layers_nobody_knows_leaves_the_pool_unjudged(method, known) -> None:
    config = json.dumps({"method": method, "num_speculative_tokens": 3, "model": "x/y"})
    facts = facts_from_trial(record((*ARGV, "--speculative-config", config)), LOG)
    assert facts.k == 3
    assert facts.method == ("mtp" if "mtp" in method else method)
    names = by_name(audit(facts))
    assert ("pool report" in names) is known
    assert ("KV pool" in names) is not known


def one_stream(**extra: str):
    return {"max_concurrency": "1", **extra}


def counted(number: int, **counters: float):
    extra = one_stream(counters=json.dumps(counters)) if counters else one_stream()
    return window(0, number, extra=extra, completed=2, total_input_tokens=1024)


def test_the_windows_of_one_stream_are_chosen_and_their_counters_added() -> None:
    crowd = WorkloadRef(name="crowd", sha256="c" * 64)
    many = window(0, 0, workload=crowd, extra={"max_concurrency": "8", "counters": '{"generation_tokens": 9}'})
    facts = facts_from_trial(
        record(windows=(many, counted(0, generation_tokens=200), counted(1, generation_tokens=150)))
    )
    assert [one.workload.name for one in facts.windows] == ["edit", "edit"]
    assert facts.in_flight == 1
    assert facts.counters == {"generation_tokens": 350}
    assert facts.prompt_tokens == 512


def test_a_window_without_counters_leaves_none_to_compare_with_the_clients() -> None:
    facts = facts_from_trial(record(windows=(counted(0, generation_tokens=200), counted(1))))
    assert facts.counters == {}
    assert by_name(audit(facts))["output tokens"].verdict == "cannot tell"


def test_a_run_that_claimed_to_be_cold_is_held_to_it() -> None:
    cold = Check(name="cold_prefix", passed=True)
    windows = (window(checks=(cold,), extra=one_stream(counters='{"prefix_cache_hits": 64}')),)
    rows = by_name(audit_trial(record(windows=windows), LOG))
    assert rows["prefix caching"].verdict == "premise differs"
    assert facts_from_trial(record(windows=(window(extra=one_stream()),))).cold is None


def test_a_simulated_engine_is_not_held_to_the_files_of_its_model() -> None:
    simulated = facts_from_trial(record(items=STACK | {"vllm": "0.32.0+simulated"}), LOG)
    assert simulated.shape is None
    assert not [row for row in audit(simulated) if row.finding]


def test_a_card_is_known_by_the_name_in_the_stack() -> None:
    facts = facts_from_trial(record(items=STACK | {"gpu": "NVIDIA H200, NVIDIA H200"}))
    assert facts.card is not None
    assert facts.card.bandwidth_bytes_s == 4.8e12
    assert facts_from_trial(record()).card is None


def test_a_metric_that_the_changed_knob_cannot_touch_is_a_row() -> None:
    check = NullCheck(metric="edit/prefill_tok_s", before=6266, after=6249, noise=0.005)
    rows = by_name(audit_trial(record(), LOG, nulls=[check]))
    assert rows["untouched edit/prefill_tok_s"].verdict == "agrees"


def test_a_trial_that_never_launched_and_a_model_that_is_elsewhere_can_be_asked() -> None:
    bare = audit_trial(record(launches=(), items={"vllm": "0.32.0", "model": "org/model"}))
    assert {row.verdict for row in bare} <= {"cannot tell", "agrees"}


def test_a_broken_model_file_is_one_clear_error(tmp_path) -> None:
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"num_hidden_layers": ')
    with pytest.raises(PlanError, match=r"config.json is not usable JSON"):
        audit_trial(record((*SERVE[:-1], str(tmp_path / "m"))))
    (tmp_path / "m" / "config.json").unlink()
    assert facts_from_trial(record((*SERVE[:-1], str(tmp_path / "m")))).shape is None
