"""From a rehearsed tune to its report: attribute launches what is lacking, reproduce says within or outside."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from scripted_slot import OneSlot, ScriptedSlot

from orchestrator import attribute as attributing
from orchestrator import reproduce
from orchestrator.cli_compare import attribute, compare_command, report
from orchestrator.cli_export import export_command, reproduce_command
from orchestrator.kept_plan import kept_plan
from orchestrator.library import shelves
from orchestrator.plan import TuningPlan
from orchestrator.progress import PlainProgress
from orchestrator.rehearsal import rehearsed
from orchestrator.session import tune_plan
from orchestrator.slot import LaunchOrder
from orchestrator.workload import Workload

OLD, NEW = "vllm-0.27.1", "vllm-0.32.0"
SPEED = {OLD: {0: 100.0, 2: 140.0, 4: 120.0}, NEW: {0: 100.0, 2: 150.0, 4: 190.0}}


class Engine(ScriptedSlot):
    """Knows each engine's speed at each k and width, with launch noise."""

    def __init__(self) -> None:
        super().__init__(self.speed)

    def speed(self, order: LaunchOrder, workload: Workload, window: int) -> float:
        rng = random.Random(len(self.launched))  # the same in every run, which a trial's id is not
        config = dict(zip(order.args, order.args[1:], strict=False)).get("--speculative-config", "{}")
        k = json.loads(config).get("num_speculative_tokens", 0)
        eager = 0.6 if "--enforce-eager" in order.args else 1.0
        engine = NEW if NEW in str(order.environment.directory or order.environment.python) else OLD
        wide = 0.96 if order.settings["max_num_seqs"] == "16" else 1.0
        launch = 1 + rng.gauss(0, 0.008)
        return SPEED[engine][k] * eager * wide * launch * (1 + random.Random(window).gauss(0, 0.001))


@pytest.fixture(scope="module")
def preflown() -> list[LaunchOrder]:
    """What engines were asked about before a launch, in order."""
    return []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path, preflown: list[LaunchOrder]) -> Iterator[Path]:
    """Where a study of two engines was tuned once; its engine answers every later launch too."""
    place = tmp_path_factory.mktemp("home")
    shutil.copyfile(empty_store, place / "mlflow.db")
    patch = pytest.MonkeyPatch()
    patch.setenv("REPEAK_HOME", str(place))
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    engine = Engine()
    engine.preflown = preflown
    for module in (attributing, reproduce):
        patch.setattr(module, "slots_of", lambda _: OneSlot(engine))
    patch.setattr("orchestrator.session.make_progress", lambda: PlainProgress(lambda _: None))
    plan = TuningPlan.model_validate(
        {
            "name": "moved",
            "model": {"id": "org/model"},
            "engines": ["vllm==0.27.1", "vllm==0.32.0"],
            "incumbent": "vllm serve org/model --max-num-seqs 8",
            "workloads": [{"name": "generate", "kind": "generate", "prompt_tokens": 32, "output_tokens": 32}],
            "space": {"drafter": {"none": {}, "mtp": {"k": [2, 4]}}, "max_num_seqs": [8, 16]},
            "precision": {"relative": "2%", "min_windows": 3, "max_windows": 4, "launch_noise": "1%"},
            "finalists": {"count": 2, "launches": 2},
        }
    )
    tune_plan(rehearsed(plan), slots=OneSlot(engine))
    yield place
    patch.undo()


def run(command: object, *arguments: str) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def peak_trial(engine: str) -> str:
    (shelf,) = [one for one in shelves("moved-rehearsal") if one.opened.facts["engine"] == engine]
    want = {OLD: 2, NEW: 4}[engine]
    return next(r.trial_id for r in shelf.records if r.configuration.k == want and r.role == "finalist")


def test_the_session_left_the_report_beside_the_journal_and_in_every_parent_run(home: Path) -> None:
    page = (home / "journals" / "moved-rehearsal" / "report.html").read_text(encoding="utf-8")
    assert "Rehearsal on simulated engines" in page
    assert "What to run on vllm-0.32.0" in page
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiments = [one.experiment_id for one in client.search_experiments()]
    parents = client.search_runs(experiments, "tags.`repeak.kind` = 'study'")
    assert len(parents) == 2
    for parent in parents:
        assert "report.html" in {one.path for one in client.list_artifacts(parent.info.run_id)}


