"""Each kind of move is told apart, and what is as it was is no move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import two_engines as two

from orchestrator import fingerprint
from orchestrator.check import Checked, Look, Sight, check_plan
from orchestrator.engine_environment import EngineEnvironment, EnvironmentRequest
from orchestrator.fingerprint import shell_variables
from orchestrator.kept_plan import keep_plan
from orchestrator.plan import EngineSpec, TuningPlan
from orchestrator.prepare import stack_of, study_key
from orchestrator.releases import Release
from trackers.entries import StudyOpened
from trackers.journal import Journal

PACKAGES = {"vllm": "0.32.0", "torch": "2.13.0", "numpy": "2.4.0"}


def probe(**changes: Any) -> dict[str, Any]:
    held = {
        "python": "3.12.1",
        "engine": {"distribution": "vllm", "version": "0.32.0"},
        "torch": {"cuda": "13.0", "hip": None},
        "cpu": {"model": "A processor", "isa": "avx512"},
        "gpus": [{"name": "Card", "driver_version": "580.1"}],
        "packages": PACKAGES,
    }
    return held | changes


def environment(**changes: Any) -> EngineEnvironment:
    held = {
        "key": "k",
        "requirement": "vllm==0.32.0",
        "version": "0.32.0",
        "python": Path("/env/bin/python"),
        "directory": Path("/env"),
        "flavour": "cuda",
        "lock_sha256": "a" * 64,
        "packages": PACKAGES,
        "adopted": False,
    }
    return EngineEnvironment.model_validate(held | changes)


def plan(folder: Path, **changes: Any) -> TuningPlan:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").touch()
    held = {"model": str(model), "engines": ["vllm==0.32.0"], "serve": {"max_model_len": 512, "env": {"A": "1"}}}
    return two.plan(**(held | changes))


def stack(wanted: TuningPlan, sight: Sight) -> Any:
    (source,) = wanted.models.values()
    assert sight.environment is not None
    return stack_of(wanted, source, sight.environment, sight.probe)


def remember(folder: Path, wanted: TuningPlan, sight: Sight, at: float = 1.0) -> None:
    """One study with a peak, as a run on that stack leaves it."""
    then = stack(wanted, sight)
    key = study_key(wanted, then, wanted.serve.flags)
    where = folder / "journals" / wanted.name
    with Journal(where) as journal:
        keep_plan(wanted, where)
        name = wanted.engines[0].name
        held = {"study": key, "plan": wanted.name, "model": "m", "machine": "Card", "fingerprint": then}
        journal.study(StudyOpened.model_validate(held | {"started_at": at, "facts": {"engine": name}}))
        records = [
            two.record(key, n, two.NEW, one, two.moved(two.NEW, one), role="finalist", wanted=wanted)
            for n, one in enumerate(two.space())
        ]
        for one in records:
            journal.trial(one)
        two.close(journal, key, records, wanted)


def looking(sight: Sight) -> Look:
    def look(_: EngineSpec) -> Sight:
        return sight

    return look


def nothing_new(distribution: str, installed: str, _: EnvironmentRequest) -> Release:
    return Release(distribution=distribution, installed=installed, state="none")


@pytest.fixture
def now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checked]:
    """Remembers a peak, then checks it against what the arguments say is here now."""
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    remember(tmp_path, plan(tmp_path), Sight(environment(), probe()))

    def check(sight: Sight | None = None, ask: Any = nothing_new, **changes: Any) -> Checked:
        return check_plan(plan(tmp_path, **changes), looking(sight or Sight(environment(), probe())), ask)

    return check


def moves(found: Checked) -> list[tuple[str, str]]:
    (peak,) = found.peaks
    return [(move.kind, move.name) for move in peak.moves]


def test_a_rebuilt_identical_environment_is_no_move(now) -> None:
    found = now(Sight(environment(key="other", directory=Path("/b"), python=Path("/b/bin/python")), probe()))
    assert (found.moved, found.peaks[0].state, found.launches) == (False, "stands", 0)


def test_only_the_driver(now) -> None:
    found = now(Sight(environment(), probe(gpus=[{"name": "Card", "driver_version": "590.2"}])))
    assert (moves(found), found.moved) == ([("driver", "driver")], True)


def test_a_variable_of_the_shell_that_reaches_the_engine_is_of_its_stack(now, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT", "CUDA_VISIBLE_DEVICES", "HOME_OF_MINE"):
        monkeypatch.setenv(name, "other")
    assert not now().moved
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")
    assert moves(now()) == [("env", "env.VLLM_ATTENTION_BACKEND")]
    assert moves(now(Sight(None, probe()))) == [("env", "env.VLLM_ATTENTION_BACKEND")]
    serve = {"max_model_len": 512, "env": {"A": "1", "VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}}
    (move,) = now(serve=serve).peaks[0].moves
    assert move.new == "TRITON_ATTN", "the plan's own wins, as it does at a launch"


def test_a_drafter_s_checkpoint_is_said_to_be_unwatched(now) -> None:
    drafting = {"drafter": {"none": {}, "eagle3": {"model": "org/head", "k": [2]}}}
    assert any("eagle3" in note and "not seen" in note for note in now(space=drafting).notes)


def test_what_a_cpu_engine_gets_anyway_is_no_variable_of_the_shell() -> None:
    shell = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "8"}
    assert shell_variables("cpu", shell) == {"VLLM_CPU_KVCACHE_SPACE": "8"}
    assert shell_variables("cuda", shell) == dict(sorted(shell.items()))


def test_only_torch_in_an_environment_rebuilt_from_a_looser_lock(now) -> None:
    loose = {**PACKAGES, "torch": "2.13.1"}
    found = now(Sight(environment(lock_sha256="b" * 64, packages=loose), probe(packages=loose)))
    assert moves(found) == [("torch", "torch")]


def test_another_lock_without_a_package_of_a_name_here_is_a_move_of_packages(now) -> None:
    assert moves(now(Sight(environment(lock_sha256="b" * 64), probe()))) == [("packages", "lock")]


def test_what_was_installed_into_the_environment_afterwards(now) -> None:
    found = now(Sight(environment(), probe(packages={**PACKAGES, "numpy": "2.5.0"})))
    assert moves(found) == [("packages", "numpy")]


def test_only_vllm_in_an_interpreter_that_was_upgraded_in_place(now) -> None:
    upgraded = probe(engine={"distribution": "vllm", "version": "0.33.0"}, packages={**PACKAGES, "vllm": "0.33.0"})
    assert moves(now(Sight(environment(), upgraded))) == [("vllm", "vllm")]


def test_only_the_models_files(now, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").write_text("{}")
    assert moves(now()) == [("model", "model.revision")]


def test_only_the_revision_of_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    at = {one: two.plan(engines=["vllm==0.32.0"], model={"id": "org/model", "revision": one}) for one in ("a", "b")}
    here = Sight(environment(), probe())
    remember(tmp_path, at["a"], here)
    assert moves(check_plan(at["b"], looking(here), nothing_new)) == [("model", "model.revision")]
    assert not check_plan(at["a"], looking(here), nothing_new).moved


def test_a_peak_whose_search_is_not_finished_stands_for_nothing(now, tmp_path: Path) -> None:
    with Journal(tmp_path / "journals" / "plan") as journal:
        (key,) = journal.studies()
        (closed,) = journal.closings(key)
        peak = {name: {**one, "confirmed": False} for name, one in (closed.peak or {}).items()}
        journal.peak(closed.model_copy(update={"at": closed.at + 1, "peak": peak}))
    found = now()
    assert (found.peaks, any("not finished" in note for note in found.notes)) == ((), True)


def test_a_peak_older_than_look_back_is_left_alone(now) -> None:
    assert any("older than look_back" in note for note in now(upgrades={"look_back": "1d"}).notes)


def test_only_an_environment_variable(now) -> None:
    found = now(serve={"max_model_len": 512, "env": {"A": "2"}})
    assert ("env", "env.A") in moves(found)
    assert {kind for kind, _ in moves(found)} == {"env"}


def test_only_a_fixed_flag(now) -> None:
    assert moves(now(serve={"max_model_len": 1024, "env": {"A": "1"}})) == [("settings", "serve flags")]


def test_only_the_workload(now) -> None:
    traffic = [{"name": "generate", "kind": "generate", "prompt_tokens": 65, "output_tokens": 64}]
    assert moves(now(workloads=traffic)) == [("workload", "generate")]


def test_only_the_host(now, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint.socket, "gethostname", lambda: "another")
    assert moves(now()) == [("host", "machine")]


def test_without_the_environment_the_rest_is_compared_and_the_engine_unknown(now) -> None:
    found = now(Sight(None, probe(), "its environment is not on this machine"))
    assert (found.peaks[0].state, found.moved) == ("unknown", False)
    other = now(Sight(None, probe(gpus=[{"name": "Card", "driver_version": "590.2"}]), "gone"))
    assert (other.peaks[0].state, moves(other)) == ("stale", [("driver", "driver")])


def test_a_stack_that_was_moved_back_has_its_peak(now, tmp_path: Path) -> None:
    driver = Sight(environment(), probe(gpus=[{"name": "Card", "driver_version": "590.2"}]))
    remember(tmp_path, plan(tmp_path), driver, at=2.0)
    assert now(driver).peaks[0].state == "stands"
    assert now().peaks[0].state == "stands"


def test_a_new_release_is_a_move_with_its_cost(now) -> None:
    asked = []

    def ask(distribution: str, installed: str, request: EnvironmentRequest) -> Release:
        asked.append((distribution, installed, request.requirement))
        return Release(distribution=distribution, installed=installed, state="new", version="0.33.0")

    found = now(ask=ask)
    assert asked == [("vllm", "0.32.0", "vllm==0.32.0")]
    assert (found.moved, 0 < found.launches <= found.most_launches) == (True, True)
    assert found.seconds == 30.0 * found.launches


def test_an_engine_without_a_peak_is_named_and_is_the_version_above_which_the_index_is_asked(now) -> None:
    asked = []

    def ask(distribution: str, installed: str, _: EnvironmentRequest) -> Release:
        asked.append(installed)
        return nothing_new(distribution, installed, _)

    found = now(ask=ask, engines=["vllm==0.32.0", "vllm==0.33.0"])
    assert asked == ["0.33.0"]
    assert any("no peak yet" in note for note in found.notes)


def test_the_budget_caps_what_is_proposed(now) -> None:
    found = now(Sight(environment(lock_sha256="b" * 64), probe()), budget={"launches": 4})
    assert (found.launches, found.most_launches) == (4, 4)
