"""A version appears on an index: check names it, retune builds it, tunes it, reports; and every way that fails."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from clocks import Clocks
from mlflow import MlflowClient
from scripted_slot import OneSlot, ScriptedSlot
from wheel_index import Index, package_settings, served

from orchestrator import cli_retune, upgrade
from orchestrator.cli_keep import check
from orchestrator.cli_retune import retune
from orchestrator.errors import EnvironmentBroken, LockHeld, RepeakError
from orchestrator.library import shelves
from orchestrator.machine_lock import machine_held
from orchestrator.plan_file import load_plan
from orchestrator.progress import PlainProgress
from orchestrator.refind import refind
from orchestrator.retune_view import FAST
from orchestrator.session import tune_plan
from orchestrator.slot import LaunchOrder, LaunchReport
from orchestrator.window import Window
from orchestrator.workload import Workload
from trackers.sync import SyncCounts, sync

PLAN = """
name: night
model: {id: org/model, revision: abc}
engines: [vllm==0.27.1]
incumbent: vllm serve org/model --max-num-seqs 8
workloads: [{name: generate, kind: generate, prompt_tokens: 32, output_tokens: 32}]
space: {drafter: {none: {}, mtp: {k: [2, 4]}}, max_num_seqs: [8, 16]}
precision: {relative: 2%, min_windows: 3, max_windows: 4, launch_noise: 1%}
finalists: {count: 2, launches: 2}
"""
OLD = {0: 100.0, 2: 140.0, 4: 120.0}


class Engine(ScriptedSlot):
    """Each version's speed at each k, with launch noise; `takes_s` passes with every launch."""

    def __init__(self, new: dict[int, float], clocks: Clocks | None = None, takes_s: float = 0.0) -> None:
        super().__init__(self.speed)
        self.new, self.clocks, self.takes_s, self.host = new, clocks, takes_s, 1.0
        self.versions: list[str] = []

    def speed(self, order: LaunchOrder, workload: Workload, window: int) -> float:
        rng = random.Random(len(self.launched))  # the same in every run, which a trial's id is not
        config = dict(zip(order.args, order.args[1:], strict=False)).get("--speculative-config", "{}")
        k = json.loads(config).get("num_speculative_tokens", 0)
        wide = 0.96 if order.settings["max_num_seqs"] == "16" else 1.0
        base = OLD if order.environment.version == "0.27.1" else self.new
        return self.host * base[k] * wide * (1 + rng.gauss(0, 0.006)) * (1 + random.Random(window).gauss(0, 0.001))

    def launch(self, order: LaunchOrder) -> LaunchReport:
        if self.clocks is not None:
            self.clocks.pass_by(self.takes_s)
        self.versions.append(order.environment.version)
        return super().launch(order)


