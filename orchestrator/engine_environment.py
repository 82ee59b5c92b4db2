"""One isolated installation of one engine version: built by uv from a spec, locked and proven, or adopted."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, model_validator

from .container import find_image, write_interpreter
from .environment_recipe import RECIPE_VERSION, Flavour, Recipe, recipe_for
from .errors import EnvironmentBroken, LockHeld
from .interpreters import find_interpreter, probe_interpreter
from .uv_steps import Uv, UvFailed, explain, install

__all__ = [
    "EngineEnvironment",
    "EnvironmentRequest",
    "environments_in",
    "existing_environment",
    "make_environment",
    "remove_environment",
    "serve_command",
]

_IMPORT_TIMEOUT_S = 900
_IMAGE_TIMEOUT_S = 600  # the first container of an image unpacks it
_MANIFEST = "manifest.json"
_MAKING = ".making-"


class EnvironmentRequest(BaseModel):
    """Which engine is wanted: a `requirement` to build, or an interpreter to `adopt` or an `image` as it is.

    `python` is a path or a version such as `3.12`; `constraints`, and `packages` to have beside the engine,
    are requirements; `torch_backend` is uv's word for where torch comes from (`auto`, `cu130`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requirement: str | None = None
    python: str | None = None
    adopt: str | None = None
    image: str | None = None
    constraints: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    torch_backend: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> EnvironmentRequest:
        if [self.requirement, self.adopt, self.image].count(None) != 2:
            raise ValueError("give a requirement to build, or an interpreter or an image to adopt")
        return self


class EngineEnvironment(BaseModel):
    """An engine that can be launched: `python` runs it, `packages` is all that its environment holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    requirement: str
    version: str
    python: Path
    directory: Path | None
    flavour: Flavour
    lock_sha256: str
    packages: dict[str, str]
    adopted: bool
    image: str = ""


def serve_command(environment: EngineEnvironment) -> list[str]:
    """The start of a serve line: by the interpreter, since a script may be absent or hold an old path."""
    return [str(environment.python), "-m", "vllm.entrypoints.cli.main", "serve"]


def make_environment(
    request: EnvironmentRequest,
    *,
    root: Path,
    progress: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
    lock_timeout_s: float = 7200,
    uv_binary: str | None = None,
) -> EngineEnvironment:
    """The environment a request asks for: the one at hand where it still answers, otherwise built now.

    Two processes that want the same one build it once; what was left half-made is removed first.

    Args:
        request: What to build or adopt.
        root: The directory of all environments of this machine.
        progress: Called with each line worth showing, credentials already taken out.
        environ: The variables whose pip and uv settings count; this process's own when left out.
        lock_timeout_s: How long to wait for another process that is making the same one.
        uv_binary: Which uv; our own when left out.

    Raises:
        PlanError: There is no such version or interpreter, or the request is no requirement.
        EnvironmentBroken: It cannot be resolved, installed, imported or adopted.
        LockHeld: Another process was still making it when the time was over.
    """
    if request.adopt is not None:
        return _adopt(request.adopt)
    if request.image is not None and (found := _image(request.image, root, progress)):
        return found
    recipe = recipe_for(request.requirement or "", request.torch_backend)
    interpreter, version = find_interpreter(request.python)
    directory = root.absolute() / _key(request, recipe, version)
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root, progress)
    with _locked(directory, progress, lock_timeout_s):
        found = _reusable(directory, progress)
        if found is not None:
            return found
        steps = Uv(os.environ if environ is None else environ, progress, uv_binary)
        return _build(directory, recipe, request, interpreter, steps)


def existing_environment(request: EnvironmentRequest, root: Path) -> EngineEnvironment | None:
    """The environment a request asks for if it is there already; builds nothing, starts no engine."""
    if request.adopt is not None:
        return _adopt(request.adopt)
    if request.image is not None:
        return _image(request.image, root, None)
    recipe = recipe_for(request.requirement or "", request.torch_backend)
    return _read(root.absolute() / _key(request, recipe, find_interpreter(request.python)[1]))


def environments_in(root: Path) -> dict[Path, EngineEnvironment | None]:
    """Every environment of this machine by its directory, the latest made first; None where it cannot be read."""
    found = [one for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")] if root.is_dir() else []
    return {one: _read(one) for one in sorted(found, key=lambda one: -one.stat().st_mtime)}


def remove_environment(directory: Path) -> bool:
    """Take it away; False where another process is making it.

    Renamed first, so that a removal that is interrupted is finished by the next build.
    """
    try:
        with _lock_of(directory).acquire(timeout=0):
            _discard(directory)
    except Timeout:
        return False
    return True


def _discard(directory: Path) -> None:
    aside = directory.with_name(_MAKING + directory.name)
    directory.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _key(request: EnvironmentRequest, recipe: Recipe, python: str) -> str:
    content = {
        "requirement": recipe.requirement,
        "constraints": sorted(request.constraints),
        "packages": sorted(request.packages),
        "torch_backend": request.torch_backend,
        "recipe": RECIPE_VERSION,
        "python": python,
        "platform": [sys.platform, platform.machine()],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return f"{recipe.distribution}-{re.sub(r'[^A-Za-z0-9.]', '_', recipe.version or 'file')}-{digest}"


def _lock_of(directory: Path) -> FileLock:
    return FileLock(directory.with_name(f".lock-{directory.name}"))


@contextmanager
def _locked(directory: Path, progress: Callable[[str], None], timeout_s: float) -> Iterator[None]:
    lock = _lock_of(directory)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"another process is making {directory.name}; waiting for it")
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout as error:
            hint = "Wait for it to end, then try again."
            raise LockHeld(f"Another process is still making {directory.name}.", hint) from error
    try:
        yield
    finally:
        lock.release()


def _sweep(root: Path, progress: Callable[[str], None]) -> None:
    """Removes what a process that died left half-made; what is locked is still being made."""
    for left in root.absolute().glob(f"{_MAKING}*"):
        lock = _lock_of(left.with_name(left.name.removeprefix(_MAKING)))
        try:
            with lock.acquire(timeout=0):
                progress(f"removing {left.name.removeprefix(_MAKING)}, which was left half-made")
                shutil.rmtree(left, ignore_errors=True)
        except Timeout:
            continue


def _read(directory: Path) -> EngineEnvironment | None:
    """An environment's manifest with the paths of where it stands now; None where there is none to trust."""
    place = {"directory": directory, "python": directory / "bin" / "python"}
    try:
        stored = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))["environment"]
        return EngineEnvironment.model_validate({**stored, **place}) if place["python"].is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reusable(directory: Path, progress: Callable[[str], None]) -> EngineEnvironment | None:
    """The environment of a directory if it answers and is as it was made; else none, and no directory."""
    if not directory.exists():
        return None
    found = _read(directory)
    why = _changed(found) if found else "its manifest or its interpreter is gone"
    if not why:
        return found
    progress(f"{directory.name} cannot be used again ({why}); building it anew")
    _discard(directory)
    return None


