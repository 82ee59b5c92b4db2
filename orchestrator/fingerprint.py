"""Read the stack under a number: the engine's environment, the host, the model's files, what the log says."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackers.records import StackFingerprint

from .environment_recipe import Flavour, launch_env
from .serve_line import is_secret

__all__ = [
    "LIVE",
    "PACKAGES",
    "environment_items",
    "live_items",
    "machine_class",
    "model_items",
    "shell_variables",
    "static_stack",
]

# Packages whose version can move a number; the lock hash stands for all others.
PACKAGES = (
    "torch",
    "transformers",
    "triton",
    "flashinfer-python",
    "xgrammar",
    "compressed-tensors",
    "intel-openmp",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)

# What the engine decides by itself for a configuration: part of a trial's stack, never of a study's identity.
LIVE = ("attention_backend", "model_runner", "async_scheduling", "kv_cache_dtype")

# Variables by which a shell moves an engine's numbers, unless they only say where things lie or how much is told.
_MOVING = re.compile(r"(VLLM|NCCL|OMP|KMP|MKL|PYTORCH|TORCH|TORCHINDUCTOR|FLASHINFER)_|CUDA_(LAUNCH|MODULE|DEVICE)_")
_STILL = re.compile(
    r".*_(CACHE|DIR|HOME|ROOT|PATH|PORT|IP|DEBUG(_FILE)?|TIMEOUT(_\w+)?)$|VLLM_(LOGGING|CONFIGURE_LOGGING|USAGE|NO_USAGE|DO_NOT)"
)


def shell_variables(flavour: Flavour, shell: Mapping[str, str]) -> dict[str, str]:
    """What an engine of this flavour would inherit that can move a number, secrets left out."""
    bare, got = (launch_env(flavour, inherited=one, python=Path(), caches=Path()) for one in ({}, shell))
    return {
        name: value
        for name, value in sorted(got.items())
        if value != bare.get(name) and _MOVING.match(name) and not _STILL.match(name) and not is_secret(name, value)
    }


def static_stack(
    *,
    environment: Mapping[str, str],
    model: Mapping[str, str],
    env: Mapping[str, str],
    probe: Mapping[str, Any],
) -> StackFingerprint:
    """The stack before any engine runs.

    Args:
        environment: Items of the engine's environment (see `environment_items`).
        model: Items of the model's files (see `model_items`).
        env: Environment variables that every launch gets from the plan and the shell (see `shell_variables`); they
            enter by name and value.
        probe: What `engine_probe` printed, inside the engine's environment.
    """
    items = {**environment, **model, **host_items(probe)}
    items.update({f"env.{name}": value for name, value in env.items()})
    return StackFingerprint(items=items)


def environment_items(
    *, version: str, distribution: str, python: str, packages: Mapping[str, str], lock_sha256: str, image: str = ""
) -> dict[str, str]:
    items = {"vllm": version, "vllm.distribution": distribution, "python": python}
    items.update({name: packages[name] for name in PACKAGES if name in packages})
    if lock_sha256:
        items["lock"] = lock_sha256[:16]
    if image:
        items["image"] = image
    return items


def host_items(probe: Mapping[str, Any]) -> dict[str, str]:
    """Host, processor, driver and GPUs; the host's name enters as a hash, since it may be private."""
    cpu = probe.get("cpu") or {}
    gpus = probe.get("gpus") or []
    torch = probe.get("torch") or {}
    items = {
        "machine": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8],
        "os": platform.system() + " " + platform.release(),
        "cpu": str(cpu.get("model") or "unknown"),
        "cpu.isa": str(cpu.get("isa") or "unknown"),
        "cpu.cores": str(len(os.sched_getaffinity(0))),
    }
    items.update({name: str(torch[name]) for name in ("cuda", "hip") if torch.get(name)})
    if gpus:
        items["gpu"] = ", ".join(sorted({str(gpu.get("name")) for gpu in gpus}))
        items["gpu.count"] = str(len(gpus))
        items["driver"] = str(gpus[0].get("driver_version"))
    return items


def machine_class(stack: StackFingerprint) -> str:
    """Machines whose numbers may stand in one table: the same GPU, or the same processor and cores."""
    items = stack.items
    return items.get("gpu") or f"{items.get('cpu', 'unknown')} x{items.get('cpu.cores', '?')}"


def model_items(model: str, revision: str | None) -> dict[str, str]:
    """Name and revision of a model; for a folder a hash over its small files and its weights' headers."""
    path = Path(model)
    if not path.is_dir():
        return {"model": model, "model.revision": revision or "default"}
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + _content_mark(file))
    return {"model": path.name, "model.revision": revision or digest.hexdigest()[:16]}


def _content_mark(file: Path) -> bytes:
    """Whole content of a small file; size, first and last megabyte of a large one (weights)."""
    size, part = file.stat().st_size, 1 << 20
    with file.open("rb") as handle:
        if size <= 4 * part:
            return hashlib.sha256(handle.read()).digest()
        head = handle.read(part)
        handle.seek(-part, os.SEEK_END)
        return hashlib.sha256(json.dumps(size).encode() + head + handle.read()).digest()


def live_items(reported: Mapping[str, str]) -> dict[str, str]:
    """What a running engine said of itself that belongs to the stack of its trial."""
    return {name: reported[name] for name in LIVE if name in reported}
