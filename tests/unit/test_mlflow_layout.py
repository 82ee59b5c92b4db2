"""What a person finds in MLflow: names it takes, numbers that are numbers, nothing cut off and no secret."""

from __future__ import annotations

import math
import posixpath
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_records import EDIT, STACK, study, trial, window, windows

from search_spaces.configuration import Configuration
from trackers.entries import StudyClosed
from trackers.mlflow_layout import (
    NAME_LIMIT,
    PARAM_LIMIT,
    TAG_LIMIT,
    RunContent,
    experiment_name,
    safe_name,
    study_end,
    study_run,
    study_uid,
    trial_run,
    uid_of,
)
from trackers.records import (
    Acceptance,
    Check,
    Estimate,
    Failure,
    Launch,
    StackFingerprint,
    TrialRecord,
    WorkloadRef,
)
from trackers.redaction import redactor

PLAIN = redactor({})


def content(record: TrialRecord, folder: Path | None = None) -> RunContent:
    return trial_run(record, PLAIN, folder)


def metrics(record: TrialRecord) -> dict[str, float]:
    return {point.key: point.value for point in content(record).metrics if not point.key.startswith("per_window/")}


def test_knobs_role_and_engine_are_params() -> None:
    values = {"drafter": "ngram", "k": 8, "enable_prefix_caching": True, "gpu_memory_utilization": 0.9}
    assert content(trial(configuration=Configuration(values=values))).params == {
        "role": "search",
        "vllm": "0.32.0",
        "drafter": "ngram",
        "k": "8",
        "enable_prefix_caching": "true",
        "gpu_memory_utilization": "0.9",
    }


def test_k_is_zero_without_a_drafter_so_that_a_chart_over_k_shows_the_run() -> None:
    assert content(trial(configuration=Configuration(values={"drafter": "none"}))).params["k"] == "0"


def test_an_estimate_gives_value_and_half_width_and_the_rest_the_mean_of_launch_means() -> None:
    found = metrics(
        trial(
            windows=(
                window(0, 0, metrics={"decode_tok_s": 1.0, "p99_itl_ms": 10.0}),
                window(1, 0, metrics={"decode_tok_s": 2.0, "p99_itl_ms": 20.0}),
                window(1, 1, metrics={"decode_tok_s": 3.0, "p99_itl_ms": 40.0}),
            )
        )
    )
    assert found["edit.decode_tok_s"] == 50.5
    assert found["edit.decode_tok_s_half_width"] == 1.25
    assert found["edit.p99_itl_ms"] == pytest.approx((10 + 30) / 2)
    assert "edit.p99_itl_ms_half_width" not in found
    assert (found["edit.launches"], found["edit.windows"], found["edit.failed_requests"]) == (2, 3, 0)
    assert (found["launches"], found["windows"], found["duration_s"], found["ready_s"]) == (2, 3, 30, 4)


def test_acceptance_comes_from_the_counters_where_the_window_does_not_say_it() -> None:
    found = metrics(trial(windows=(window(acceptance=Acceptance(drafts=10, draft_tokens=40, accepted_tokens=30)),)))
    assert (found["edit.acceptance_length"], found["edit.acceptance_rate"]) == (4.0, 0.75)
    assert "edit.acceptance_length" not in metrics(trial(windows=(window(acceptance=None),)))


def test_windows_are_a_series_over_launches_in_order() -> None:
    shuffled = tuple(reversed(windows(2, 2)))
    series = [p for p in content(trial(windows=shuffled)).metrics if p.key == "per_window/edit.decode_tok_s"]
    assert [(p.step, p.value, p.timestamp_ms) for p in series] == [
        (1, 50.0, 100_000),
        (2, 50.1, 101_000),
        (3, 51.0, 110_000),
        (4, 51.1, 111_000),
    ]


