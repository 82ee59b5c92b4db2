"""An engine in an image: looked into, launched, measured and gone, by way of a docker that is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.container_run import run_command
from orchestrator.engine_environment import (
    EngineEnvironment,
    EnvironmentRequest,
    existing_environment,
    make_environment,
    serve_command,
)
from orchestrator.engine_server import EngineServer, ServerLimits
from orchestrator.errors import EnvironmentBroken
from orchestrator.fingerprint import environment_items
from orchestrator.janitor import sweep
from orchestrator.local_slot import LocalSlot
from orchestrator.process_tree import cookie_holders
from orchestrator.rehearsal import simulated
from orchestrator.slot import LaunchOrder
from orchestrator.workload import Workload

FAKES = Path(__file__).parents[1] / "fakes"
ROOT = FAKES.parents[1]
NAME = "vllm/vllm-openai:v0.26.0"
LIMITS = ServerLimits(start_timeout_s=60, stop_grace_s=3, tree_grace_s=1, orphan_grace_s=1)


def eventually(condition: Callable[[], object], seconds: float = 30) -> bool:
    waiter, clock = threading.Event(), SystemClock()
    deadline = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > deadline:
            return False
        waiter.wait(0.05)
    return True


class Docker:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.root = folder, folder / "environments"
        (folder / "version").write_text("28.2.2")
        (folder / "python").symlink_to(simulated("k_shift/0/old", folder / "simulated").python)
        (folder / "bin").mkdir()
        self.command("docker", f'exec {sys.executable} {FAKES}/fake_docker.py client {folder} "$@"')
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("REPEAK_HOME", str(folder / "home"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        self.daemon = subprocess.Popen(
            [sys.executable, str(FAKES / "fake_docker.py"), "daemon", str(folder)], stdout=subprocess.PIPE
        )
        assert self.daemon.stdout is not None
        self.daemon.stdout.readline()

    def command(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def said(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "commands.jsonl").read_text().splitlines()
        return [words for line in lines if (words := json.loads(line)["words"])[0] == verb]

    def environment(self) -> EngineEnvironment:
        return make_environment(EnvironmentRequest(image=NAME), root=self.root, progress=lambda _: None)

    def server(self, cookie: str) -> EngineServer:
        return EngineServer(
            [*serve_command(self.environment()), "org/model"],
            dict(os.environ),
            run_dir=self.folder / cookie,
            cookie=cookie,
            limits=LIMITS,
            clock=SystemClock(),
            running_dir=self.folder / "running",
        )

    def owner(self, cookie: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(FAKES / "owner.py"), self.folder / cookie, self.folder / "running", cookie, "serve"]
        owner = subprocess.Popen(
            [*map(str, argv), *serve_command(self.environment()), "org/model"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        assert owner.stdout is not None
        assert "ready" in owner.stdout.readline()
        return owner


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    docker = Docker(tmp_path, monkeypatch)
    yield docker
    docker.daemon.kill()
    docker.daemon.communicate()


def test_an_image_is_pulled_once_and_read_inside_with_its_digest(docker: Docker) -> None:
    request, lines = EnvironmentRequest(image=NAME), list[str]()
    assert existing_environment(request, docker.root) is None
    found = make_environment(request, root=docker.root, progress=lines.append)
    assert (found.packages["vllm"], found.adopted) == (found.version, True)
    assert found.image == f"{NAME}@sha256:{'ab' * 32}"
    items = environment_items(
        version=found.version, distribution="vllm", python="3", packages={}, lock_sha256="", image=found.image
    )
    assert items["image"] == found.image
    assert existing_environment(request, docker.root) == found == docker.environment()
    assert lines == [f"docker pull {NAME}"]
    assert len(docker.said("pull")) == 1


def test_an_engine_in_an_image_is_launched_proven_measured_and_gone(docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    order = LaunchOrder(
        environment=docker.environment(),
        model=str(tmp_path / "model"),
        args=("--max-num-seqs", "8"),
        env={"VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
        run_dir=tmp_path / "trial" / "launch-0",
        run_id="run",
        trial_id="trial",
        launch=0,
        start_timeout_s=60,
    )
    slot = LocalSlot("image", gpus=("2", "3"))
    report = slot.launch(order)
    assert report.launch.failure is None, report.launch
    windows = slot.measure(Workload(name="generate", kind="generate", prompt_tokens=16, output_tokens=8), 0)
    assert {check.name for check in windows.checks if check.passed} >= {"listener_is_ours"}
    assert not windows.disproved
    closed = slot.stop()
    assert closed is not None
    assert closed.failure is None
    assert not [check for check in closed.checks if check.passed is False]
    words = docker.said("run")[-1]
    model = tmp_path / "model"
    for wanted in (
        "--rm",
        "--network=host",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--volume={model}:{model}:ro",
        "--label=repeak.cookie=run-trial-0",
        "--env=HF_TOKEN",
        "--env=VLLM_MARLIN_USE_ATOMIC_ADD",
        "--shm-size=16g",
        "sha256:1d",
    ):
        assert wanted in words, wanted
    # Of the slot's two as many as it asks for.
    assert words[words.index("--gpus") + 1] == '"device=2"'
    assert "hf_secret" not in " ".join(words)
    assert not {"--env=PATH", "--env=CUDA_VISIBLE_DEVICES", "--env=HOME"} & set(words)
    assert not cookie_holders("run-trial-0")
    assert docker.said("ps")[-1][-1] == "--filter=label=repeak.cookie=run-trial-0"


def test_a_container_whose_tool_was_killed_is_removed(docker: Docker) -> None:
    with docker.server("killed-tool") as server:
        ready = server.start(lambda _: None)
        os.kill(ready.pid, signal.SIGKILL)
        assert eventually(lambda: not server.alive())
        assert cookie_holders("killed-tool"), "a container does not end with the tool that asked for it"
        assert server.stop().left == ()
    assert not cookie_holders("killed-tool")
    assert docker.said("rm")


def test_a_container_ends_with_the_owner_that_was_killed(docker: Docker) -> None:
    owner = docker.owner("killed-owner")
    owner.kill()
    owner.communicate()
    assert eventually(lambda: not cookie_holders("killed-owner"))


def test_a_container_whose_owner_and_watchdog_were_killed_is_swept_by_its_label(docker: Docker) -> None:
    owner = docker.owner("swept")
    (entry,) = (docker.folder / "running").glob("*.json")
    os.kill(json.loads(entry.read_text())["watchdog"][0], signal.SIGKILL)
    owner.kill()
    owner.communicate()
    asked = len(docker.said("ps"))
    (stray,) = sweep(docker.folder / "running")
    assert (stray.left, len(docker.said("ps"))) == (0, asked + 1)
    assert not cookie_holders("swept")
    assert not list((docker.folder / "running").iterdir())


def test_a_container_that_nobody_can_say_is_gone_stays_registered(docker: Docker) -> None:
    with docker.server("unsure") as server:
        server.start(lambda _: None)
        docker.command("docker", "exit 1")
        assert server.stop().left
    assert list((docker.folder / "running").glob("unsure.json"))


def test_a_refusal_of_the_tool_is_a_matter_of_the_environment(docker: Docker) -> None:
    slot, environment = LocalSlot("image"), docker.environment()
    (docker.folder / "refuse").write_text('docker: could not select device driver "" with capabilities: [[gpu]].')
    order = LaunchOrder(
        environment=environment,
        model="org/model",
        args=(),
        run_dir=docker.folder / "launch-0",
        run_id="run",
        trial_id="refused",
        launch=0,
        start_timeout_s=60,
    )
    failure = slot.launch(order).launch.failure
    slot.stop()
    assert failure is not None
    assert failure.kind == "environment"
    assert "could not select device driver" in failure.evidence


@pytest.mark.parametrize(
    ("text", "said"),
    [("exit 1", "docker does not answer"), ("echo 19.3.1", "docker is 19.3, older than 20.10")],
)
def test_a_tool_that_cannot_be_used_is_named_with_the_reason(docker: Docker, text: str, said: str) -> None:
    docker.command("docker", text)
    docker.command("podman", "echo 3.0.1")
    with pytest.raises(EnvironmentBroken, match=said) as caught:
        docker.environment()
    assert "podman is 3.0, older than 4.1" in caught.value.message


def test_podman_names_devices_and_keeps_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    settings = {"tool": "/usr/bin/podman", "podman": True, "image": "1d"}
    words = run_command(settings, ["-"], {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert {"--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=1", "--userns=keep-id"} <= set(words)
    assert not [word for word in run_command(settings, ["-"], {"CUDA_VISIBLE_DEVICES": ""}) if "gpu" in word]


def test_a_model_of_links_and_a_path_inside_json_are_mounted_to_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "w").touch()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "w").symlink_to(tmp_path / "blobs" / "w")
    settings = {"tool": "docker", "podman": False, "image": "1d"}
    drafter = json.dumps({"model": str(tmp_path / "snapshot")})
    words = run_command(settings, ["serve", "--speculative-config", drafter], {"HF_HOME": "/nowhere"})
    volumes = [word for word in words if word.startswith("--volume=")]
    places = (tmp_path / "blobs", tmp_path / "snapshot")
    assert volumes == [f"--volume={place}:{place}:ro" for place in places]
