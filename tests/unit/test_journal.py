"""The journal keeps every number, whatever dies, and says what it had to leave out."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trackers
from search_spaces.configuration import Configuration
from trackers.entries import StudyClosed, StudyOpened, TrialStarted
from trackers.journal import Journal
from trackers.problems import JournalBusy, JournalProblem
from trackers.record_json import encode, key_bytes
from trackers.records import Estimate, Launch, Measurement, StackFingerprint, TrialRecord, WorkloadRef

EDIT = WorkloadRef(name="edit", sha256="e" * 64)
STACK = StackFingerprint(items={"vllm": "0.32.0", "torch": "2.14.0"})
METRICS = {f"p{p}_{name}_ms": 1.5 * p for p in (50, 90, 95, 99) for name in ("ttft", "tpot", "itl", "e2el")}


def window(launch: int = 0, number: int = 0, **changes: object) -> Measurement:
    held = {
        "workload": EDIT,
        "launch": launch,
        "window": number,
        "started_at": 100.0 + 10 * launch + number,
        "duration_s": 1.0,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 100,
        "total_output_tokens": 200,
        "metrics": {"decode_tok_s": 50.0 + number, **METRICS},
    }
    return Measurement.model_validate(held | changes)


def started(trial_id: str = "t1", number: int = 1) -> TrialStarted:
    return TrialStarted(
        trial_id=trial_id,
        study="s",
        number=number,
        role="search",
        configuration=Configuration(values={"drafter": "ngram", "k": number}),
        fingerprint=STACK,
        workloads=(EDIT,),
        started_at=90.0,
    )


def record(
    trial_id: str = "t1", number: int = 1, windows: tuple[Measurement, ...] = (), **changes: object
) -> TrialRecord:
    start = started(trial_id, number)
    held = {name: getattr(start, name) for name in TrialStarted.model_fields}
    held |= {"state": "measured", "reason": "stable", "windows": windows, "duration_s": 30.0}
    estimate = Estimate(value=50.0, half_width=1.0, launches=1, windows=len(windows), ending="stable")
    return TrialRecord.model_validate(held | {"estimates": {"edit/decode_tok_s": estimate}} | changes)


def test_what_was_written_is_read_back_equal(tmp_path: Path) -> None:
    windows = (window(), window(number=1))
    opened = StudyOpened(study="s", plan="p", model="m", machine="cpu", fingerprint=STACK, started_at=1.0)
    closed = StudyClosed(study="s", at=2.0, verdict="peak: ngram k=8", peak={"k": 8})
    with Journal(tmp_path) as journal:
        journal.study(opened)
        journal.begin(started())
        journal.launch("t1", Launch(launch=0, started_at=95.0, ready_s=4.0))
        for one in windows:
            journal.window("t1", one)
        journal.trial(record(windows=windows))
        journal.peak(closed)
        journal.note({"text": "snow ☃ and a\nline break"})
        journal.note({"moved": True}, kind="shift")
    with Journal(tmp_path) as journal:
        assert journal.messages == []
        assert journal.studies() == {"s": opened}
        assert journal.records() == [record(windows=windows)]
        assert journal.records("other") == []
        assert journal.windows("t1") == list(windows)
        assert journal.launches("t1") == [Launch(launch=0, started_at=95.0, ready_s=4.0)]
        assert journal.closings("s") == [closed]
        assert journal.notes() == [{"text": "snow ☃ and a\nline break"}]
        assert journal.notes("shift") == [{"moved": True}]
        assert journal.orphans() == []


def test_each_line_is_synced_before_the_call_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (sizes.append(os.fstat(file).st_size), real(file))[1])
    with Journal(tmp_path) as journal:
        journal.window("t1", window())
        assert sizes == [journal.path.stat().st_size]


def test_a_window_and_a_trial_written_again_are_there_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.window("t1", window())
        assert not journal.window("t1", window())
        assert journal.trial(record(windows=(window(),)))
        size = journal.path.stat().st_size
        assert not journal.trial(record(windows=(window(),)))
        assert journal.path.stat().st_size == size
        assert len(journal.windows("t1")) == len(journal.records()) == 1


def test_another_window_under_the_same_number_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.window("t1", window())
        with pytest.raises(JournalProblem, match="already holds another window"):
            journal.window("t1", window(duration_s=2.0))
        assert journal.windows("t1") == [window()]


def test_of_a_launch_said_twice_the_last_word_counts(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.launch("t1", Launch(launch=0, started_at=1.0, ready_s=None))
        journal.launch("t1", Launch(launch=0, started_at=1.0, ready_s=5.0, stopped_s=2.0))
    with Journal(tmp_path, read_only=True) as journal:
        assert [launch.ready_s for launch in journal.launches("t1")] == [5.0]


def test_a_trial_cut_off_keeps_its_windows_and_can_be_closed(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.begin(started())
        journal.launch("t1", Launch(launch=0, started_at=95.0, ready_s=4.0))
        journal.window("t1", window())
        journal.window("t1", window(number=1))
        journal.begin(started("t2", 2))
        journal.trial(record("t2", 2))
    with Journal(tmp_path) as journal:
        (orphan,) = journal.orphans()
        closed = orphan.closed("lost", "the driver died")
        assert (closed.state, closed.reason, closed.estimates) == ("lost", "the driver died", {})
        assert closed.windows == (window(), window(number=1))
        assert closed.duration_s == pytest.approx(101.0 + 1.0 - 90.0)
        journal.trial(closed)
        assert journal.orphans() == []
        assert journal.windows("t1") == [window(), window(number=1)]


def test_windows_without_a_beginning_are_named(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.window("t9", window())
    with Journal(tmp_path) as journal:
        assert "t9 has windows or launches but no beginning" in journal.messages[0]


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_a_torn_last_line_is_dropped_with_a_message_and_writing_goes_on(tmp_path: Path, kept: int) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(record())
        good = journal.path.read_bytes()
        journal.trial(record("t2", 2))
    torn = journal.path.read_bytes()[len(good) :][:kept]
    journal.path.write_bytes(good + torn)
    with Journal(tmp_path) as journal:
        assert f"cut short ({len(torn)} bytes)" in journal.messages[0]
        assert journal.path.read_bytes() == good
        journal.trial(record("t3", 3))
    with Journal(tmp_path) as journal:
        assert journal.messages == []
        assert [one.trial_id for one in journal.records()] == ["t1", "t3"]


def test_a_last_line_that_lacks_only_its_line_feed_is_kept(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(record())
    journal.path.write_bytes(journal.path.read_bytes()[:-1])
    with Journal(tmp_path) as journal:
        journal.trial(record("t2", 2))
    with Journal(tmp_path) as journal:
        assert journal.messages == []
        assert [one.trial_id for one in journal.records()] == ["t1", "t2"]


def test_a_reader_beside_the_writer_repairs_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path) as writer:
        writer.trial(record())
        with writer.path.open("ab") as file:
            file.write(b'{"v":1,"ki')
        size = writer.path.stat().st_size
        with Journal(tmp_path, read_only=True) as reader:
            assert [one.trial_id for one in reader.records()] == ["t1"]
        assert writer.path.stat().st_size == size


def test_a_repeated_line_is_left_out_with_a_message(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.window("t1", window())
        journal.trial(record(windows=(window(),)))
    journal.path.write_bytes(b"".join(line * 2 for line in journal.path.read_bytes().splitlines(keepends=True)))
    with Journal(tmp_path) as journal:
        assert "left out as repeated: line 2, 4" in journal.messages[0]
        assert journal.records() == [record(windows=(window(),))]
        assert journal.windows("t1") == [window()]


def test_a_damaged_line_is_named_and_costs_no_other(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for number in range(1, 6):
            journal.begin(started(f"t{number}", number))
            journal.trial(record(f"t{number}", number))
    lines = journal.path.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b"stable", b"staple")
    journal.path.write_bytes(b"".join(lines))
    with Journal(tmp_path) as journal:
        assert "left out as damaged: line 6; all others are read" in journal.messages[0]
        assert [one.trial_id for one in journal.records()] == ["t1", "t2", "t4", "t5"]
        assert [orphan.start.trial_id for orphan in journal.orphans()] == ["t3"]
        assert lines[5] in journal.path.read_bytes()


def test_two_lines_run_together_cost_only_the_first(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for number in (1, 2, 3):
            journal.trial(record(f"t{number}", number))
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(lines[0][:100] + lines[1] + lines[2])
    with Journal(tmp_path) as journal:
        assert [one.trial_id for one in journal.records()] == ["t2", "t3"]


def test_a_newer_version_is_one_clear_error_and_the_file_is_untouched(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(record())
    newer = journal.path.read_bytes() + b'{"v":2,"kind":"trial","payload":"?"}\n' + b'{"v":2,"ki'
    journal.path.write_bytes(newer)
    with pytest.raises(JournalProblem, match=r"Line 2 of .* is of journal version 2; this repeak reads 1") as problem:
        Journal(tmp_path)
    assert "version of repeak that wrote it" in problem.value.hint
    assert journal.path.read_bytes() == newer
    with pytest.raises(JournalProblem, match="version 2"):
        Journal(tmp_path)


@pytest.mark.parametrize("content", [b"name,value\n1,2\n", b"hello", b'{"v":"x"}\n'])
def test_a_file_that_is_no_journal_is_refused_and_untouched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(JournalProblem, match="not a journal"):
        Journal(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == content


def test_a_record_that_this_version_cannot_read_is_named_by_its_line(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal._append("trial", ("t1",), {"trial_id": "t1", "colour": "red"})
        with pytest.raises(JournalProblem, match=r"Line 1 of .* holds a trial that this version cannot read"):
            journal.records()


def test_a_full_disk_leaves_the_file_as_it_was_and_writing_can_go_on(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(record())
        before = journal.path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(JournalProblem, match="could not be written") as problem:
                journal.trial(record("t2", 2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "Free space" in problem.value.hint
        assert journal.path.read_bytes() == before
        assert [one.trial_id for one in journal.records()] == ["t1"]
        assert journal.trial(record("t2", 2))
    with Journal(tmp_path) as journal:
        assert [one.trial_id for one in journal.records()] == ["t1", "t2"]


def test_a_half_written_line_that_cannot_be_cut_off_at_once_is_cut_off_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [False]

    def write(file: int, data: memoryview) -> int:
        if full[0]:
            os.write(file, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(file, data[:50])

    def no_truncate(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Journal(tmp_path, write=write) as journal:
        journal.trial(record())
        full[0] = True
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", no_truncate)
            with pytest.raises(JournalProblem, match="No space left"):
                journal.trial(record("t2", 2))
        full[0] = False
        journal.trial(record("t3", 3))
    with Journal(tmp_path) as journal:
        assert journal.messages == []
        assert [one.trial_id for one in journal.records()] == ["t1", "t3"]


def test_a_file_that_somebody_else_changed_is_not_written(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.trial(record())
        with journal.path.open("ab") as file:
            file.write(b"x\n")
        with pytest.raises(JournalProblem, match="changed by somebody else"):
            journal.trial(record("t2", 2))


def test_a_second_driver_is_told_who_holds_it_and_gets_it_afterwards(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalBusy, match=rf"process {os.getpid()}"):
        Journal(tmp_path)
    Journal(tmp_path).close()


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from trackers.journal import Journal; "
        "j = Journal(pathlib.Path(sys.argv[1])); j.note({'a': 1}); "
        "print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(trackers.__file__).parent.parent,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(JournalBusy, match=str(child.pid)):
            Journal(tmp_path)
    finally:
        child.kill()
        child.communicate()
    with Journal(tmp_path) as journal:
        assert journal.notes() == [{"a": 1}]


def test_a_metric_that_is_not_finite_is_left_out_with_a_message_and_the_window_is_kept(
    tmp_path: Path,
) -> None:
    bad = window(metrics={"decode_tok_s": 5.0, "p99_itl_ms": float("nan"), "x": float("inf")})
    with Journal(tmp_path) as journal:
        journal.window("t1", bad)
        journal.trial(record(windows=(bad,)))
        assert journal.windows("t1")[0].metrics == {"decode_tok_s": 5.0}
        assert journal.messages == ["t1, window 0: p99_itl_ms, x is not finite and is left out."]


def test_what_could_not_be_read_back_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for bad in (window(duration_s=float("nan")), window(extra={"text": "\ud800"})):
            with pytest.raises(JournalProblem, match="cannot be kept as JSON"):
                journal.window("t1", bad)
        with pytest.raises(JournalProblem, match="cannot be kept as JSON"):
            journal.note({"x": float("nan")})
        assert journal.path.stat().st_size == 0


def test_hostile_text_comes_back_unchanged_and_forges_no_line(tmp_path: Path) -> None:
    text = 'a"b\n{"v":1,"kind":"trial","at":1,"id":["x"],"body":{},"crc":"00000000"}\n\x00 \u2028 ☃ \\" ]'
    with Journal(tmp_path) as journal:
        journal.begin(started(text))
        journal.trial(record(text, reason=text))
    with Journal(tmp_path) as journal:
        assert journal.messages == []
        assert [(one.trial_id, one.reason) for one in journal.records()] == [(text, text)]
        assert journal.orphans() == []


def test_an_unreadable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalProblem, match="cannot be opened") as problem:
        Journal(tmp_path / "file" / "study")
    assert "permissions" in problem.value.hint


def test_runs_known_to_a_store_are_remembered_by_store(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.sent("sqlite:///a", "t1", "r1")
        journal.sent("sqlite:///b", "t1", "r2")
        assert journal.sent_runs("sqlite:///a") == {"t1": "r1"}
        assert journal.sent_runs("sqlite:///c") == {}
        assert journal.sent_uids("sqlite:///a") == {"t1"}
        journal.sent("sqlite:///a", "t2", "r3")
        journal.sent("sqlite:///c", "t1", "r4")
        assert [journal.sent_uids(f"sqlite:///{store}") for store in "abc"] == [{"t1", "t2"}, {"t1"}, {"t1"}]


def test_ten_thousand_records_are_read_in_under_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = tuple(window(launch, number) for launch in (0, 1) for number in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda file: None)
        with Journal(tmp_path) as journal:
            journal.begin(started("t0", 0))
            journal.trial(record("t0", 0, windows))
            for one in windows:
                journal.window("t0", one)
    bodies = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
    texts = [(body["kind"], body["id"][1:], json.dumps(body["body"])) for body in bodies]
    with journal.path.open("wb") as file:
        for trial in range(10_000):
            for kind, key, text in texts:
                body = text.replace('"t0"', f'"t{trial}"').encode()
                file.write(encode(kind, 1.0, key_bytes(f"t{trial}", *key), body)[0])
    begun = time.process_time()
    with Journal(tmp_path) as journal:
        assert len(journal.records()) == 10_000
        assert journal.orphans() == []
    spent = time.process_time() - begun
    assert spent < 5.0
