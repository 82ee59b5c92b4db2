"""An engine's environment on a node that is not the driver's: found or made there, the same to each package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from .engine_environment import EngineEnvironment, EnvironmentRequest, make_environment
from .errors import EnvironmentBroken
from .fingerprint import host_items
from .home import home
from .interpreters import probe_interpreter
from .placement import alike

__all__ = ["elsewhere", "settle"]


def elsewhere(environment: EngineEnvironment) -> EnvironmentRequest:
    """What makes the same environment on another machine: every package of its lock at the same version."""
    if environment.image:
        return EnvironmentRequest(image=re.sub(r":[^:/@]+@", "@", environment.image))
    if environment.directory is None or environment.adopted:
        return EnvironmentRequest(adopt=str(environment.python))
    stored = json.loads((environment.directory / "manifest.json").read_text(encoding="utf-8"))["request"]
    lock = (environment.directory / "lock.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^[\w.-]+==[^ \\;\n]+", lock, re.MULTILINE)
    return EnvironmentRequest.model_validate({**stored, "constraints": pins})


def settle(
    environment: EngineEnvironment, request: EnvironmentRequest, host: Mapping[str, str], say: Callable[[str], None]
) -> tuple[EngineEnvironment, str, list[str]]:
    """The environment on this node, the node's mark, and in which ways it is another kind of machine than `host`.

    On a shared filesystem the driver's own is found; else it is made under the same lock as everywhere.

    Raises:
        EnvironmentBroken: It cannot be made here, or came out with other packages.
    """
    shared = environment.python.is_file()
    found = environment if shared else make_environment(request, root=home() / "environments", progress=say)
    unlike = sorted({name for name, _ in found.packages.items() ^ environment.packages.items()})
    if unlike:
        hint = "Both use the package index that pip is set to there: let it be the same one."
        raise EnvironmentBroken(f"it came out with another {', '.join(unlike[:5])} than the driver's.", hint)
    items = host_items(probe_interpreter(found.python))
    return found, items["machine"], alike(host, items)
