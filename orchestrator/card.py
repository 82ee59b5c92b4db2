"""Cards by name: bandwidth and dense peak rates from their makers' data sheets; memory is read live."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from trackers.records import Frozen

from .errors import EnvironmentBroken

__all__ = ["Card", "find_card", "measure_card", "read_cards"]

# name as nvidia-smi writes it, lower case, all words needed; the first match wins
# -> GB/s of memory, dense TFLOP/s in 16, 8 and 4 bits (0: no such unit), where the numbers stand
SHEETS: tuple[tuple[str, float, float, float, float, str], ...] = (
    ("gh200 144g", 4900, 990, 1979, 0, "GH200 data sheet, HBM3e"),
    ("gh200", 4000, 990, 1979, 0, "GH200 data sheet, HBM3"),
    ("gb300", 8000, 2500, 5000, 15000, "GB300 NVL72 data sheet, per GPU"),
    ("b300", 8000, 2250, 4500, 14000, "HGX B300 data sheet, per GPU"),
    ("gb200", 8000, 2500, 5000, 10000, "GB200 NVL72 data sheet, per GPU"),
    ("b200", 8000, 2250, 4500, 9000, "HGX B200 data sheet, per GPU"),
    ("gb10", 273, 125, 250, 500, "DGX Spark data sheet, halved for sparsity"),
    ("h200 nvl", 4800, 836, 1671, 0, "H200 data sheet, NVL"),
    ("h200", 4800, 990, 1979, 0, "H200 data sheet, SXM"),
    ("h100 nvl", 3900, 836, 1671, 0, "H100 data sheet, NVL"),
    ("h100 pcie", 2000, 756, 1513, 0, "H100 data sheet, PCIe"),
    ("h100", 3350, 990, 1979, 0, "H100 data sheet, SXM"),
    ("a100 80gb pcie", 1935, 312, 0, 0, "A100 data sheet, 80 GB PCIe"),
    ("a100 80gb", 2039, 312, 0, 0, "A100 data sheet, 80 GB SXM"),
    ("a100", 1555, 312, 0, 0, "A100 data sheet, 40 GB"),
    ("l40s", 864, 362, 733, 0, "L40S data sheet"),
    ("l4", 300, 121, 242, 0, "L4 data sheet"),
    ("a10", 600, 125, 0, 0, "A10 data sheet"),
    ("rtx pro 6000 blackwell", 1792, 504, 1007, 2015, "RTX PRO Blackwell architecture paper"),
    ("rtx 6000 ada", 960, 364, 728, 0, "RTX 6000 Ada data sheet"),
    ("rtx 5090", 1792, 419, 838, 1676, "RTX Blackwell architecture paper, 16-bit accumulation"),
    ("rtx 4090", 1008, 330, 661, 0, "Ada architecture paper, 16-bit accumulation"),
    ("mi300x", 5300, 1307, 2615, 0, "MI300X data sheet"),
)
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")


class Card(Frozen):
    """One card. Rates are dense peaks (FLOP/s); None is not known. `source` says where the numbers stand."""

    name: str
    bandwidth_bytes_s: float | None = None
    flops_16bit: float | None = None
    flops_8bit: float | None = None
    flops_4bit: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    source: str = "not in the table"

    def peak_flops(self, quantization: str = "") -> float | None:
        """The highest rate a model of that quantization could use: an upper bound, never a target."""
        rates = [self.flops_16bit]
        if quantization:
            rates += [self.flops_8bit]
        if "fp4" in quantization:
            rates += [self.flops_4bit]
        return max((rate for rate in rates if rate), default=None)


def find_card(name: str, memory_bytes: int | None = None, used_bytes: int | None = None) -> Card:
    """The card of that name; one that is not in the table has no rates rather than another's."""
    words = set(name.lower().replace("-", " ").split())
    live = {"memory_bytes": memory_bytes, "used_bytes": used_bytes}
    for pattern, bandwidth, half, eight, four, source in SHEETS:
        if words >= set(pattern.split()):
            return Card(
                name=name,
                bandwidth_bytes_s=bandwidth * 1e9,
                flops_16bit=half * 1e12,
                flops_8bit=eight * 1e12 or None,
                flops_4bit=four * 1e12 or None,
                source=source,
                **live,
            )
    return Card(name=name, **live)


def read_cards(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> tuple[Card, ...]:
    """The cards of this machine as its driver names them, with live memory; empty without a driver."""
    try:
        said = run(QUERY, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in said.splitlines() if line.count(",") >= 2]
    return tuple(find_card(name, _mebibytes(total), _mebibytes(used)) for name, total, used in rows)


def measure_card(python: Path, env: Mapping[str, str] | None = None, timeout_s: float = 180.0) -> Card:
    """What a card (a processor where there is none) does in an engine's environment; changes nothing there.

    Raises:
        EnvironmentBroken: That Python does not run, has no torch, or does not end in time.
    """
    foreign = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environ = {name: value for name, value in os.environ.items() if name not in foreign} | dict(env or {})
    script = Path(__file__).with_name("card_probe.py").read_text(encoding="utf-8")
    command = [str(python), "-"]
    try:
        done = subprocess.run(
            command, input=script, env=environ, cwd="/", capture_output=True, text=True, timeout=timeout_s,
            check=True,
        )  # fmt: skip
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise EnvironmentBroken(
            f"The card was not measured with {python}: {''.join(said)}.", "Does it have torch?"
        ) from error
    return Card(
        name=found["name"],
        bandwidth_bytes_s=max(found["read_bytes_s"], found["copy_bytes_s"]),
        flops_16bit=found["flops"],
        source="measured",
    )


def _mebibytes(cell: str) -> int | None:
    # Cards that share the host's memory answer [N/A].
    return int(cell) << 20 if cell.isdigit() else None
