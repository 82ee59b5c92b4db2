"""The tracker against a real store that is down, damaged, changed by people, or seen for the first time."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from trial_records import study, trial, window

import trackers
from orchestrator.process_tree import free_port
from search_spaces.configuration import Configuration
from trackers.mlflow_layout import experiment_name
from trackers.mlflow_tracker import MlflowTracker
from trackers.problems import TrackerProblem
from trackers.records import Launch

pytestmark = pytest.mark.timeout(900)


def test_nothing_of_mlflow_is_imported_before_a_store_is_used(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from trackers.mlflow_tracker import MlflowTracker; import trackers.sync; "
        "MlflowTracker('sqlite:////x/y.db', pathlib.Path('/x')); "
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('mlflow', 'sqlalchemy')]"
    )
    root = Path(trackers.__file__).parent.parent
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=root, timeout=60)


def test_it_leaves_no_word_no_warning_and_no_file_where_it_was_called(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    level = logging.getLogger("mlflow").level
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with MlflowTracker(sqlite_uri, tmp_path / "artifacts") as tracker:
            tracker.record(trial(), study())
    assert [str(one.message) for one in seen] == []
    assert capfd.readouterr() == ("", "")
    assert list(here.iterdir()) == []
    assert logging.getLogger("mlflow").level == level


def test_a_server_that_is_not_there_is_an_outage_within_seconds(tmp_path: Path) -> None:
    with MlflowTracker(f"http://127.0.0.1:{free_port()}", tmp_path) as tracker:
        with pytest.raises(TrackerProblem, match="did not take it") as problem:
            tracker.record(trial(), study())
        assert problem.value.outage
        assert "repeak sync" in problem.value.hint


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "MLFLOW_TRACKING_TOKEN"), (403, "MLFLOW_TRACKING_TOKEN"), (503, "sync")]
)
def test_a_server_that_refuses_us_says_what_to_set_and_hears_the_token(
    status: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization", ""))
            self.send_error(status)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "open-sesame-123")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            uri = f"http://127.0.0.1:{server.server_port}"
            with MlflowTracker(uri, tmp_path) as tracker, pytest.raises(TrackerProblem) as problem:
                tracker.record(trial(), study())
        finally:
            server.shutdown()
            thread.join()
    assert hint in problem.value.hint
    assert "Bearer open-sesame-123" in heard
    assert "open-sesame-123" not in str(problem.value)


def test_a_database_of_an_older_mlflow_says_how_to_upgrade_it(sqlite_uri: str, tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    path.write_bytes(Path(sqlite_uri.removeprefix("sqlite:///")).read_bytes())
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    database.close()
    with MlflowTracker(f"sqlite:///{path}", tmp_path) as tracker, pytest.raises(TrackerProblem) as problem:
        tracker.open_study(study())
    assert "mlflow db upgrade" in problem.value.hint


def test_a_run_that_a_person_deleted_is_not_written_again(sqlite_uri: str, tmp_path: Path) -> None:
    with MlflowTracker(sqlite_uri, tmp_path) as tracker:
        run_id = tracker.record(trial(), study())
        tracker._do(lambda client: client.delete_run(run_id))
        assert tracker.record(trial(), study()) == run_id
        assert tracker.known(study()) == {"t1": run_id}


def test_a_deleted_experiment_is_named_with_the_way_to_restore_it(sqlite_uri: str, tmp_path: Path) -> None:
    with MlflowTracker(sqlite_uri, tmp_path) as tracker:
        experiment_id, _ = tracker.open_study(study())
        tracker._do(lambda client: client.delete_experiment(experiment_id))
    with MlflowTracker(sqlite_uri, tmp_path) as tracker:
        with pytest.raises(TrackerProblem, match="was deleted") as problem:
            tracker.record(trial(), study())
        assert f"mlflow experiments restore -x {experiment_id}" in problem.value.hint


def test_an_experiment_that_another_driver_made_meanwhile_is_used(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MlflowTracker(sqlite_uri, tmp_path) as first, MlflowTracker(sqlite_uri, tmp_path) as second:
        experiment_id, _ = first.open_study(study())
        client = second._do(lambda client: client)
        real, answers = client.get_experiment_by_name, [None]
        monkeypatch.setattr(client, "get_experiment_by_name", lambda name: answers.pop() if answers else real(name))
        assert second.open_study(study())[0] == experiment_id


def test_artifacts_lie_in_the_given_place_without_secrets(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "launch.log").write_text("INFO ready\nHF_TOKEN=abcdef\n")
    launch = Launch(launch=0, started_at=1.0, ready_s=1.0, log_path=str(tmp_path / "launch.log"))
    with MlflowTracker(sqlite_uri, tmp_path / "artifacts") as tracker:
        run_id = tracker.record(trial(launches=(launch,)), study())
        (log,) = (tmp_path / "artifacts").glob(f"*/{run_id}/artifacts/launch-0.log")
    assert log.read_text() == "INFO ready\nHF_TOKEN=***\n"


def test_a_thousand_windows_and_a_hundred_knobs_arrive_whole(sqlite_uri: str, tmp_path: Path) -> None:
    many = tuple(window(0, number) for number in range(1001))
    knobs = {"drafter": "none", **{f"knob_{number}": number for number in range(150)}}
    with MlflowTracker(sqlite_uri, tmp_path) as tracker:
        run_id = tracker.record(trial(windows=many, configuration=Configuration(values=knobs)), study())
        run = tracker._do(lambda client: client.get_run(run_id))
        history = tracker._do(lambda client: client.get_metric_history(run_id, "per_window/edit.decode_tok_s"))
    assert len(run.data.params) == 154
    assert len(history) == 1001


def test_the_experiment_is_named_for_plan_model_and_machine(sqlite_uri: str, tmp_path: Path) -> None:
    with MlflowTracker(sqlite_uri, tmp_path) as tracker:
        experiment_id, _ = tracker.open_study(study())
        found = tracker._do(lambda client: client.get_experiment(experiment_id))
    assert found.name == experiment_name(study()) == "plan / model / cpu"