def test_reproduce_says_within_and_that_nothing_changed(home: Path, preflown: list[LaunchOrder]) -> None:
    asked = len(preflown)
    text = run(reproduce_command, peak_trial(NEW))
    assert text.startswith("within")
    assert "same flags, same stack" in text
    assert not preflown[asked:], "it ran on this stack: its engine is not asked about it again"
    before = kept_plan("moved-rehearsal")
    assert before is not None
    assert len(before.engines) == 2, "the plan is kept whole"


def test_reproduce_with_a_changed_flag_says_which_and_outside(home: Path, preflown: list[LaunchOrder]) -> None:
    asked = len(preflown)
    found = json.loads(run(reproduce_command, peak_trial(NEW), "--set", "enforce_eager=true", "--json"))
    assert len(preflown) == asked + 1, "what never ran is asked about"
    (number,) = found["numbers"]
    assert number["verdict"] == "outside"
    assert number["ratio"] == pytest.approx(0.6, abs=0.04)
    assert 0.9 < number["low"] < 1 < number["high"] < 1.1
    assert found["changed"] == {"--enforce-eager": [None, "on"]}
    text = run(reproduce_command, peak_trial(NEW), "--set", "k=2")
    assert text.startswith("outside")
    assert "changed: --speculative-config" in text


def test_a_reproduced_trial_is_no_peak_of_its_study(home: Path) -> None:
    run(reproduce_command, peak_trial(NEW), "--set", "enforce_eager=true")
    line = run(export_command, "moved-rehearsal")
    assert "--enforce-eager" not in line
    assert '"num_speculative_tokens": 4' in line


def test_attribute_launches_only_what_is_lacking_and_then_nothing(home: Path) -> None:
    def count() -> int:
        return sum(len(shelf.records) for shelf in shelves("moved-rehearsal"))

    before = count()
    (found,) = json.loads(run(attribute, "moved-rehearsal", "--engine", "--json"))
    assert found["lacking"] == 0
    assert 0 < count() - before < 5, "two factors make five launches, and the finalists are there already"
    effects = {main["factor"]: main["averaged"] for main in found["found"]["mains"]}
    assert effects["k"]["low"] > 0
    assert effects["engine"]["low"] > 0
    between = count()
    (again,) = json.loads(run(attribute, "moved-rehearsal", "--engine", "--json"))
    assert count() == between
    assert again == found
    (alone,) = json.loads(run(attribute, "moved-rehearsal", "--engine", "--from-records", "--json"))
    assert alone["found"]["mains"] == found["found"]["mains"]


def test_compare_and_report_speak_of_the_same_move(home: Path) -> None:
    found = json.loads(run(compare_command, OLD, NEW, "--json"))
    (move,) = found["targets"]
    assert move["gain"]["verdict"] == "better"
    text = run(report, "moved-rehearsal")
    assert "REHEARSAL" in text
    assert f"generate, decode_tok_s: {move['shift']['verdict']}" in text


def test_what_is_not_there_is_told(home: Path) -> None:
    for command, arguments, said in (
        (reproduce_command, ["nothing-like-it"], "no plan and no trial"),
        (reproduce_command, [peak_trial(OLD), "--set", "oops"], "not NAME=VALUE"),
        (compare_command, [OLD, "vllm-9"], "no study"),
        (compare_command, [OLD, OLD], "one study"),
        (attribute, ["nowhere", "--from-records"], "No plan"),
        (attribute, ["moved-rehearsal", "--from-records", "--to", "vllm-9"], "two engines"),
        (attribute, ["moved-rehearsal", "--from-records", "--target", "chat"], "no peak of chat"),
        (export_command, ["nowhere"], "No plan"),
        (export_command, ["moved-rehearsal", "--engine", "vllm-9"], "no peak on vllm-9"),
        (export_command, ["moved-rehearsal", "--target", "chat"], "no peak of 'chat'"),
        (report, ["nowhere"], "No plan"),
    ):
        done = CliRunner().invoke(command, arguments)
        assert said in str(done.exception), (command.name, arguments, done.output)


def test_a_trial_is_launched_again_in_its_own_plan_whichever_ran_last_of_those_that_share_its_study(home: Path) -> None:
    plan = kept_plan("moved-rehearsal")
    assert plan is not None
    budget = plan.budget.model_copy(update={"launches": 2})
    tune_plan(plan.model_copy(update={"name": "later", "budget": budget}), slots=OneSlot(Engine()))
    later = shelves("later")
    assert {one.opened.study for one in later} <= {one.opened.study for one in shelves("moved-rehearsal")}
    found = json.loads(run(reproduce_command, peak_trial(NEW), "--json"))
    assert found["again"] in {record.trial_id for one in shelves("moved-rehearsal") for record in one.records}
    assert shelves("later") == later
