"""An engine server is ready or dead, never unknown, and nothing of it is left, whoever dies first."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.clock import SystemClock
from orchestrator.engine_server import EngineServer, ServerLimits
from orchestrator.errors import EngineFailed, Interrupted
from orchestrator.janitor import Running, sweep
from orchestrator.process_tree import Process, cookie_holders, descendants, identify, running

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
RUDE = [sys.executable, str(TESTS / "fakes" / "rude_engine.py")]
LOGS = TESTS / "fixtures" / "logs"
LIMITS = ServerLimits(
    start_timeout_s=30,
    first_request_timeout_s=20,
    http_timeout_s=2,
    stop_grace_s=2,
    tree_grace_s=0.5,
    orphan_grace_s=0.5,
)
SILENT: Callable[[str], None] = lambda _: None


class LateClock(SystemClock):
    """Tells the time of day so many seconds late, as if the log had stood still."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    def time(self) -> float:
        return super().time() + self.late_s


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    waiter, clock = threading.Event(), SystemClock()
    deadline = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > deadline:
            return False
        waiter.wait(0.02)
    return True


class Bench:
    """Makes servers on rude engines, and knows whether anything of them is left."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.cookie = directory, f"test-{uuid4().hex}"
        self.running_dir = directory / "running"
        self.seen: set[Process] = set()
        self.scratches: set[str] = set()

    def server(self, *flags: str, limits: ServerLimits = LIMITS, **more: object) -> EngineServer:
        options = {"clock": SystemClock(), "running_dir": self.running_dir, **more}
        env = {"PATH": os.environ["PATH"], **options.pop("env", {})}  # type: ignore[dict-item]
        argv = options.pop("argv", [*RUDE, *flags])
        return EngineServer(
            argv,
            env,
            run_dir=self.directory / "run",
            cookie=self.cookie,
            limits=limits,
            **options,  # type: ignore[arg-type]
        )

    def owner(self, mode: str, *flags: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(TESTS / "fakes" / "owner.py"), self.directory / "run", self.running_dir]
        return subprocess.Popen(
            [*map(str, argv), self.cookie, mode, *RUDE, *flags],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    def look(self) -> set[Process]:
        self.scratches |= {entry.scratch for entry in self.entries()}
        self.seen |= set(cookie_holders(self.cookie))
        return self.seen

    def gone(self) -> bool:
        left = any(running(who) for who in self.look()) or cookie_holders(self.cookie)
        return not left and not any(Path(one).exists() for one in self.scratches)

    def entries(self) -> list[Running]:
        return [Running.model_validate_json(path.read_bytes()) for path in self.running_dir.glob("*.json")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for who in cookie_holders(bench.cookie):
        os.kill(who.pid, signal.SIGKILL)


def test_a_server_is_ready_once_it_generated_and_is_gone_once_stopped(bench: Bench) -> None:
    reasons: list[str] = []
    with bench.server() as server:
        assert not server.alive()
        ready = server.start(reasons.append)
        assert (ready.model_id, ready.max_model_len, ready.version) == ("m", 2048, "0.0.1")
        assert ready.base_url == f"http://127.0.0.1:{ready.port}"
        assert ready.ready_s > 0
        assert "loading" in reasons
        assert server.alive()
        assert server.failure() is None
        assert len(bench.look()) == 2
        stopped = server.stop()
    assert (stopped.killed, stopped.left) == (0, ())
    assert bench.gone()
    assert server.stop() is stopped
    assert server.failure() is None
    assert not server.alive()
    assert bench.entries() == []


def test_a_running_engine_is_registered_with_all_three_identities(bench: Bench) -> None:
    with bench.server() as server:
        ready = server.start(SILENT)
        (entry,) = bench.entries()
        assert entry.owner == identify(os.getpid())
        assert entry.engine == identify(ready.pid)
        assert entry.watchdog is not None
        assert running(entry.watchdog)
        assert entry.cookie == bench.cookie


def test_the_watchdog_stands_apart_from_its_owner(bench: Bench) -> None:
    with bench.server() as server:
        server.start(SILENT)
        (entry,) = bench.entries()
        assert entry.watchdog is not None
        pid = entry.watchdog.pid
        assert os.getsid(pid) == pid
        assert os.getpgid(pid) != os.getpgid(0)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent != os.getpid()


def test_the_engine_holds_no_pipe_of_the_watchdog_and_no_secret_is_in_an_argument(bench: Bench) -> None:
    with bench.server() as server:
        ready = server.start(SILENT)
        links = [str(handle.readlink()) for handle in Path(f"/proc/{ready.pid}/fd").iterdir()]
        assert not [link for link in links if link.startswith("pipe:")]
        assert os.getsid(ready.pid) == ready.pid
        environment = Path(f"/proc/{ready.pid}/environ").read_bytes().split(b"\0")
        assert {f"REPEAK_COOKIE={bench.cookie}".encode(), b"SPT_NOENV=1"} <= set(environment)
        for who in bench.look():
            assert bench.cookie not in Path(f"/proc/{who.pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (
            ["--say", str(LOGS / "v0.32.0_fail_kv_pool_too_small.log"), "--exit", "1"],
            "kv_below_max_model_len",
        ),
        (["--say", str(LOGS / "v0.32.0_fail_unknown_flag.log"), "--exit", "2"], "unknown_flag"),
        (["--kill-self", str(int(signal.SIGILL))], "illegal_instruction"),
        (["--exit", "3"], "unknown"),
    ],
)
def test_an_engine_that_dies_at_its_start_is_told_at_once_with_its_cause(
    bench: Bench, flags: list[str], cause: str
) -> None:
    server = bench.server(*flags)
    with pytest.raises(EngineFailed) as failed:
        server.start(SILENT)
    failure = server.failure()
    assert failure is not None
    assert failure.cause == cause
    assert failed.value.message == failure.message
    assert str(server.log_path) in failed.value.hint
    assert bench.gone()
    assert bench.entries() == []


def test_a_program_that_is_not_there_is_an_environment_failure(bench: Bench) -> None:
    server = bench.server(argv=["/nowhere/bin/vllm"])
    with pytest.raises(EngineFailed):
        server.start(SILENT)
    failure = server.failure()
    assert failure is not None
    assert (failure.cause, failure.kind) == ("missing_package", "environment")
    assert "/nowhere/bin/vllm" in failure.evidence
    assert eventually(bench.gone)


@pytest.mark.parametrize(
    ("flags", "limits", "evidence"),
    [
        (["--never-listen"], {"start_timeout_s": 1.0}, "not ready after 1 s; last: loading"),
        (["--hang-health"], {"start_timeout_s": 1.5, "http_timeout_s": 0.3}, "not ready after 1.5 s"),
        (["--hang-after=0"], {"first_request_timeout_s": 0.5}, "a one-token request took more than 0.5 s"),
    ],
)
def test_an_engine_that_is_not_ready_in_time_is_ended_and_said_so(
    bench: Bench, flags: list[str], limits: dict[str, float], evidence: str
) -> None:
    server = bench.server(*flags, limits=ServerLimits(**{**LIMITS.__dict__, **limits}))
    with pytest.raises(EngineFailed):
        server.start(SILENT)
    failure = server.failure()
    assert failure is not None
    assert failure.cause == "start_timed_out"
    assert evidence in failure.evidence
    assert bench.gone()


@pytest.mark.parametrize(
    ("flag", "evidence"),
    [("--die-after=0", "AssertionError: this engine serves no more"), ("--refuse", "got status 500")],
)
def test_healthy_but_dead_at_the_first_request_is_not_ready(bench: Bench, flag: str, evidence: str) -> None:
    server = bench.server(flag)
    with pytest.raises(EngineFailed):
        server.start(SILENT)
    failure = server.failure()
    assert failure is not None
    assert failure.cause == "crashed_under_load"
    assert evidence in failure.evidence
    assert bench.gone()


def complete(port: int) -> None:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    link.request("POST", "/v1/completions", "{}")
    with pytest.raises((OSError, http.client.HTTPException)):
        link.getresponse()
    link.close()


def test_an_engine_that_dies_under_load_says_why_and_leaves_no_children(bench: Bench) -> None:
    with bench.server("--die-after=1", "--child", "--fork-away") as server:
        ready = server.start(SILENT)
        assert len(bench.look()) == 4
        complete(ready.port)
        assert eventually(lambda: server.failure() is not None)
        failure = server.failure()
        assert failure is not None
        assert (failure.cause, failure.exit_code) == ("crashed_under_load", -signal.SIGABRT)
        assert "serves no more" in failure.evidence
        assert not server.alive()
        assert eventually(bench.gone)
        server.stop()
        assert server.failure() == failure


def test_stopping_ends_children_orphans_and_those_who_ignore_a_term(bench: Bench) -> None:
    server = bench.server("--ignore-term", "--child", "--fork-away")
    server.start(SILENT)
    assert len(bench.look()) == 4
    stopped = server.stop()
    assert (stopped.killed, stopped.left) == (3, ())
    assert bench.gone()


def test_children_that_outlive_a_polite_leader_are_ended(bench: Bench) -> None:
    server = bench.server("--child", "--fork-away")
    server.start(SILENT)
    assert len(bench.look()) == 4
    assert server.stop().killed == 2
    assert bench.gone()


def test_what_an_engine_made_for_itself_goes_with_it(bench: Bench) -> None:
    with bench.server() as server:
        server.start(SILENT)
        (scratch,) = {Path(entry.scratch) for entry in bench.entries()}
        assert sorted(one.name[:9] for one in scratch.iterdir()) == ["left-behi", "left-too-"]
        assert scratch.stat().st_mode & 0o777 == 0o700
    assert not scratch.exists()


def test_only_the_plan_says_where_else_temporary_files_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/inherited")
    inherited, own = (bench.server(env={"TMPDIR": place}).env for place in ("/inherited", "/own"))
    assert inherited["TMPDIR"] == inherited["VLLM_RPC_BASE_PATH"]
    assert own["TMPDIR"] == "/own"


@pytest.mark.parametrize("polite", [True, False])
def test_shared_memory_of_a_killed_engine_is_taken_away(bench: Bench, *, polite: bool) -> None:
    shared = Path("/dev/shm", bench.cookie)
    server = bench.server("--ignore-term", "--child", "--share", bench.cookie)
    server.start(SILENT)
    assert shared.exists()
    if not polite:
        server.abort()
    assert server.stop().left == ()
    assert bench.gone()
    assert not shared.exists()


def test_an_orphan_that_wiped_its_environment_is_ended(bench: Bench) -> None:
    server = bench.server("--fork-away", "--wipe")
    server.start(SILENT)
    assert len(bench.look()) == 3
    assert server.stop().killed == 1
    assert bench.gone()


def test_a_control_pipe_that_closes_ends_the_engine_though_its_owner_lives(bench: Bench) -> None:
    with bench.server("--child") as server:
        server.start(SILENT)
        bench.look()
        assert server._watched is not None
        server._watched._control.close()
        assert eventually(bench.gone)


def test_an_owner_whose_pipe_lives_on_in_a_forked_child_is_still_seen_to_die(bench: Bench) -> None:
    with bench.owner("ready-forked", "--child") as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        (forked,) = descendants(owner.pid)
        bench.look()
        owner.kill()
        assert eventually(bench.gone)
        assert running(forked)
        os.kill(forked.pid, signal.SIGKILL)


def test_a_frozen_engine_is_ended(bench: Bench) -> None:
    server = bench.server()
    ready = server.start(SILENT)
    bench.look()
    os.kill(ready.pid, signal.SIGSTOP)
    assert server.stop().left == ()
    assert bench.gone()


def test_a_leader_killed_from_outside_leaves_nothing_behind(bench: Bench) -> None:
    with bench.server("--child", "--fork-away") as server:
        ready = server.start(SILENT)
        bench.look()
        os.kill(ready.pid, signal.SIGKILL)
        assert eventually(bench.gone)
        failure = server.failure()
        assert failure is not None
        assert (failure.cause, failure.exit_code) == ("killed", -signal.SIGKILL)


def test_a_watchdog_killed_from_outside_is_replaced_by_its_owner(bench: Bench) -> None:
    server = bench.server("--child", "--fork-away", "--ignore-term")
    server.start(SILENT)
    (entry,) = bench.entries()
    assert entry.watchdog is not None
    bench.look()
    os.kill(entry.watchdog.pid, signal.SIGKILL)
    assert eventually(lambda: not running(entry.watchdog))
    assert server.alive()
    stopped = server.stop()
    assert (stopped.killed, stopped.left) == (3, ())
    assert bench.gone()
    assert bench.entries() == []


def test_a_watchdog_asked_to_end_takes_the_engine_with_it(bench: Bench) -> None:
    with bench.server("--child", "--fork-away") as server:
        server.start(SILENT)
        (entry,) = bench.entries()
        assert entry.watchdog is not None
        bench.look()
        os.kill(entry.watchdog.pid, signal.SIGTERM)
        assert eventually(bench.gone)
        assert not server.alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_owner_that_dies_while_serving_leaves_nothing(bench: Bench, number: signal.Signals) -> None:
    with bench.owner("ready", "--child", "--fork-away", "--ignore-term") as owner:
        assert owner.stdout is not None
        assert json.loads(owner.stdout.readline()) == "ready"
        assert len(bench.look()) == 4
        owner.send_signal(number)
        assert eventually(bench.gone)


def test_an_owner_killed_during_the_start_leaves_nothing(bench: Bench) -> None:
    with bench.owner("starting", "--never-listen", "--child") as owner:
        assert owner.stdout is not None
        assert any("loading" in line for line in owner.stdout)
        assert len(bench.look()) == 3
        owner.kill()
        assert eventually(bench.gone)


def test_a_stray_whose_owner_and_watchdog_were_killed_is_swept(bench: Bench) -> None:
    with bench.owner("ready", "--child", "--fork-away") as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        (entry,) = bench.entries()
        assert entry.watchdog is not None
        bench.look()
        assert sweep(bench.running_dir) == []
        os.kill(entry.watchdog.pid, signal.SIGKILL)
        owner.kill()
    assert eventually(lambda: not running(entry.owner) and not running(entry.watchdog))
    assert len(cookie_holders(bench.cookie)) == 3
    (stray,) = sweep(bench.running_dir, grace_s=0.3)
    assert (stray.cookie, stray.run, len(stray.removed), stray.left) == (bench.cookie, "run", 3, 0)
    assert bench.gone()
    assert sweep(bench.running_dir) == []
    assert bench.entries() == []


def test_a_port_that_is_taken_is_given_up_for_another(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said: list[str] = []
        with bench.server(port=port) as server:
            ready = server.start(said.append)
            assert ready.port != port
            assert "the port was taken, trying another one" in said
            assert server.failure() is None
        assert bench.gone()


def test_a_stranger_on_our_port_is_never_taken_for_our_engine(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0)
        said: list[str] = []
        limits = ServerLimits(**{**LIMITS.__dict__, "start_timeout_s": 2.0})
        server = bench.server("--never-listen", port=stranger.getsockname()[1], limits=limits)
        with pytest.raises(EngineFailed):
            server.start(said.append)
        assert "the port was taken, trying another one" in said
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert bench.gone()


@pytest.mark.parametrize("flag", ["--never-listen", "--hang-after=0", "--hang-health"])
def test_a_start_is_interrupted_within_a_second(bench: Bench, flag: str) -> None:
    clock = SystemClock()
    asked = [0.0]
    server = bench.server(flag, "--ignore-term")

    def interrupt() -> None:
        assert eventually(lambda: server.status() == "loading")
        asked[0] = clock.monotonic()
        server.abort()

    other = threading.Thread(target=interrupt)
    with server:
        other.start()
        with pytest.raises(Interrupted):
            server.start(SILENT)
        assert clock.monotonic() - asked[0] < 1
        bench.look()
        other.join()
    assert bench.gone()
    assert server.failure() is None


def test_a_server_aborted_before_its_start_does_not_start(bench: Bench) -> None:
    with bench.server() as server:
        server.abort()
        with pytest.raises(Interrupted):
            server.start(SILENT)
        assert not server.log_path.exists()


def test_an_engine_that_floods_its_log_is_ended_and_named(bench: Bench) -> None:
    limits = ServerLimits(**{**LIMITS.__dict__, "log_limit_bytes": 1 << 20})
    server = bench.server("--spam", limits=limits)
    with pytest.raises(EngineFailed):
        server.start(SILENT)
    failure = server.failure()
    assert failure is not None
    assert failure.cause == "disk_full_log"
    assert "grew past 1048576 bytes" in failure.evidence
    assert bench.gone()


def test_a_log_that_stands_still_is_shown_and_not_guessed_about(bench: Bench) -> None:
    said: list[str] = []
    limits = ServerLimits(**{**LIMITS.__dict__, "start_timeout_s": 1.0})
    server = bench.server("--never-listen", clock=LateClock(50), limits=limits)
    with pytest.raises(EngineFailed):
        server.start(said.append)
    assert "no new log line for 45 s: loading" in said
