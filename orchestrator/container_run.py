"""Becomes `docker run` or `podman run` for one command of an engine image; standard library only, run as a script.

`container_run.py SETTINGS WORDS...` runs the image's Python with these words, `container_run.py SETTINGS --remove
COOKIE` removes the containers that carry a cookie, and fails unless it is sure that none is left. SETTINGS is JSON with
`tool` (a path), `podman` (bool) and `image` (an id, so that a tag that moves changes nothing).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LABEL = "repeak.cookie"
_REMOVE_TIMEOUT_S = 30
# What belongs to this machine and to the tool, and would mislead inside: all else an engine is given goes in by name.
_OURS = re.compile(
    r"(PATH|HOME|SHELL|PWD|OLDPWD|USER|LOGNAME|HOSTNAME|TMPDIR|TERM|SHLVL|_|VIRTUAL_ENV|PYTHONHOME|PYTHONPATH"
    r"|CUDA_(HOME|PATH|VISIBLE_DEVICES)|(LD|XDG|DOCKER|CONTAINERS?|SSH|DBUS|CONDA|NVIDIA)_\w+)"
)


def run_command(settings: Mapping[str, Any], words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The whole command: network and user are the host's, so that loopback, /proc and file rights mean the same."""
    caches = Path(env["VLLM_CACHE_ROOT"]).parent if "VLLM_CACHE_ROOT" in env else None
    home = str(caches or "/tmp")  # noqa: S108 - the container's own
    hub = env.get("HF_HOME") or str(Path(env.get("HOME", "/root"), ".cache/huggingface"))
    carried = sorted(name for name in env if not _OURS.fullmatch(name))
    command = [settings["tool"], "run", "--rm", "--init", "--interactive", "--pull=never", "--log-driver=none"]
    command += ["--network=host", "--shm-size=16g", "--security-opt=no-new-privileges", "--workdir=/tmp"]
    command += [f"--label={LABEL}={env.get('REPEAK_COOKIE', f'none-{os.getpid()}')}"]
    command += [f"--user={os.getuid()}:{os.getgid()}", *_namespace(settings["podman"]), *_devices(settings, env)]
    # By name alone: a value would stand in the arguments for everybody to read.
    command += [f"--env={name}" for name in carried if name != "HF_HOME"]
    command += [f"--env=HOME={home}", "--env=USER=repeak", f"--env=HF_HOME={hub}"]
    command += [f"--volume={place}:{place}:ro" for place in sorted({*_named(words)})]
    command += [f"--volume={place}:{place}" for place in (caches, hub) if place and Path(place).is_dir()]
    return [*command, "--entrypoint=python3", settings["image"], *words]


def _namespace(podman: bool) -> list[str]:
    """The user outside is the user inside: without this our own /proc would not show us the engine."""
    return ([] if os.getuid() == 0 else ["--userns=keep-id"]) if podman else ["--userns=host"]


def _devices(settings: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """Exactly the GPUs of the slot; all of them where none are named, as when an image is only looked into."""
    named = env.get("CUDA_VISIBLE_DEVICES")
    if named == "" or (named is None and not Path("/dev/nvidiactl").exists()):
        return []
    if settings["podman"]:
        return [f"--device=nvidia.com/gpu={one}" for one in (named or "all").split(",")]
    return ["--gpus", f'"device={named}"' if named else "all"]


def _named(words: Sequence[str]) -> Iterator[str]:
    """Files and folders named in a command, and the folders that links in them lead to."""
    for text in words:
        for found in ([text] if text.startswith("/") else []) + re.findall(r'(?<=[="])/[^"\n]+', text):
            place = Path(found)
            if place.parent != place and place.exists():
                yield found
                links = [one for one in place.iterdir() if one.is_symlink()] if place.is_dir() else []
                yield from {str(link.resolve().parent) for link in links if link.exists()} - {"/"}


def remove(settings: Mapping[str, Any], cookie: str) -> bool:
    """Whether no container carries the cookie any more; one whose stop was lost is killed."""
    for pause_s in (0, 1, 2, 4):
        time.sleep(pause_s)  # the tool's own clean-up may be at work, and fail both
        said = _ask([settings["tool"], "ps", "--all", "--quiet", f"--filter=label={LABEL}={cookie}"])
        if said is not None and not said.split():
            return True
        if said:
            _ask([settings["tool"], "rm", "--force", "--volumes", *said.split()])
    return False


def _ask(command: Sequence[str]) -> str | None:
    """What the tool prints; None where it fails, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REMOVE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def main(words: Sequence[str]) -> None:
    settings = json.loads(words[0])
    if words[1:2] == ["--remove"]:
        raise SystemExit(not remove(settings, words[2]))
    command = run_command(settings, words[1:], os.environ)
    if "VLLM_CACHE_ROOT" in os.environ:
        Path(os.environ["VLLM_CACHE_ROOT"]).mkdir(parents=True, exist_ok=True)  # else the daemon makes it, as root
    os.execv(command[0], command)  # noqa: S606 - so that signals reach the tool itself


if __name__ == "__main__":
    main(sys.argv[1:])