def _changed(environment: EngineEnvironment) -> str:
    """How an environment differs from its manifest, asked of its own interpreter; empty when it does not."""
    try:
        before, now = environment.packages, probe_interpreter(environment.python)["packages"]
    except EnvironmentBroken as error:
        return error.message
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name, 'absent')} -> {now.get(name, 'absent')}" for name in names[:5])


def _build(
    directory: Path, recipe: Recipe, request: EnvironmentRequest, interpreter: Path, steps: Uv
) -> EngineEnvironment:
    making = directory.with_name(_MAKING + directory.name)
    started = time.time()
    try:
        also = {"packages": request.packages, "constraints": request.constraints}
        lock = install(steps, making, recipe, interpreter, also)
        steps.progress(f"importing {recipe.requirement} once, to prove it")
        report = probe_interpreter(making / "bin" / "python", import_engine=True, timeout_s=_IMPORT_TIMEOUT_S)
        digest = hashlib.sha256(lock).hexdigest()
        environment = _described(report, directory.name, recipe.requirement, directory, digest)
        manifest = {
            "environment": environment.model_dump(mode="json"),
            "request": request.model_dump(mode="json"),
            "imported": report["imported"],
            "made_at": started,
            "made_in_s": round(time.time() - started, 1),
        }
        (making / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        making.rename(directory)
    except UvFailed as failure:
        raise explain(failure, recipe, steps) from failure
    except OSError as error:
        raise EnvironmentBroken(f"{directory} could not be made: {error}", "Check its disk and rights.") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return environment


def _described(
    report: Mapping[str, Any], key: str, requirement: str, directory: Path | None, lock_sha256: str
) -> EngineEnvironment:
    if report["engine"]["version"] is None:
        raise EnvironmentBroken(f"{report['executable']} has no vLLM.", "Name an engine that can be imported there.")
    return EngineEnvironment(
        key=key,
        requirement=requirement,
        version=report["engine"]["version"],
        python=directory / "bin" / "python" if directory else Path(report["executable"]),
        directory=directory,
        flavour=_flavour(report),
        lock_sha256=lock_sha256,
        packages=report["packages"],
        adopted=directory is None,
    )


def _flavour(report: Mapping[str, Any]) -> Flavour:
    """By the version that vLLM itself reads its platform from, then by what torch was built for."""
    packages, torch = report["packages"], report["torch"]
    if "cpu" in packages.get("vllm", "") + packages.get("torch", ""):
        return "cpu"
    return "rocm" if torch["hip"] else "cuda" if torch["cuda"] else "other"


def _adopt(where: str, timeout_s: float = 120) -> EngineEnvironment:
    """An interpreter, or the one of a virtual environment's directory, used as it is."""
    path = Path(where).expanduser().absolute()
    python = path / "bin" / "python" if path.is_dir() else path
    report = {**probe_interpreter(python, timeout_s=timeout_s), "executable": str(python)}
    frozen = "".join(f"{name}=={version}\n" for name, version in report["packages"].items())
    digest = hashlib.sha256(frozen.encode()).hexdigest()
    key = f"adopted-{hashlib.sha256(f'{python} {digest}'.encode()).hexdigest()[:12]}"
    return _described(report, key, "{distribution}=={version}".format(**report["engine"]), None, digest)


def _image(name: str, root: Path, progress: Callable[[str], None] | None) -> EngineEnvironment | None:
    """An image as it is; None where it is not at hand and no `progress` can be told of a pull."""
    image = find_image(name, progress)
    if image is None:
        return None
    found = _adopt(str(write_interpreter(image, root.absolute())), _IMAGE_TIMEOUT_S)
    key, said = f"image-{image.digest[:12]}", f"{name}@sha256:{image.digest}"
    return found.model_copy(update={"key": key, "lock_sha256": image.digest, "image": said})
