"""Files in docker/: images pinned and without root, no secret in them, nothing published beyond loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from orchestrator.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
PINNED = re.compile(r"^[a-z0-9./-]+:.*\d+\.\d+")


def read(name: str) -> Any:
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, arguments), continued lines joined, comments left out."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word.upper(), rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def lock_versions(file: Path) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([^ \\]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(found)


def pods() -> list[dict[str, Any]]:
    job, cron = read("rayjob.yaml"), read("retune-cronjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups] + [cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_every_image_starts_from_a_pinned_base_and_ends_without_root(file: Path) -> None:
    steps = instructions(file)
    defaults = dict(rest.split("=", 1) for word, rest in steps if word == "ARG")
    stages: dict[str, str] = {}
    users: dict[str, str] = {}
    name = ""
    for word, rest in steps:
        if word == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda m: defaults[m[1]], rest).partition(" AS ")
            assert base in stages or PINNED.match(base), f"{base} is not pinned"
            stages[name], users[name] = base, users.get(base, "root")
        elif word == "USER":
            users[name] = rest
    assert users[name] == "10001", "the default target runs as root, or as a name that Kubernetes cannot check"
    assert users.get("cluster", "10001") == "10001"


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_downloads_nothing_unhashed_of_ours_and_leaves_no_package_lists(file: Path) -> None:
    for word, rest in instructions(file):
        assert word != "ADD", "COPY says what is copied; ADD also downloads and unpacks"
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert rest.rstrip().endswith("rm -rf /var/lib/apt/lists/*")
        for install in re.findall(r"(?<!uv )\bpip install [^&]*", rest):
            assert "--no-cache-dir" in install
            assert "--require-hashes" in install or "--no-deps" in install
        if word == "COPY" and "--from" not in rest:
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest


def test_the_orchestrator_image_installs_the_lock_then_the_project_and_is_the_command() -> None:
    steps = instructions(DOCKER / "orchestrator.Dockerfile")
    runs = " ".join(rest for word, rest in steps if word == "RUN")
    assert runs.index("--require-hashes -r /tmp/requirements.lock") < runs.index("--no-deps /tmp/wheels")
    assert [rest for word, rest in steps if word == "ENTRYPOINT"] == ['["repeak"]']
    copied = " ".join(rest for word, rest in steps if word == "COPY")
    assert all(f"{room} {room}" in copied for room in ("search_spaces", "trackers", "orchestrator"))


def test_the_cluster_lock_only_adds_to_the_projects_lock() -> None:
    own, more = lock_versions(ROOT / "requirements.lock"), lock_versions(DOCKER / "cluster.lock")
    assert {"psycopg2-binary", "prometheus-client", "py-spy", "virtualenv"} <= set(more)
    assert not set(own) & set(more)
    text = (DOCKER / "cluster.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\w)", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_images_python_parts_install_in_a_clean_environment(tmp_path: Path) -> None:
    """The images' own commands, less what needs root; pip's cache is kept, to ask little of the index."""

    def run(command: str) -> subprocess.CompletedProcess[str]:
        text = command.replace("--no-cache-dir ", "").replace("/tmp/wheels", f"{tmp_path}/wheels")
        text = text.replace("/tmp/uv.lock", f"{tmp_path}/uv.lock").replace(
            "/tmp/requirements.lock", "requirements.lock"
        )
        text = text.replace("/tmp/cluster.lock", "docker/cluster.lock").replace("/wheels .", f"{tmp_path}/wheels .")
        env = {**os.environ, "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        told = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": 1200}
        return subprocess.run(["sh", "-c", text], check=False, **told)

    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    parts = [
        part.strip()
        for name in ("engine", "orchestrator")
        for word, rest in instructions(DOCKER / f"{name}.Dockerfile")
        if word == "RUN"
        for part in re.split(r"&& (?=pip|if|UV|useradd|install|rm)", rest)
        if re.match(r"pip |awk ", part.strip())
    ]
    lock, uv, wheel, own, project, cluster = parts
    assert run(lock).returncode == 0
    first = run(uv)
    if first.returncode and "hash" not in first.stderr.lower():
        pytest.skip(f"no package index can be reached: {first.stderr.strip().splitlines()[-1]}")
    for command in (wheel, own, project, cluster):
        done = run(command)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert "repeak tune" in run("repeak --help && repeak tune --help").stdout
    assert run("python -c 'import psycopg2, ray.dashboard'").returncode == 0
    assert run("uv --version").stdout.split()[1] == lock_versions(ROOT / "requirements.lock")["uv"]


def test_compose_publishes_on_loopback_only_and_pins_its_images() -> None:
    for name, service in read("compose.yaml")["services"].items():
        assert PINNED.match(service["image"]), name
        assert not service["image"].endswith(":latest")
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service.get("network_mode") != "host"
        assert not service.get("privileged")
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name
        assert "no-new-privileges:true" in service["security_opt"]


def test_compose_takes_secrets_from_files_and_what_it_names_is_defined() -> None:
    compose = read("compose.yaml")
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())
    for name, service in compose["services"].items():
        for key, value in service.get("environment", {}).items():
            secret = re.search(r"PASSWORD|TOKEN|SECRET|KEY", key)
            assert not secret or str(value).startswith("/run/secrets/"), f"{name}.{key}"
            assert not re.search(r"://[^/\s]*:[^/\s]*@", str(value)), f"{name}.{key}"
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        assert set(service.get("networks", [])) <= set(compose["networks"])
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        for needed in service.get("depends_on", {}):
            assert "healthcheck" in compose["services"][needed]
        named = [
            volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(("$", ".", "/"))
        ]
        assert set(named) <= set(compose["volumes"])
    used = {secret for service in compose["services"].values() for secret in service.get("secrets", [])}
    assert used == set(compose["secrets"])


def test_compose_itself_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False, capture_output=True).returncode:
        pytest.skip("no docker client with the compose plugin")
    said = subprocess.run(
        [docker, "compose", "-f", str(DOCKER / "compose.yaml"), "config", "-q"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr


def test_the_launcher_file_satisfies_rays_own_schema() -> None:
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(read("ray-cluster.yaml"), schema)


def test_kubernetes_files_are_of_the_kinds_they_say() -> None:
    job, cron = read("rayjob.yaml"), read("retune-cronjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert (cron["apiVersion"], cron["kind"]) == ("batch/v1", "CronJob")
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    assert cron["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert len(cron["spec"]["schedule"].split()) == 5
    ray = job["spec"]["rayClusterSpec"]
    assert ray["rayVersion"] == lock_versions(ROOT / "requirements.lock")["ray"]
    assert ray["authOptions"]["mode"] == "token"
    wanted = json.loads(job["spec"]["entrypointResources"])
    offered = json.loads(json.loads(ray["workerGroupSpecs"][0]["rayStartParams"]["resources"]))
    assert wanted.keys() <= offered.keys(), "the driver would wait for ever"
    assert job["spec"]["entrypoint"].split()[1] in cli.list_commands(click.Context(cli))


def test_every_pod_runs_without_root_and_mounts_what_it_has() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert PINNED.match(container["image"])
            assert container["resources"]["limits"]["memory"]
            assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes
            assert all("secretKeyRef" in entry["valueFrom"] for entry in container.get("env", []))


def test_the_folders_readme_names_every_file() -> None:
    readme = (DOCKER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{file.name}`" in readme for file in DOCKER.iterdir() if file.is_file() and file.name != "README.md")
