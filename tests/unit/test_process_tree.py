"""Processes are told apart by pid and start time, and a port by who holds its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orchestrator.process_tree import (
    Process,
    cookie_holders,
    descendants,
    free_port,
    identify,
    kernel_oom_kills,
    listener_belongs_to,
    running,
)
from orchestrator.watchdog import send

WAITER = "import sys; print('up', flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITER!r}])"


FOLLOWER = "from orchestrator.process_tree import end_with_parent; end_with_parent(0.1); " + WAITER
# The parent starts the follower and says who it is; what started the parent adopts the orphan.
RAYLET = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {FOLLOWER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
ADOPTER = f"""
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
parent = subprocess.Popen([sys.executable, "-c", {RAYLET!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(parent.pid, parent.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "REPEAK_COOKIE": f"tree-{uuid4().hex}"}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.cookie = env["REPEAK_COOKIE"]  # type: ignore[attr-defined]
        yield child
        child.kill()


def test_a_process_is_running_only_under_its_own_start_time() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert running(me)
    assert not running(Process(me.pid, me.start + 1))


def test_a_pid_that_does_not_exist_is_nobody() -> None:
    assert identify(2**30) is None
    assert not running(Process(2**30, 1))


def test_a_zombie_does_not_run(child: subprocess.Popen[bytes]) -> None:
    who = identify(child.pid)
    assert who is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identify(child.pid) == who
    assert not running(who)


def test_a_signal_goes_to_exactly_the_process_meant(child: subprocess.Popen[bytes]) -> None:
    who = identify(child.pid)
    assert who is not None
    assert not send(Process(who.pid, who.start - 1), signal.SIGKILL)
    assert running(who)
    assert send(who, signal.SIGKILL)
    child.wait(10)
    assert not send(who, signal.SIGKILL)


def test_a_grandchild_is_a_descendant(child: subprocess.Popen[bytes]) -> None:
    (grandchild,) = descendants(child.pid)
    mine = descendants(os.getpid())
    assert identify(child.pid) in mine
    assert grandchild in mine


def test_a_cookie_finds_its_whole_tree_and_nobody_else(child: subprocess.Popen[bytes]) -> None:
    cookie = child.cookie  # type: ignore[attr-defined]
    assert {who.pid for who in cookie_holders(cookie)} == {child.pid, descendants(child.pid)[0].pid}
    assert cookie_holders(cookie[:-1]) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_listener_of_ours_is_ours(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        assert listener_belongs_to(server.getsockname()[1], os.getpid()) is True


def test_a_listener_on_every_ipv6_address_counts() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        assert listener_belongs_to(server.getsockname()[1], os.getpid()) is True


def test_a_listener_of_somebody_else_is_not(child: subprocess.Popen[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listener_belongs_to(server.getsockname()[1], child.pid) is False


def test_a_port_shared_with_a_stranger_is_not_ours(child: subprocess.Popen[bytes]) -> None:
    script = (
        "import socket, sys; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); print('up', flush=True); sys.stdin.read()"
    )
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", script, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert listener_belongs_to(port, other.pid) is False
            assert listener_belongs_to(port, os.getpid()) is True  # the other one is below us
            other.kill()


def test_a_port_nobody_listens_on_is_unknown() -> None:
    assert listener_belongs_to(free_port(), os.getpid()) is None


def test_the_kernel_s_count_of_processes_it_ended_can_be_read() -> None:
    assert kernel_oom_kills() >= 0


def test_a_worker_ends_with_its_parent_though_another_process_adopts_it() -> None:
    argv = [sys.executable, "-c", ADOPTER]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as adopter:
        assert adopter.stdout is not None
        parent, follower = map(identify, map(int, adopter.stdout.readline().split()))
        assert parent is not None
        assert follower is not None
        assert running(follower)
        assert send(parent, signal.SIGKILL)
        waiter = threading.Event()
        assert any(not running(follower) or waiter.wait(0.05) for _ in range(400))
        adopter.kill()
