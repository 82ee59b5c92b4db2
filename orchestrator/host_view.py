"""What else the machine was doing during a window: load, GPU clocks and slowdowns, processes on the GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

__all__ = ["HostView"]

_GPU_FIELDS = ("index", "uuid", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of the reasons that come from outside the work: hardware slowdown, both thermal limits, power brake.
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80


class HostView:
    """Starts looking at once and is asked at the end, so that clocks are seen under load.

    Args:
        tool: The `nvidia-smi` to ask; None where there is none.
        timeout_s: Bound on its answer.
    """

    def __init__(self, tool: str | None = None, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self._started = {} if tool is None else {name: _ask(tool, query) for name, query in _QUERIES.items()}

    @classmethod
    def here(cls) -> HostView:
        return cls(shutil.which("nvidia-smi"))

    def read(self) -> dict[str, str]:
        """`load1`, `cores`; where GPUs are seen `gpu<i>.<field>`, `gpu.slowed` (indices), `gpu.pids` (index:pid)."""
        found = {"load1": f"{os.getloadavg()[0]:.2f}", "cores": str(os.cpu_count() or 0)}
        answers = {name: self._answer(process) for name, process in self._started.items()}
        slowed = []
        for row in answers.get("state", []):
            pairs = zip(_GPU_FIELDS[2:], row[2:], strict=False)
            found |= {f"gpu{row[0]}.{name}": value for name, value in pairs}
        for row in answers.get("reasons", []) or answers.get("older_reasons", []):
            found[f"gpu{row[0]}.reasons"] = row[1]
            if int(row[1], 16) & _SLOWED:
                slowed.append(row[0])
        if answers.get("state"):
            found["gpu.slowed"] = ",".join(slowed)
            index = {row[1]: row[0] for row in answers["state"]}
            found["gpu.pids"] = ",".join(sorted({f"{index.get(row[0], '?')}:{row[1]}" for row in answers["processes"]}))
        return found

    def _answer(self, process: subprocess.Popen[str]) -> list[list[str]]:
        try:
            text, _ = process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return []
        rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
        return rows if process.returncode == 0 else []


_QUERIES: dict[str, str] = {
    "state": f"--query-gpu={','.join(_GPU_FIELDS)}",
    "reasons": f"--query-gpu=index,{_THROTTLE_FIELDS[0]}",
    "older_reasons": f"--query-gpu=index,{_THROTTLE_FIELDS[1]}",
    "processes": "--query-compute-apps=gpu_uuid,pid",
}


def _ask(tool: str, query: str) -> subprocess.Popen[str]:
    command: Sequence[str] = (tool, query, "--format=csv,noheader,nounits")
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
