"""What is taken up after a check, in which order and after which study; and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import two_engines as two
from clocks import Clocks

from orchestrator import upgrade as upgrading
from orchestrator.check import Checked, Move, PeakCheck
from orchestrator.errors import EnvironmentBroken, LockHeld
from orchestrator.library import glances
from orchestrator.releases import Release
from orchestrator.upgrade import Job, jobs, upgrade, with_index
from orchestrator.window import Window
from trackers.entries import StudyOpened
from trackers.journal import Journal

NOW = two.EPOCH + 100_000.0
NEW = Release(distribution="vllm", installed="0.32.0", state="new", version="0.33.0", engine="vllm-0.32.0")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    two.write(tmp_path)
    return tmp_path


def stale(engine: str, kind: str = "driver") -> PeakCheck:
    (shelf,) = [one for one in glances("plan") if one.opened.facts["engine"] == engine]
    move = Move.model_validate({"kind": kind, "name": kind, "old": "1", "new": "2"})
    return PeakCheck(plan="plan", engine=engine, study=shelf.opened.study, state="stale", moves=(move,))


def told(found: list[Job]) -> list[tuple[str, str, bool]]:
    return [(job.scope.study, job.scope.old.opened.facts["engine"], job.cold) for job in found]


def test_where_nothing_moved_nothing_is_taken_up() -> None:
    assert jobs(two.plan(), Checked(), NOW) == []


def test_a_plan_that_never_ran_is_told_to_be_tuned_first() -> None:
    wanted = two.plan("never")
    found = upgrading.checked(wanted, pytest.fail)
    assert jobs(wanted, found, NOW) == []
    assert "no peak yet" in upgrading.Upgraded(plan="never", found=found).text()


def test_the_newest_version_comes_first_and_a_release_follows_the_latest_peak() -> None:
    found = jobs(two.plan(), Checked(peaks=(stale(two.OLD), stale(two.NEW)), releases=(NEW,)), NOW)
    assert told(found) == [
        ("vllm-0.33.0", two.NEW, False),
        (two.NEW, two.NEW, False),
        (two.OLD, two.OLD, False),
    ]
    assert found[0].scope.facts == {"follows": two.NEW, "requirement": "vllm==0.33.0"}
    assert found[1].why == "vllm-0.32.0: driver 1 -> 2"


@pytest.mark.parametrize("kind", ["workload", "settings"])
def test_other_traffic_makes_a_cold_search(kind: str) -> None:
    (job,) = jobs(two.plan(), Checked(peaks=(stale(two.NEW, kind),)), NOW)
    assert job.cold


def test_an_engine_that_the_plan_gained_is_taken_up_without_being_asked_for() -> None:
    wanted = two.plan(engines=["vllm==0.27.1", "vllm==0.32.0", "vllm==0.33.0"])
    assert told(jobs(wanted, Checked(), NOW)) == [("vllm-0.33.0", two.NEW, False)]


def test_a_version_that_was_followed_to_is_one_of_the_engines_and_its_follower_has_the_same_root(home: Path) -> None:
    with Journal(home / "journals" / "plan") as journal:
        stack, facts = two.stack("vllm-0.33.0"), {"engine": "vllm-0.33.0", "follows": two.NEW}
        held: dict[str, Any] = {
            "study": "c" * 12,
            "plan": "plan",
            "model": "m",
            "machine": "Card",
            "fingerprint": stack,
        }
        facts |= {"requirement": "vllm==0.33.0"}
        journal.study(StudyOpened.model_validate(held | {"started_at": two.EPOCH + 9, "facts": facts}))
        one = two.configuration()
        records = [two.record("c" * 12, n, "vllm-0.33.0", one, 100.0, role="finalist") for n in range(2)]
        for each in records:
            journal.trial(each)
        two.close(journal, "c" * 12, records, two.plan())
    moved = stale("vllm-0.33.0")
    later = NEW.model_copy(update={"version": "0.34.0", "engine": "vllm-0.33.0"})
    found = jobs(two.plan(), Checked(peaks=(moved,), releases=(later,)), NOW)
    assert told(found) == [("vllm-0.34.0", "vllm-0.33.0", False), ("vllm-0.33.0", "vllm-0.33.0", False)]
    assert [job.scope.facts["follows"] for job in found] == [two.NEW, two.NEW]


def test_peaks_that_look_back_leaves_alone_start_nothing() -> None:
    wanted = two.plan(upgrades={"look_back": "1d"})
    assert jobs(wanted, Checked(releases=(NEW,)), NOW + 86400 * 2) == []


def run(found: Checked, window: Window, monkeypatch: pytest.MonkeyPatch, build: Any, said: list[str]) -> Any:
    monkeypatch.setattr(upgrading, "make_environment", build)
    return upgrade(two.plan(), found, lambda _: pytest.fail("is tuned"), window, said.append, {}, lambda: NOW)


def test_a_window_that_is_over_leaves_everything_for_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(Clocks(), length_s=0.0)
    done = run(Checked(releases=(NEW,)), window, monkeypatch, lambda *_, **__: pytest.fail("is built"), [])
    assert (done.left, done.exit_code) == (["vllm-0.33.0: vllm==0.33.0 is new"], 0)
    assert "left for another run" in done.text()


def test_a_build_that_fails_is_remembered_and_a_build_that_waits_for_another_is_not(monkeypatch, home: Path) -> None:
    def fails(*_: object, **__: object) -> None:
        raise EnvironmentBroken("no compiler", "")

    done = run(Checked(releases=(NEW,)), Window(Clocks()), monkeypatch, fails, said := [])
    assert (done.exit_code, said[-1]) == (3, "vllm-0.33.0: no compiler")
    assert [file.name for file in (home / "environments").iterdir()] == [".broken-vllm==0.33.0"]

    def waits(*_: object, **__: object) -> None:
        raise LockHeld("another makes it", "")

    monkeypatch.setattr(upgrading, "remember_broken", lambda *_: pytest.fail("is remembered"))
    with pytest.raises(LockHeld):
        run(Checked(releases=(NEW,)), Window(Clocks()), monkeypatch, waits, [])


def test_an_index_that_is_away_is_said_where_nothing_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Release(distribution="vllm", installed="0.32.0", state="offline", why="dns error")
    done = run(Checked(releases=(away,)), Window(Clocks()), monkeypatch, None, [])
    assert "releases of vllm could not be looked up: dns error" in done.text()
    assert "Nothing moved" in done.text()


def test_a_further_index_comes_beside_those_that_pip_has(tmp_path: Path) -> None:
    mine = {"PIP_EXTRA_INDEX_URL": "https://mine.example/simple", "PIP_CONFIG_FILE": "/dev/null"}
    found = with_index(mine, "https://nightly.example/simple")
    assert found["UV_INDEX"] == "https://mine.example/simple https://nightly.example/simple"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert with_index(mine, None) == mine
