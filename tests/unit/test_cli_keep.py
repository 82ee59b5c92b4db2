"""check, schedule, sync and clean on the command line: what they say, their exit codes, what they never remove."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import two_engines as two
from click.testing import CliRunner, Result

from orchestrator import cli_keep
from orchestrator.check import Checked, Move, PeakCheck
from orchestrator.kept_plan import keep_plan
from orchestrator.releases import Release
from trackers.entries import StudyClosed, StudyOpened
from trackers.journal import Journal
from trackers.records import StackFingerprint
from trackers.sync import SyncCounts


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    return tmp_path


def ran(command, *words: str) -> Result:
    return CliRunner().invoke(command, list(words), standalone_mode=False, catch_exceptions=False)


def environment(home: Path, name: str, lock: str) -> Path:
    folder = home / "environments" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("x" * 2_000_000)
    held = {"key": name, "requirement": "vllm==1.0", "version": "1.0", "flavour": "cpu", "lock_sha256": lock}
    held |= {"python": "x", "directory": "x", "packages": {}, "adopted": False}
    (folder / "manifest.json").write_text(json.dumps({"environment": held}))
    return folder


def study(home: Path, lock: str, *, peak: bool) -> None:
    with Journal(home / "journals" / "plan") as journal:
        stack = StackFingerprint(items={"lock": lock[:16]})
        held = {"study": f"s{lock[:5]}", "plan": "plan", "model": "m", "machine": "c", "fingerprint": stack}
        journal.study(StudyOpened.model_validate(held | {"started_at": 1.0}))
        if peak:
            journal.peak(StudyClosed(study=held["study"], at=2.0, verdict="done", peak={"generate": {}}))


def test_clean_removes_only_with_yes_and_never_what_a_peak_stands_on(home: Path) -> None:
    kept, free = environment(home, "a", "a" * 64), environment(home, "b", "b" * 64)
    study(home, "a" * 64, peak=True)
    study(home, "b" * 64, peak=False)
    shown = ran(cli_keep.clean).output
    assert "a peak of plan stands on it" in shown
    assert "may go" in shown
    assert (kept.exists(), free.exists()) == (True, True)
    found = json.loads(ran(cli_keep.clean, "--yes", "--json").output)
    told = sorted((one["name"], one["size_mb"], one["removed"]) for one in found)
    assert told == [("a", 2.0, False), ("b", 2.0, True)]
    assert (kept.exists(), free.exists()) == (True, False)


def test_clean_keeps_what_an_unfinished_study_was_measured_on(home: Path) -> None:
    folder = environment(home, "a", "a" * 64)
    study(home, "a" * 64, peak=False)
    with Journal(home / "journals" / "plan") as journal:
        journal.trial(two.record("saaaaa", 1, "vllm-0.32.0", two.configuration(), 10.0))
    assert "a study of plan is not finished" in ran(cli_keep.clean, "--yes").output
    assert folder.exists()


def test_clean_leaves_the_latest_that_a_plan_keeps_and_what_a_peak_stands_on_comes_on_top(home: Path) -> None:
    old, late, standing = (environment(home, name, name * 64) for name in "abc")
    for age, folder in enumerate((standing, late, old)):
        os.utime(folder, (1e9 - age, 1e9 - age))
    study(home, "c" * 64, peak=True)
    keep_plan(two.plan(upgrades={"keep": 1}), home / "journals" / "plan")
    assert "a plan keeps the latest" in ran(cli_keep.clean, "--yes").output
    assert [folder.exists() for folder in (old, late, standing)] == [False, True, True]


def test_clean_keeps_what_it_cannot_read_and_what_a_damaged_journal_may_speak_for(home: Path) -> None:
    unread, spoken = environment(home, "a", "a" * 64), environment(home, "b", "b" * 64)
    (unread / "manifest.json").write_text("{")
    study(home, "b" * 64, peak=True)
    file = home / "journals" / "plan" / "journal.jsonl"
    first, *_ = file.read_text().splitlines()
    file.write_text(f"{first}\n{{broken\n{first}\n")
    ran(cli_keep.clean, "--yes")
    assert (unread.exists(), spoken.exists()) == (True, True)


def test_clean_keeps_what_a_process_runs_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = environment(home, "a", "a" * 64)

    engine = SimpleNamespace(info={"pid": 7, "cmdline": [str(folder / "bin" / "python"), "-m", "vllm"]})
    monkeypatch.setattr(cli_keep.psutil, "process_iter", lambda _: [engine])
    assert "process 7 runs from it" in ran(cli_keep.clean, "--yes").output
    assert folder.exists()


def checked(monkeypatch: pytest.MonkeyPatch, home: Path, found: Checked) -> None:
    two.write(home)
    monkeypatch.setattr(cli_keep, "checked", lambda *_: found)


def test_check_ends_with_10_and_says_what_moved_and_what_it_costs(monkeypatch, home: Path) -> None:
    move = Move(kind="driver", name="driver", old="580.1", new="590.2")
    peak = PeakCheck(plan="plan", engine="vllm-0.32.0", study="s", state="stale", moves=(move,))
    new = Release(distribution="vllm", installed="0.32.0", state="new", version="0.33.0", broken={"0.34.0": "no part"})
    checked(monkeypatch, home, Checked(peaks=(peak,), releases=(new,), launches=20, most_launches=40, seconds=600))
    result = ran(cli_keep.check)
    assert result.return_value == 10
    for said in ("stale", "driver 580.1 -> 590.2", "0.33.0 is new", "0.34.0 is listed and cannot be had", "at most 40"):
        assert said in result.output
    assert json.loads(ran(cli_keep.check, "--json").output)["plan"]["moved"] is True


def test_check_ends_with_0_where_nothing_moved_and_says_that_the_index_was_away(monkeypatch, home: Path) -> None:
    peak = PeakCheck(plan="plan", engine="vllm-0.32.0", study="s", state="stands")
    away = Release(distribution="vllm", installed="0.32.0", state="offline", why="refused")
    checked(monkeypatch, home, Checked(peaks=(peak,), releases=(away,)))
    result = ran(cli_keep.check)
    assert result.return_value == 0
    assert "the index did not answer" in result.output


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        (SyncCounts(sent=2, present=1), 0),
        (SyncCounts(sent=1, failed=1, problems=("no",)), 1),
        (SyncCounts(outage=True), 1),
    ],
)
def test_sync_counts_and_ends_with_1_where_something_is_missing(monkeypatch, home: Path, counts, code) -> None:
    two.write(home)
    monkeypatch.setattr(cli_keep, "sync", lambda *_, verify: counts)
    result = ran(cli_keep.sync_command, "plan")
    assert (result.return_value, f"{counts.sent} sent" in result.output) == (code, True)


def test_sync_leaves_a_journal_that_a_run_holds_to_that_run(home: Path) -> None:
    two.write(home)
    with Journal(home / "journals" / "plan"):
        assert ran(cli_keep.sync_command).return_value == 6


def test_schedule_prints_without_touching_and_refuses_a_time_that_is_none(monkeypatch, home: Path) -> None:
    file = home / "plan.yaml"
    file.write_text(two.plan().model_dump_json(by_alias=True, exclude_defaults=True))
    monkeypatch.setattr(cli_keep, "find_any_plan", lambda _: two.plan())
    monkeypatch.setattr(cli_keep, "run", lambda *_: pytest.fail("nothing is asked for"))
    assert "OnCalendar=*-*-* 02:00:00" in ran(cli_keep.schedule, str(file), "--budget", "2h").output
    assert "0 2 * * *" in ran(cli_keep.schedule, str(file), "--cron").output
    assert '"--until" "06:00"' in ran(cli_keep.schedule, str(file), "--until", "06:00").output
    for words in (("--at", "25:00"), ("--budget", "soon"), ("--until", "6")):
        result = CliRunner().invoke(cli_keep.schedule, [str(file), *words])
        assert result.exit_code == 2


def test_a_schedule_is_taken_away_although_its_plan_is_gone(monkeypatch, home: Path) -> None:
    asked = []
    monkeypatch.setattr(cli_keep, "uninstall", lambda what, *_: asked.append(what) or ["a.timer"])
    assert "removed a.timer" in CliRunner().invoke(cli_keep.schedule, [str(home / "gone.yaml"), "--uninstall"]).output
    assert asked == [str(home / "gone.yaml")]
