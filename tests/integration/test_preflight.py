"""A preflight refuses what the engine's own configuration refuses; what it cannot say is left to a launch."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import preflight_engine
import pytest
from mlflow import MlflowClient

from orchestrator.clock import SystemClock
from orchestrator.errors import Interrupted
from orchestrator.janitor import read
from orchestrator.local_slot import LocalSlot
from orchestrator.plan import TuningPlan
from orchestrator.preflight import Preflight
from orchestrator.process_tree import cookie_holders
from orchestrator.progress import PlainProgress
from orchestrator.session import tune_plan
from orchestrator.slots import LocalSlots
from trackers.journal import Journal

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def make(place: Path) -> Iterator[Callable[..., Preflight]]:
    made: list[Preflight] = []

    def make(body: str = "", **bounds: float) -> Preflight:
        made.append(Preflight(preflight_engine.python(place, body), place / "caches", SystemClock(), **bounds))
        return made[-1]

    yield make
    for one in made:
        one.end()
    assert left(place) == []


def left(place: Path) -> list[int]:
    """Pids of preflight processes that are registered, or should be."""
    entries = [read(path) for path in (place / "running").glob("*.json")]
    return [who.pid for entry in entries if entry for who in cookie_holders(entry.cookie)]


def test_what_the_parser_and_the_configuration_refuse_is_refused_by_cause(make: Callable[..., Preflight]) -> None:
    preflight = make()

    def cause(*words: str, drafter: str = "none", **env: str) -> str | None:
        failure, _ = preflight.check(["m", *words], ENV | env, drafter)
        assert failure is None or failure.kind == "infeasible"
        return failure and failure.cause

    assert cause("--max-num-seqs", "8") is None
    assert cause("--max-num-seqs", "many") == "bad_value"
    assert cause("--no-such-thing") == "unknown_flag"
    assert cause("--do", "fly") == "bad_value"
    assert cause("--do", "setting", VLLM_SETTING="1") == "batch_below_seqs"
    assert cause("--do", "setting") is None, "what one check set is gone at the next"
    assert cause("--do", "package", drafter="suffix") == "missing_package"


def test_an_environment_larger_than_a_pipe_is_asked_about_whole(make: Callable[..., Preflight]) -> None:
    large = {f"MODULE_{number}": "x" * 50_000 for number in range(8)}
    preflight = make()
    assert preflight.check(["m", "--max-num-seqs", "many"], ENV | large)[0]
    assert preflight.check(["m", "--do", "setting"], ENV | large | {"VLLM_SETTING": "1"})[0]


def test_an_unknown_flag_is_shown_with_the_one_that_this_version_has(make: Callable[..., Preflight]) -> None:
    failure, note = make().check(["m", "--max-num-seq-s=4", "--foo"], ENV)
    assert failure is not None
    assert "unrecognized arguments: --max-num-seq-s=4 --foo" in failure.message
    assert failure.message.endswith("instead of --max-num-seq-s it has --max-num-seqs")
    assert (note.name, note.passed) == ("preflight", False)


@pytest.mark.parametrize("what", ["memory", "package", "odd"])
def test_memory_packages_and_what_nobody_knows_are_left_to_a_launch(make: Callable[..., Preflight], what: str) -> None:
    failure, note = make().check(["m", "--do", what], ENV)
    assert failure is None
    assert note.passed is None
    assert "left to a launch" in note.detail


def test_a_check_that_crashes_or_hangs_is_no_verdict_and_the_warm_process_lives_on(
    place: Path, make: Callable[..., Preflight]
) -> None:
    preflight = make(check_s=1)
    assert preflight.check(["m"], ENV)[1].passed is True
    before = left(place)
    for words, how in ((["m", "--do", "die"], "ended with -6"), (["m", "--do", "hang"], "ended with -14")):
        failure, note = preflight.check(words, ENV)
        assert failure is None
        assert how in note.detail
        preflight.check(["m"], ENV)
    assert set(before) & set(left(place)) == set(before)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise SystemExit(1)", "its process ended"),
        ("import time; time.sleep(600)", "nothing of use within 1 s"),
        ("print('{}}', flush=True); input()", "no answer"),
        ("print('[1]', flush=True); input()", "no answer"),
        ("while True: print('x' * 65536, end='', flush=True)", "nothing of use"),
        ("print('{\"exit\": 0}', flush=True); input(); print('?', flush=True)", "no answer"),
    ],
)
def test_a_process_of_no_use_is_bounded_ended_noted_and_asked_no_more_than_twice(
    place: Path, make: Callable[..., Preflight], body: str, why: str
) -> None:
    started = place / "started"
    preflight = make(f"open({str(started)!r}, 'a').write('.')\n{body}", start_s=1, check_s=1)
    for number in range(3):
        failure, note = preflight.check(["m"], ENV)
        assert failure is None
        assert note.passed is None
        assert (why if number < 2 else "not asked again") in note.detail
        assert left(place) == []
    assert len(started.read_text()) == 2


def test_an_engine_without_such_a_parser_is_asked_once(place: Path, make: Callable[..., Preflight]) -> None:
    preflight = make()
    shutil.rmtree(place / "site")
    assert "ModuleNotFoundError" in preflight.check(["m"], ENV)[1].detail
    assert "not asked again" in preflight.check(["m"], ENV)[1].detail


def test_a_waiting_check_ends_on_abort_from_another_thread(make: Callable[..., Preflight]) -> None:
    preflight = make("import time; time.sleep(600)")
    timer = threading.Timer(0.5, preflight.abort)
    timer.start()
    with pytest.raises(Interrupted):
        preflight.check(["m"], ENV)
    timer.join()


def test_it_ends_with_an_owner_that_is_killed(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.clock import SystemClock\n"
        "from orchestrator.preflight import Preflight\n"
        "one = Preflight(Path(sys.argv[1]), Path(sys.argv[2]), SystemClock())\n"
        "print(one.check(['m'], {'PATH': '/usr/bin:/bin'})[1].passed, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(preflight_engine.python(place)), str(place / "caches")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "True\n"
        assert left(place)
        owner.kill()
    deadline = SystemClock().monotonic() + 20
    while left(place) and SystemClock().monotonic() < deadline:
        select.select([], [], [], 0.1)
    assert left(place) == []


def test_a_study_refuses_by_preflight_without_a_launch_and_remembers_it_everywhere(
    place: Path, empty_store: Path
) -> None:
    shutil.copyfile(empty_store, place / "mlflow.db")
    preflight_engine.install(place / "simulated" / "new" / "site")
    plan = TuningPlan.model_validate(
        {
            "name": "checked",
            "model": {"id": "org/model"},
            "engines": [{"name": "new", "simulated": "k_shift/0/new"}],
            "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 32, "output_tokens": 8}],
            "serve": {"max_num_seqs": 8},
            "space": {"drafter": {"none": {}, "mtp": {"k": [4]}}},
            "precision": {"relative": "20%", "min_windows": 2, "max_windows": 2, "launch_noise": "1%"},
            "finalists": {"count": 1, "launches": 1},
        }
    )
    tune_plan(plan, slots=LocalSlots(1, make=LocalSlot), progress=PlainProgress(lambda _: None))
    with Journal(place / "journals" / "checked", read_only=True) as journal:
        records = {record.configuration.k: record for record in journal.records() if record.role == "search"}
        (final,) = (record for record in journal.records() if record.role == "finalist")
    assert {k: record.state for k, record in records.items()} == {0: "measured", 4: "refused"}
    assert records[4].launches == ()
    assert records[4].reason.startswith("bad_value: ")
    assert "divisible by n_predict" in records[4].reason
    checks = {check.name: check.passed for check in records[0].launches[0].checks}
    assert checks["preflight"] is True
    assert records[0].launches[0].cold_caches
    # Launched afresh, on the same stack: it ran, so that its engine is not asked about it again.
    assert [check.name for check in final.launches[0].checks].count("preflight") == 0
    assert final.state == "measured"
    assert left(place) == []
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments, "tags.`repeak.state` = 'refused'")
    assert "n_predict" in json.dumps(run.data.tags)