class Night:
    """A data directory, a plan with a peak on 0.27.1, and an index."""

    def __init__(self, home: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.index, self.monkeypatch = home, index, monkeypatch
        self.file = home / "plan.yaml"
        self.file.write_text(PLAN)

    def engine(self, engine: Engine) -> Engine:
        def run(plan: Any, **held: Any) -> Any:
            return tune_plan(plan, **{**held, "slots": OneSlot(engine)})

        self.monkeypatch.setattr(cli_retune, "tune_plan", run)
        return engine

    def check(self) -> Result:
        return CliRunner().invoke(check, [str(self.file)], standalone_mode=False, catch_exceptions=False)

    def retune(self, *words: str) -> Result:
        words = (str(self.file), "--if-moved", *words)
        return CliRunner().invoke(retune, words, standalone_mode=False, catch_exceptions=False)

    @property
    def outcome(self) -> dict[str, Any]:
        return json.loads((self.home / "journals" / "night" / "outcome.json").read_text())

    def state(self) -> list[tuple[str, str]]:
        """Studies and environments: what an upgrade that fails must leave as it was."""
        made = [("environment", one.name) for one in (self.home / "environments").iterdir() if one.name[0] != "."]
        return sorted(made) + [("study", shelf.opened.study) for shelf in shelves("night")]


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[tuple[Path, Index]]:
    """One home with a peak on 0.27.1, which every test copies, and the index it came from."""
    home = tmp_path_factory.mktemp("tuned")
    shutil.copyfile(empty_store, home / "mlflow.db")
    with served(tmp_path_factory.mktemp("index")) as index:
        # Undone before anything else runs: a session outlives the tests of this file.
        with pytest.MonkeyPatch.context() as patch:
            index.gains("0.27.1")
            settle(patch, home, index)
            (home / "plan.yaml").write_text(PLAN)
            tune_plan(load_plan(home / "plan.yaml"), slots=OneSlot(Engine({})))
        yield home, index


def settle(patch: pytest.MonkeyPatch, home: Path, index: Index) -> None:
    for name, value in {**package_settings(home), "PIP_INDEX_URL": index.url, "REPEAK_HOME": str(home)}.items():
        patch.setenv(name, value)
    for name in ("MLFLOW_TRACKING_URI", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"):
        patch.delenv(name, raising=False)
    patch.setattr("orchestrator.session.make_progress", lambda: PlainProgress(lambda _: None))
    patch.setattr(cli_retune, "busy_devices", list)
    # What MLflow gets is looked at in one test; in the others it would be most of the time.
    patch.setattr("orchestrator.session.sync", lambda *_, **__: SyncCounts())


@pytest.fixture
def night(tuned: tuple[Path, Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    home = tmp_path / "home"
    shutil.copytree(tuned[0], home, symlinks=True)
    with served(tmp_path / "index") as index:
        index.gains("0.27.1")
        settle(monkeypatch, home, index)
        yield Night(home, index, monkeypatch)


def test_a_version_that_appears_is_named_built_tuned_and_reported_and_then_nothing_is_left_to_do(night: Night) -> None:
    assert night.check().return_value == 0
    night.index.gains("0.32.0")
    named = night.check()
    assert (named.return_value, "0.32.0 is new and resolves" in named.output) == (10, True)
    engine = night.engine(Engine({0: 100.0, 2: 150.0, 4: 190.0}))
    night.monkeypatch.setattr("orchestrator.session.sync", sync)
    night.monkeypatch.setenv("REPEAK_WEBHOOK", "http://127.0.0.1:9/secret/path")
    done = night.retune()
    assert (done.return_value, set(engine.versions)) == (0, {"0.27.1", "0.32.0"})
    (advice,) = night.outcome["advice"]
    assert advice["verdict"] == "peak moved"
    assert advice["regression"] == "ruled out"
    assert '"num_speculative_tokens": 2' in advice["change"][0].partition("->")[0]
    assert '"num_speculative_tokens": 4' in advice["change"][0].partition("->")[2]
    for said in ("upgrade; change the serve command", "95 %", "vllm-0.27.1", "vllm-0.32.0", "do:", "sure:"):
        assert said in done.output
    assert "the webhook http://127.0.0.1/*** could not be reached" in done.output
    assert "secret" not in done.output
    assert "upgrade; change the serve command" in (night.home / "journals" / "night" / "report.html").read_text()
    client = MlflowClient(f"sqlite:///{night.home / 'mlflow.db'}")
    parents = client.search_runs(
        [one.experiment_id for one in client.search_experiments()], "tags.`repeak.kind` = 'study'"
    )
    assert sum("upgrade; change" in run.data.tags.get("peak.advice.generate", "") for run in parents) == 1
    again = night.check()
    assert (again.return_value, "vllm-0.32.0: stands" in again.output) == (0, True), again.output
    launched = len(engine.versions)
    assert (night.retune().return_value, len(engine.versions)) == (0, launched)
    night.index.gains("0.33.0")
    assert "0.33.0 is new" in night.check().output


def test_a_version_that_cannot_be_built_is_said_to_be_so_and_nothing_else_changes(night: Night) -> None:
    night.index.gains("0.32.0", files={"vllm/__init__.py": "raise ImportError('no symbol')\n"})
    assert night.check().return_value == 10
    before, engine = night.state(), night.engine(Engine({}))
    done = night.retune()
    assert (done.return_value, engine.versions, night.state()) == (3, [], before)
    assert "could not be had: vllm-0.32.0" in done.output
    after = night.check()
    assert after.return_value == 0, "what does not build is no release"
    assert "0.32.0 is listed and cannot be had: did not build" in after.output


def test_the_summary_says_not_to_upgrade_where_both_peaks_lost(night: Night) -> None:
    night.index.gains("0.32.0")
    night.engine(Engine({k: value * (0.62 if k == 2 else 0.7) for k, value in OLD.items()}))
    done = night.retune("--max-regression", "3%")
    assert done.return_value == 5
    (advice,) = night.outcome["advice"]
    assert advice["regression"] == "shown"
    assert advice["do"].startswith("do not upgrade: -3")
    assert "at the old settings" in advice["do"]


def test_a_host_that_drifted_is_not_taken_for_the_engine(night: Night) -> None:
    night.index.gains("0.32.0")
    night.engine(Engine(OLD)).host = 0.8
    assert night.retune("--max-regression", "3%").return_value == 0
    (advice,) = night.outcome["advice"]
    assert (advice["verdict"], advice["regression"]) == ("same", "ruled out")


def test_an_old_engine_that_is_not_here_any_more_is_not_built_for_a_comparison(night: Night) -> None:
    night.index.gains("0.32.0")
    for made in (night.home / "environments").glob("vllm-0.27.1*"):
        shutil.rmtree(made)
    engine = night.engine(Engine(OLD))
    assert (night.retune().return_value, set(engine.versions)) == (0, {"0.32.0"})
    assert not list((night.home / "environments").glob("vllm-0.27.1*"))


def test_an_old_engine_that_does_not_answer_any_more_is_not_built_anew_for_a_comparison(night: Night) -> None:
    night.index.gains("0.32.0")
    (made,) = (night.home / "environments").glob("vllm-0.27.1*")
    python = made / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    engine = night.engine(Engine(OLD))
    assert (night.retune().return_value, set(engine.versions)) == (0, {"0.32.0"})
    assert not python.is_symlink()


def test_launches_of_the_old_engine_in_turn_count_in_the_budget_of_every_night(night: Night) -> None:
    night.index.gains("0.32.0")
    night.file.write_text(f"{PLAN}budget: {{launches: 4}}\n")
    engine = night.engine(Engine({0: 100.0, 2: 150.0, 4: 190.0}))
    night.retune()
    assert (len(engine.versions), set(engine.versions)) == (4, {"0.27.1", "0.32.0"})
    night.retune()
    assert len(engine.versions) == 4


def test_a_loss_that_is_not_shown_fails_nothing(night: Night) -> None:
    night.index.gains("0.32.0")
    night.engine(Engine({k: value * 0.985 for k, value in OLD.items()}))
    done = night.retune("--max-regression", "1.5%")
    assert (done.return_value, night.outcome["advice"][0]["regression"]) == (0, "cannot tell")


def test_a_window_that_ends_mid_way_leaves_the_rest_to_the_next_night(night: Night) -> None:
    night.index.gains("0.32.0")
    clocks = Clocks(time.time())
    engine = Engine({0: 100.0, 2: 150.0, 4: 190.0}, clocks, takes_s=600.0)
    plan, said = load_plan(night.file), list[str]()

    def tonight(hours: float) -> upgrade.Upgraded:
        window = Window(clocks, length_s=3600 * hours)
        found = upgrade.checked(plan, upgrade.asking(plan, os.environ, {}))

        def run(job: upgrade.Job) -> Any:
            return tune_plan(
                plan,
                slots=OneSlot(engine),
                work=refind(FAST, cold=job.cold),
                scope=job.scope,
                window=window,
                clock=clocks,
            )

        return upgrade.upgrade(plan, found, run, window, said.append)

    first = tonight(0.5)
    assert (len(engine.versions), first.exit_code, engine.order) == (3, 0, None), "no engine is left"
    assert "the window of time has ended" in first.left[0]
    assert not any(advice for advice in first.advice)
    assert night.check().return_value == 10, "it is not done yet"
    second = tonight(8)
    assert (second.left, second.advice[0].verdict) == ([], "peak moved")
    records = [record for shelf in shelves("night")[1:] for record in shelf.records]
    assert len(records) == len(engine.versions), "what the first night measured was not measured again"
    assert night.check().return_value == 0


def test_a_driver_that_moved_is_retuned_in_place(night: Night) -> None:
    night.monkeypatch.setattr("orchestrator.fingerprint.socket.gethostname", lambda: "another")
    assert night.check().return_value == 10
    engine = night.engine(Engine({}))
    done = night.retune()
    assert (done.return_value, set(engine.versions)) == (0, {"0.27.1"})
    assert night.outcome["advice"][0]["do"].startswith("keep the settings")
    assert "before" in night.outcome["advice"][0]["old_stack"]
    assert night.check().return_value == 0


def test_other_traffic_is_searched_cold_and_compared_with_nothing(night: Night) -> None:
    night.file.write_text(PLAN.replace("prompt_tokens: 32", "prompt_tokens: 33"))
    assert night.check().return_value == 10
    night.engine(Engine({}))
    assert (night.retune().return_value, night.outcome["advice"]) == (0, [])
    assert night.check().return_value == 0


def test_while_another_run_has_the_machine_nothing_is_started(night: Night) -> None:
    night.index.gains("0.32.0")
    with machine_held(night.home, "repeak retune other.yaml", pytest.fail), pytest.raises(LockHeld, match="other"):
        night.retune()


def test_gpus_that_somebody_uses_are_left_alone_unless_told_otherwise(night: Night) -> None:
    night.monkeypatch.setattr(cli_retune, "busy_devices", lambda: ["GPU 0: 70000 MiB in use, 90 % busy"])
    with pytest.raises(RepeakError, match="GPU 0: 70000 MiB"):
        night.retune()
    assert night.retune("--busy-ok").return_value == 0


def test_a_plan_is_known_by_its_name_too(night: Night) -> None:
    done = CliRunner().invoke(retune, ["night", "--if-moved"], standalone_mode=False, catch_exceptions=False)
    assert (done.return_value, "Nothing moved" in done.output) == (0, True)


def test_an_environment_that_fails_while_it_is_tuned_is_a_failure_of_that_engine_alone(night: Night) -> None:
    night.index.gains("0.32.0")

    def broken(*_: Any, **__: Any) -> Any:
        raise EnvironmentBroken("the driver is too old", "")

    night.monkeypatch.setattr(cli_retune, "tune_plan", broken)
    done = night.retune()
    assert (done.return_value, night.outcome["failures"]) == (3, ["vllm-0.32.0: the driver is too old"])
