"""What a tracker promises, whichever store is behind it: SQLite, an MLflow server, PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trial_records import started, study, trial

import trackers
from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.mlflow_layout import experiment_name
from trackers.mlflow_tracker import MlflowTracker
from trackers.sync import sync

# The first test of a store waits for it to be made.
pytestmark = pytest.mark.timeout(900)

STORES = ("sqlite", "server", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(params=STORES)
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MlflowTracker]:
    uri = request.getfixturevalue(f"{request.param}_uri")
    with MlflowTracker(uri, tmp_path / "artifacts") as made:
        yield made


@pytest.fixture
def opened() -> StudyOpened:
    """A study of its own: stores are shared between tests."""
    return study(f"s-{uuid.uuid4().hex}", plan=f"plan-{uuid.uuid4().hex}", facts={"note": "a"})


def run_of(tracker: MlflowTracker, run_id: str) -> Any:
    return tracker._do(lambda client: client.get_run(run_id))


def artifact(tracker: MlflowTracker, run_id: str, path: str, tmp_path: Path) -> str:
    place = tmp_path / uuid.uuid4().hex
    place.mkdir()
    return Path(tracker._do(lambda client: client.download_artifacts(run_id, path, str(place)))).read_text()


def state(tracker: MlflowTracker, opened: StudyOpened) -> dict[str, Any]:
    """Everything a store holds of a study, without what the store itself makes up (ids and places)."""

    def read(client: Any) -> dict[str, Any]:
        experiment = client.get_experiment_by_name(experiment_name(opened))
        runs = {}
        for run in client.search_runs([experiment.experiment_id], max_results=1000):
            tags = {name: value for name, value in run.data.tags.items() if name != "mlflow.parentRunId"}
            history = {
                name: sorted((m.step, m.timestamp, m.value) for m in client.get_metric_history(run.info.run_id, name))
                for name in run.data.metrics
            }
            inputs = [(one.dataset.name, one.dataset.digest, one.dataset.source) for one in run.inputs.dataset_inputs]
            info = (run.info.status, run.info.start_time, run.info.end_time, run.info.run_name)
            files = sorted((one.path, one.file_size) for one in client.list_artifacts(run.info.run_id))
            uid = tags.get("repeak.trial_uid", "parent")
            assert uid not in runs, "a run is there twice"
            runs[uid] = (tags, run.data.params, history, sorted(inputs), info, files)
        return runs

    return tracker._do(read)


def test_a_trial_is_a_child_run_with_its_knobs_numbers_state_and_record(
    tracker: MlflowTracker, opened: StudyOpened, tmp_path: Path
) -> None:
    experiment_id, parent = tracker.open_study(opened)
    record = trial()
    run = run_of(tracker, tracker.record(record, opened))
    assert run.info.experiment_id == experiment_id
    assert (run.info.status, run.info.run_name) == ("FINISHED", "ngram k=1, max_num_seqs=16")
    assert (run.info.start_time, run.info.end_time) == (90_000, 120_000)
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.data.tags["repeak.state"] == "measured"
    assert run.data.tags["stack.vllm"] == "0.32.0"
    assert run.data.params["k"] == "1"
    assert run.data.metrics["edit.decode_tok_s"] == 50.5
    assert run.data.metrics["edit.decode_tok_s_half_width"] == 1.25
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("edit", "e" * 36)
    history = tracker._do(lambda client: client.get_metric_history(run.info.run_id, "per_window/edit.decode_tok_s"))
    assert [(one.step, one.value) for one in history] == [(1, 50.0), (2, 50.1), (3, 51.0), (4, 51.1)]
    assert json.loads(artifact(tracker, run.info.run_id, "record.json", tmp_path)) == json.loads(
        record.model_dump_json()
    )


def test_the_same_trial_told_again_is_the_same_run(tracker: MlflowTracker, opened: StudyOpened) -> None:
    first = tracker.record(trial(), opened)
    before = state(tracker, opened)
    with MlflowTracker(tracker._uri, tracker._artifacts) as another:
        assert another.record(trial(), opened) == first
        assert another.open_study(opened) == tracker.open_study(opened)
    assert state(tracker, opened) == before


@pytest.mark.parametrize("step", ["log_batch", "log_inputs", "log_artifacts", "set_terminated"])
def test_a_run_left_half_written_is_finished_by_the_next_call(
    tracker: MlflowTracker, opened: StudyOpened, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    tracker.record(trial("whole"), opened)
    with monkeypatch.context() as patch:
        patch.setattr(tracker._client(), step, die)
        with pytest.raises(Died):
            tracker.record(trial("cut"), opened)
    assert tracker.known(opened).keys() == {"whole"}
    run_id = tracker.record(trial("cut"), opened)
    assert tracker.known(opened)["cut"] == run_id
    runs = state(tracker, opened)
    assert runs.keys() == {"parent", "whole", "cut"}
    assert runs["cut"][1:4] == runs["whole"][1:4]


def test_a_failed_trial_has_no_number_and_says_why(tracker: MlflowTracker, opened: StudyOpened) -> None:
    failed = trial(state="refused", reason="k over the batch budget", windows=(), launches=(), estimates={})
    run = run_of(tracker, tracker.record(failed, opened))
    assert run.info.status == "FAILED"
    assert (run.data.tags["repeak.state"], run.data.tags["repeak.reason"]) == (
        "refused",
        "k over the batch budget",
    )
    assert run.data.metrics == {"launches": 0.0, "windows": 0.0, "duration_s": 30.0}


def test_closing_a_study_sets_verdict_peak_and_files(
    tracker: MlflowTracker, opened: StudyOpened, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text("<p>peak</p>")
    closed = StudyClosed(
        study=opened.study,
        at=200.0,
        verdict="peak: ngram k=8",
        peak={"k": 8},
        facts={"configuration": "ngram k=8"},
        metrics={"edit.decode_tok_s": 98.0},
        files={"report.html": str(tmp_path / "report.html")},
    )
    run_id = tracker.close_study(closed, opened)
    assert run_id == tracker.open_study(opened)[1]
    run = run_of(tracker, run_id)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 200_000)
    assert run.data.tags["repeak.verdict"] == "peak: ngram k=8"
    assert run.data.tags["peak.configuration"] == "ngram k=8"
    assert run.data.tags["repeak.note"] == "a"
    assert run.data.metrics == {"peak.edit.decode_tok_s": 98.0}
    assert artifact(tracker, run_id, "report.html", tmp_path) == "<p>peak</p>"
    later = closed.model_copy(update={"at": 300.0, "verdict": "cannot tell"})
    assert tracker.close_study(later, opened) == run_id
    assert run_of(tracker, run_id).data.tags["repeak.verdict"] == "cannot tell"


def test_hostile_text_comes_back_unchanged_or_marked(
    tracker: MlflowTracker, opened: StudyOpened, tmp_path: Path
) -> None:
    text = "'\"`; DROP TABLE runs; -- <script>alert(1)</script>\nline two\t\U0001f600 ☃ \\ % {x}"
    long = "long " * 2000
    run_id = tracker.record(trial(text, reason=text, study=long), opened)
    assert tracker.record(trial(text, reason=text, study=long), opened) == run_id
    tags = run_of(tracker, run_id).data.tags
    assert tags["repeak.reason"] == tags["repeak.trial"] == text
    assert tags["repeak.study"].startswith("[10000 characters, sha256 ")
    path = tags["repeak.study"].split("artifact ")[1].split("]")[0]
    assert artifact(tracker, run_id, path, tmp_path) == long


def test_the_runs_of_a_stack_are_found_by_its_tag(tracker: MlflowTracker, opened: StudyOpened) -> None:
    tracker.record(trial(), opened)

    def count(version: str) -> int:
        experiment_id, _ = tracker.open_study(opened)
        where = f"tags.\"stack.vllm\" = '{version}' AND tags.\"repeak.kind\" = 'trial'"
        return len(tracker._do(lambda client: client.search_runs([experiment_id], where)))

    assert (count("0.32.0"), count("0.27.1")) == (1, 0)


def test_after_an_outage_sync_makes_what_would_have_been(
    tracker: MlflowTracker, opened: StudyOpened, tmp_path: Path
) -> None:
    """The same study told as it went along, and told afterwards from the journal alone."""
    other = opened.model_copy(update={"plan": f"{opened.plan}-late"})
    for plan, live in ((opened, True), (other, False)):
        with Journal(tmp_path / plan.plan) as journal:
            journal.study(plan)
            for number in range(3):
                record = trial(f"t{number}", number)
                folder = journal.folder(record.trial_id)
                folder.mkdir(parents=True)
                (folder / "metrics-before.txt").write_text("vllm:x 1\n")
                journal.begin(started(record.trial_id, number))
                journal.trial(record.model_copy(update={"study": plan.study}))
                if live:
                    assert sync(journal, tracker).sent == 1
            closed = StudyClosed(study=plan.study, at=500.0, verdict="peak", metrics={"x": 1.0})
            journal.peak(closed)
            assert sync(journal, tracker).sent == (1 if live else 4)
            assert sync(journal, tracker).present == 4
            assert sync(journal, tracker, verify=True).failed == 0
    late, there = state(tracker, other), state(tracker, opened)
    for run in (late["parent"][0], there["parent"][0]):
        del run["repeak.plan"]
    assert late == there


WRITER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trial_records import study, trial
from trackers.entries import StudyOpened
from trackers.mlflow_tracker import MlflowTracker
writer, place = sys.argv[2], Path(sys.argv[3])
for job in json.loads(sys.argv[4]):
    opened = StudyOpened.model_validate(job["study"])
    with MlflowTracker(job["uri"], place) as tracker:
        for number in range(job["trials"]):
            tracker.record(trial(f"{writer}-{number}", number), opened)
"""


