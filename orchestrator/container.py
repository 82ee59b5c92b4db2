"""Container images as engine environments: docker or podman found and asked, and an interpreter that runs inside."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import container_run
from .errors import EnvironmentBroken

__all__ = ["FOLDER", "Image", "find_image", "removal", "write_interpreter"]

FOLDER = ".images"
_ASK_TIMEOUT_S, _PULL_TIMEOUT_S = 60, 7200
# podman: the first with CDI devices; docker: the first whose `--gpus` and `--pull` are both there.
_TOOLS = {
    "docker": ((20, 10), "{{.Server.Version}}"),
    "podman": ((4, 1), "{{.Client.Version}}"),
}


class Image(NamedTuple):
    """An image at hand: the tool that runs it, its local id, and the digest that is the same on every machine."""

    tool: str
    podman: bool
    name: str
    id: str
    digest: str


def find_image(name: str, progress: Callable[[str], None] | None = None) -> Image | None:
    """The image of this name; pulled where it is absent and `progress` is given, else None then.

    Raises:
        EnvironmentBroken: There is no container tool that works and is new enough, or the image cannot be pulled.
    """
    tool, podman = _tool()
    found = _inspect(tool, name)
    if found is None and progress is not None:
        progress(f"{Path(tool).name} pull {name}")
        said = _ask([tool, "pull", "--quiet", name], _PULL_TIMEOUT_S)
        found = _inspect(tool, name)
        if found is None:
            raise EnvironmentBroken(f"{name} could not be pulled: {_last(said)}", "Check its name, tag and registry.")
    return Image(tool, podman, name, *found) if found else None


def write_interpreter(image: Image, root: Path) -> Path:
    """A `bin/python` that is the Python inside the image; `bin/remove COOKIE` beside it ends what it left."""
    directory = root / FOLDER / f"{re.sub(r'[^A-Za-z0-9.]', '_', image.name)[-80:]}-{image.digest[:12]}"
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    settings = json.dumps({"tool": image.tool, "podman": image.podman, "image": image.id})
    run = [sys.executable, "-I", "-S", str(Path(container_run.__file__).resolve()), settings]
    for file, more in (("python", '"$@"'), ("remove", '--remove "$1"')):
        draft = directory / f"{file}.{os.getpid()}"
        draft.write_text(f"#!/bin/sh\nexec {shlex.join(run)} {more}\n", encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(directory / "bin" / file)
    return directory / "bin" / "python"


def removal(python: Path, cookie: str) -> list[str]:
    """The command that removes the containers of a cookie; empty where the interpreter is no image's."""
    return [str(python.with_name("remove")), cookie] if python.parts[-4:-3] == (FOLDER,) else []


def _tool() -> tuple[str, bool]:
    """The first tool that answers and is new enough, and whether it is podman."""
    why = []
    for name, (least, template) in _TOOLS.items():
        tool = shutil.which(name)
        if tool is None:
            why.append(f"there is no {name}")
            continue
        said = _ask([tool, "version", "--format", template], _ASK_TIMEOUT_S)
        version = re.match(r"(\d+)\.(\d+)", said.stdout.strip())
        if said.returncode or version is None:
            why.append(f"{name} does not answer: {_last(said)}")
        elif (int(version[1]), int(version[2])) < least:
            why.append(f"{name} is {version[0]}, older than {'.'.join(map(str, least))}")
        else:
            return tool, name == "podman"
    hint = "Install docker or podman, start its service, or name a requirement or an interpreter instead of an image."
    raise EnvironmentBroken(f"No container tool can be used: {'; '.join(why)}.", hint)


def _inspect(tool: str, name: str) -> tuple[str, str] | None:
    said = _ask([tool, "image", "inspect", name], _ASK_TIMEOUT_S)
    if said.returncode:
        return None
    try:
        (found,) = json.loads(said.stdout)
        digests = [one.partition("@")[2] for one in found.get("RepoDigests") or ()]
        # An image that was built here has no digest of a registry's: its id is as good on this machine.
        return found["Id"], (sorted(digests) or [found["Id"]])[0].removeprefix("sha256:")
    except (ValueError, KeyError):
        return None


def _ask(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _last(said: subprocess.CompletedProcess[str]) -> str:
    return (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
