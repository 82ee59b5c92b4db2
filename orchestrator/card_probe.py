"""Print, as one line of JSON, how fast a card (or processor) reads, copies and multiplies.

Run by the engine's own Python through its standard input: this directory is not on the module path then.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from typing import Any

BATCH_S, ENOUGH_S = 0.1, 0.6


def best_rate(step: Callable[[], Any], settle: Callable[[], None], amount: float, together: int) -> float:
    """The fastest of a few batches, in `amount` a second: what disturbs only makes slower."""
    step()
    settle()
    best, started = 0.0, time.perf_counter()
    while not best or time.perf_counter() - started < ENOUGH_S:
        began, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - began < BATCH_S:
            for _ in range(together):
                step()
            settle()
            steps += together
        best = max(best, amount * steps / (time.perf_counter() - began))
    return best


def filled(torch: Any, device: str) -> tuple[Any, Any]:
    """Two buffers beyond every cache; smaller where an engine holds nearly all of the memory."""
    for size in (1 << 26, 1 << 25, 1 << 24):
        try:
            return torch.ones(size, device=device), torch.ones(size, device=device)
        except RuntimeError:
            continue
    raise SystemExit("There is no memory left to measure with.")


def main() -> None:
    torch: Any = importlib.import_module("torch")
    gpu = torch.cuda.is_available()
    device, settle, together = ("cuda", torch.cuda.synchronize, 8) if gpu else ("cpu", lambda: None, 1)
    one, two = filled(torch, device)
    size = one.numel() * one.element_size()
    found = {
        "name": torch.cuda.get_device_name(0) if gpu else "cpu",
        "read_bytes_s": best_rate(one.sum, settle, size, together),
        "copy_bytes_s": best_rate(lambda: two.copy_(one), settle, 2 * size, together),
    }
    side = 8192 if gpu else 768
    for dtype in (torch.bfloat16,) if gpu else (torch.bfloat16, torch.float32):
        square = torch.ones(side, side, dtype=dtype, device=device)
        rate = best_rate(lambda: square @ square, settle, 2.0 * side**3, together)  # noqa: B023
        found["flops"] = max(rate, found.get("flops", 0.0))
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