@pytest.mark.postgres
def test_four_writers_lose_and_double_nothing(
    request: pytest.FixtureRequest, opened: StudyOpened, tmp_path: Path
) -> None:
    jobs = [(request.getfixturevalue(f"{name}_uri"), each) for name, each in SHARES.items()]
    for uri, _ in jobs:
        with MlflowTracker(uri, tmp_path) as tracker:
            tracker.open_study(opened)
    told = [{"uri": uri, "trials": each, "study": opened.model_dump(mode="json")} for uri, each in jobs]
    command = [sys.executable, "-c", WRITER, str(Path(__file__).parent.parent / "fakes")]
    root = Path(trackers.__file__).parent.parent
    writers = [
        subprocess.Popen([*command, f"w{n}", str(tmp_path), json.dumps(told)], cwd=root, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    try:
        for writer in writers:
            _, errors = writer.communicate(timeout=800)
            assert writer.returncode == 0, errors.decode()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    for uri, each in jobs:
        with MlflowTracker(uri, tmp_path) as tracker:
            assert tracker.known(opened).keys() == {f"w{n}-{trial}" for n in range(4) for trial in range(each)}
            experiment_id, _ = tracker.open_study(opened)
            runs = tracker._do(lambda client: client.search_runs([experiment_id], max_results=1000))  # noqa: B023
            assert len(runs) == 4 * each + 1


SHARES = {"sqlite": 10, "server": 10, "postgres": 125}
"""Trials of each writer, by store."""