def test_what_is_not_finite_is_never_logged() -> None:
    bad = Estimate(value=math.inf, half_width=math.nan, launches=1, windows=1, ending="noisy")
    record = trial(
        windows=(window(metrics={"x": math.nan, "decode_tok_s": math.inf}),),
        estimates={"edit/decode_tok_s": bad},
    )
    assert all(math.isfinite(point.value) for point in content(record).metrics)
    assert not {"edit.x", "edit.decode_tok_s", "edit.decode_tok_s_half_width"} & metrics(record).keys()


def test_tags_say_state_reason_stack_and_workload() -> None:
    tags = content(trial()).tags
    assert tags["repeak.state"] == "measured"
    assert tags["repeak.reason"] == "stable"
    assert tags["repeak.configuration"] == trial().configuration.key
    assert tags["stack.torch"] == "2.14.0"
    assert tags["repeak.stack"] == STACK.key
    assert tags["workload.edit"] == EDIT.sha256
    assert "repeak.failure" not in tags


def test_a_failure_and_a_failed_proof_are_tags() -> None:
    failure = Failure(cause="out_of_memory", kind="infeasible", message="no room")
    failed = trial(state="engine_failed", launches=(Launch(launch=0, started_at=1, ready_s=None, failure=failure),))
    assert content(failed).tags["repeak.failure"] == "out_of_memory"
    assert content(failed).tags["repeak.failure_kind"] == "infeasible"
    wrong = trial(windows=(window(checks=(Check(name="cold_prefix", passed=False),)),))
    assert content(wrong).tags["repeak.disproved"] == "cold_prefix"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("measured", "FINISHED"),
        ("unsettled", "FINISHED"),
        ("imported", "FINISHED"),
        ("engine_failed", "FAILED"),
        ("disproved", "FAILED"),
        ("refused", "FAILED"),
        ("client_bound", "FAILED"),
        ("interrupted", "KILLED"),
        ("lost", "KILLED"),
    ],
)
def test_the_state_shows_as_the_run_status(state: str, status: str) -> None:
    assert content(trial(state=state)).status == status


def test_a_value_over_the_limit_stands_whole_in_an_artifact_that_the_param_names() -> None:
    long = "x" * (PARAM_LIMIT + 1)
    made = content(trial(configuration=Configuration(values={"drafter": "none", "extra": long}), reason="r" * 9000))
    for value, limit, whole in (
        (made.params["extra"], PARAM_LIMIT, long),
        (made.tags["repeak.reason"], TAG_LIMIT, "r" * 9000),
    ):
        assert len(value) <= limit
        found = re.match(r"\[\d+ characters, sha256 [0-9a-f]{16}, whole in artifact (\S+)\] ", value)
        assert found is not None
        assert made.texts[found[1]] == whole
    exact = trial(configuration=Configuration(values={"drafter": "none", "extra": long[1:]}))
    assert content(exact).params["extra"] == long[1:]


@pytest.mark.parametrize("name", ["edit.decode_tok_s", "per_window/edit.x", "a b:c-d", "größe"])
def test_a_name_that_mlflow_takes_is_left_alone(name: str) -> None:
    assert safe_name(name) == name


@given(st.text(max_size=400))
def test_any_other_name_becomes_one_that_mlflow_takes(text: str) -> None:
    name = safe_name(text)
    assert re.fullmatch(r"[/\w.\- :]+", name)
    assert len(name) <= NAME_LIMIT
    assert posixpath.normpath(name) == name
    assert not name.startswith(("/", ".."))
    assert safe_name(name) == name


def test_two_odd_names_stay_two() -> None:
    assert len({safe_name(name) for name in ("a[0]", "a(0)", "a_0_", "../a_0_", "a//0", "a" * 300, "a" * 301)}) == 7


def test_workloads_with_odd_names_keep_their_numbers_apart() -> None:
    odd = [WorkloadRef(name=name, sha256="0" * 64) for name in ("a[0]", "a(0)")]
    record = trial(workloads=tuple(odd), estimates={}, windows=tuple(window(workload=one) for one in odd))
    assert len([name for name in metrics(record) if "decode_tok_s" in name]) == 2


