"""Wait until the memory of an ended engine is really back, before the next one starts on the same devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from trackers.records import Failure

from .clock import Clock
from .janitor import wait_memory_back

__all__ = ["MemoryGate", "busy_devices", "free_device_bytes"]

_TIMEOUT_S = 120.0
_IDLE_MIB, _IDLE_SHARE = 1024, 10  # what a desktop or a monitor holds and uses (percent)


def free_device_bytes(gpus: Sequence[str]) -> int | None:
    """Free memory over these devices, in bytes, as the driver tells it; None where it cannot."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", f"--id={','.join(gpus)}"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return sum(int(line) for line in said.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def busy_devices(tool: str = "nvidia-smi") -> list[str]:
    """GPUs that somebody works on, each with how much, of those that are ours to see; none where no driver answers."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    if ours == "-1" or (not ours and "CUDA_VISIBLE_DEVICES" in os.environ):
        return []
    # The driver may not know them by the names that CUDA has for them (a MIG device): then all of them count.
    rows = (_usage([tool, f"--id={ours}"]) if ours else []) or _usage([tool])
    return [
        f"GPU {index}: {mib} MiB in use, {share} % busy"
        for index, mib, share in rows
        if mib > _IDLE_MIB or share > _IDLE_SHARE
    ]


def _usage(tool: Sequence[str]) -> list[list[int]]:
    """Of each GPU its index, the MiB in use and how busy it is in percent; nothing where no driver answers."""
    query = [*tool, "--query-gpu=index,memory.used,utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[int(cell) if cell.strip().isdigit() else 0 for cell in line.split(",")] for line in said.splitlines()]


class MemoryGate:
    """Remembers how much was free before our first engine; a slot that never gets it back is quarantined.

    Args:
        gpus: The slot's devices; with none of them there is nothing to wait for.
        clock: Time.
        read: Replaces the driver in tests.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        clock: Clock,
        *,
        read: Callable[[Sequence[str]], int | None] = free_device_bytes,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._gpus, self._clock, self._read, self._timeout_s = tuple(gpus), clock, read, timeout_s
        self._before: int | None = None

    def wait(self) -> Failure | None:
        """Hold until the memory is back; the failure to record when it does not come."""
        free = self._read(self._gpus) if self._gpus else None
        if free is None:
            return None
        if self._before is None or free > self._before:
            self._before = free
        back = wait_memory_back(self._before, lambda: self._read(self._gpus) or 0, self._clock, self._timeout_s)
        if back:
            return None
        now = self._read(self._gpus) or 0
        return Failure(
            cause="device_busy",
            kind="environment",
            message=f"{(self._before - now) / 2**30:.1f} GiB on device {','.join(self._gpus)} never came back "
            f"within {self._timeout_s:.0f} s of the last engine's end",
            evidence="The slot is not used any more: look at nvidia-smi for the process that holds it.",
        )
