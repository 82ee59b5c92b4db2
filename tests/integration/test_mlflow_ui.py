"""The pages that `repeak ui` serves: ours, to this machine, at the right experiment, and gone afterwards."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from trial_records import study, trial

from orchestrator.mlflow_ui import experiment_link, find_experiment
from trackers.mlflow_layout import experiment_name
from trackers.mlflow_tracker import MlflowTracker

pytestmark = pytest.mark.timeout(900)


def test_a_foreign_host_name_is_turned_away(server_uri: str) -> None:
    with httpx.Client(trust_env=False) as client:
        for host, status in (
            ("evil.example", 403),
            ("127.0.0.1:1", 403),
            (server_uri.removeprefix("http://"), 200),
        ):
            assert client.get(f"{server_uri}/", headers={"Host": host}, timeout=60).status_code == status


def test_the_experiment_is_found_by_its_name(server_uri: str, tmp_path: Path) -> None:
    opened = study(plan="shown in the pages")
    with MlflowTracker(server_uri, tmp_path) as tracker:
        experiment_id, _ = tracker.open_study(opened)
        tracker.record(trial(), opened)
    assert find_experiment(server_uri, experiment_name(opened)) == experiment_id
    assert experiment_link(server_uri, experiment_id).startswith(f"{server_uri}/#/experiments/{experiment_id}/runs?")
    assert find_experiment(server_uri, "no such experiment") is None