def test_text_that_a_database_refuses_is_written_visibly() -> None:
    tags = content(trial(reason="nul \0 here")).tags
    assert tags["repeak.reason"] == "nul \\x00 here"


def test_no_secret_reaches_tags_params_names_or_texts() -> None:
    secret = "correct-horse-battery"
    redact = redactor({"HF_TOKEN": secret})
    record = trial(
        reason=f"401 for {secret}",
        fingerprint=StackFingerprint(items={"vllm": "1", "env.VLLM_API_KEY": "abc123", "index": "https://u:pw@host/x"}),
        launches=(Launch(launch=0, started_at=1, ready_s=1, argv=("--api-key", "topsecret", "--hf-token=hidden9")),),
    )
    made = trial_run(record, redact)
    text = repr((made.tags, made.params, made.texts, made.name))
    for word in (secret, "abc123", "u:pw", "topsecret", "hidden9"):
        assert word not in text
    assert made.tags["stack.index"] == "https://***@host/x"


def test_logs_and_the_trials_own_files_are_artifacts(tmp_path: Path) -> None:
    folder = tmp_path / "t1"
    (folder / "metrics").mkdir(parents=True)
    (folder / "metrics" / "before-0.txt").write_text("x 1")
    (folder / "launch.log").write_text("log")
    launches = (
        Launch(launch=0, started_at=1, ready_s=1, log_path=str(folder / "launch.log")),
        Launch(launch=1, started_at=1, ready_s=1, log_path="/elsewhere/1.log"),
    )
    made = content(trial(launches=launches), folder)
    assert made.files == {
        "launch-1.log": Path("/elsewhere/1.log"),
        "launch.log": folder / "launch.log",
        "metrics/before-0.txt": folder / "metrics" / "before-0.txt",
    }
    assert made.texts.keys() == {"record.json"}


def test_a_study_is_filed_by_plan_model_and_machine_and_its_run_by_stack() -> None:
    opened = study(facts={"lock": "abc"}, files={"environment.lock": "/x/lock"})
    made = study_run(opened, PLAIN)
    assert experiment_name(opened) == "plan / model / cpu"
    assert experiment_name(study(facts={"experiment": "of the team"})) == "of the team"
    assert made.name == f"vllm 0.32.0 {STACK.key}"
    assert made.tags["repeak.study_uid"] == study_uid(opened)
    assert made.tags["stack.vllm"] == "0.32.0"
    assert made.tags["repeak.lock"] == "abc"
    assert made.files == {"environment.lock": Path("/x/lock")}
    moved = study(fingerprint=StackFingerprint(items={"vllm": "0.33.0"}))
    assert study_uid(moved) != study_uid(opened)


def test_a_closing_gives_verdict_and_peak() -> None:
    closed = StudyClosed(study="s", at=2.5, verdict="peak", facts={"k": "8"}, metrics={"x": 1.0, "y": math.nan})
    made = study_end(closed, PLAIN)
    assert made.tags == {"repeak.verdict": "peak", "repeak.closed_at": "2.5", "peak.k": "8"}
    assert [(p.key, p.value) for p in made.metrics] == [("peak.x", 1.0)]
    assert '"verdict": "peak"' in made.texts["closing.json"]


@given(st.text(max_size=300))
def test_an_id_can_stand_in_a_filter(text: str) -> None:
    assert re.fullmatch(r"[\w.:-]+", uid_of(text), re.ASCII)


def test_charts_open_with_what_matters() -> None:
    values = {"drafter": "ngram", "k": 4, "drafter.prompt_lookup_max": 4, "max_num_seqs": 8}
    run = trial_run(trial(configuration=Configuration(values=values)), str)
    assert run.metrics[0].key == "edit.decode_tok_s"
    assert sorted(run.params)[:3] == ["drafter", "k", "max_num_seqs"]
    assert run.params["speculative_config.prompt_lookup_max"] == "4"
