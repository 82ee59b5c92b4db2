"""The Ray cluster of a study: our own, on loopback with a token of ours, or the user's by its address."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from .errors import ClusterError

__all__ = ["start_cluster"]


def start_cluster(address: str | None, directory: Path, say: Callable[[str], None]) -> None:
    """Join the cluster at `address`, or start our own: loopback only, with a token of ours."""
    _settings(directory)
    import ray  # noqa: PLC0415 - settings are read when Ray is imported

    say("starting Ray" if address is None else f"joining Ray at {address}")
    errors: list[str] = []
    for _ in range(2):
        try:
            ray.init(
                # Without an address Ray would follow its file of the last cluster, even a dead or foreign one.
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level="ERROR",
                namespace="repeak",
            )
        except Exception as error:  # noqa: BLE001 - Ray raises bare exceptions when a start-up step is slow
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            ray.shutdown()
        else:
            return
    raise ClusterError(
        f"Ray did not start: {errors[-1]}",
        "It gives its own processes 30 s; on a busy machine try again, or name a cluster by --address.",
    )


def _settings(directory: Path) -> None:
    """Environment that Ray reads at import: loopback, token authentication, no usage report."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Despite its name this is what makes a Linux cluster of one host listen on loopback only.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # A call that was abandoned on Ctrl-C has no one to tell its error to.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Workers are niced by 15 otherwise, and so would be every engine that one starts.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token = directory / "ray-token"
    if not token.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f"ray-token.{os.getpid()}"
        partial.touch(mode=0o600)
        partial.write_text(secrets.token_hex(32), encoding="ascii")
        partial.replace(token)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
