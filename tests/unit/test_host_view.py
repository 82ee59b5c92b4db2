"""What else the machine was doing, from a stand-in for `nvidia-smi`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.host_view import HostView

TOOL = """#!{python} -S
import sys
query = sys.argv[1]
{body}
"""
CARD = """
if "clocks.sm" in query: print("0, GPU-a, 1980, 2619, 41, 310.5\\n1, GPU-b, 1200, 2619, 88, 700.0")
elif "event_reasons" in query: print("0, 0x0000000000000004\\n1, 0x0000000000000020")
elif "compute-apps" in query: print("GPU-a, 77\\nGPU-b, 12")
else: sys.exit(2)
"""
OLDER = CARD.replace("event_reasons", "throttle_reasons")


def tool(tmp_path: Path, body: str) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text(TOOL.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("body", [CARD, OLDER], ids=["newer", "older"])
def test_clocks_slowdowns_and_processes_are_read(tmp_path: Path, body: str) -> None:
    seen = HostView(tool(tmp_path, body), timeout_s=60).read()
    assert (seen["gpu0.clocks.sm"], seen["gpu1.temperature.gpu"], seen["gpu.pids"]) == ("1980", "88", "0:77,1:12")
    # A power cap (0x4) is how a card works under load; heat (0x20) is not.
    assert seen["gpu.slowed"] == "1"


def test_a_machine_without_the_tool_still_tells_its_load() -> None:
    seen = HostView(None).read()
    assert set(seen) == {"load1", "cores"}


def test_a_tool_that_fails_or_hangs_is_as_good_as_none(tmp_path: Path) -> None:
    assert set(HostView(tool(tmp_path, "sys.exit(9)"), timeout_s=60).read()) == {"load1", "cores"}
    assert set(HostView(tool(tmp_path, "sys.stdin = open('/dev/zero'); sys.stdin.read()"), timeout_s=0.3).read()) == {
        "load1",
        "cores",
    }
