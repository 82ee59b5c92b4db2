"""What the client took: a loop that is held up shows it, one that waits does not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from orchestrator.client_watch import ClientWatch, _run_queue, share_of_result


def watched(busy_s: float) -> dict[str, float]:
    watch = ClientWatch()

    async def work() -> None:
        watch.start()
        # The loop's own timers are what is watched: one has to fall due on each side of what holds them up.
        await asyncio.sleep(0.05)
        end = time.monotonic() + busy_s
        while time.monotonic() < end:
            pass
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        runner.run(work())
        return watch.read([1_000_000, 3_000_000], [])


def test_a_loop_that_is_held_up_shows_it() -> None:
    held, free = watched(0.3), watched(0.0)
    assert held["lag_max_ms"] >= 300
    assert held["busy_share"] > 0.3 > free["busy_share"]
    assert held["lag_mean_ms"] > 10 * free["lag_mean_ms"] > 0


def test_lateness_and_turnaround_are_means_of_what_was_seen() -> None:
    seen = watched(0.0)
    assert (seen["send_lateness_mean_ms"], seen["send_lateness_max_ms"], seen["turnaround_mean_ms"]) == (
        2,
        3,
        0,
    )


def test_the_share_is_the_largest_part_of_what_a_delay_touches() -> None:
    client = {"lag_mean_ms": 1.0, "send_lateness_mean_ms": 0.0, "turnaround_mean_ms": 9.0}
    assert share_of_result(client, {"median_ttft_ms": 10, "median_e2el_ms": 1000}) == pytest.approx(0.1)
    assert share_of_result(client, {"median_ttft_ms": 1000, "median_e2el_ms": 100}) == pytest.approx(0.1)


def test_a_system_that_does_not_tell_the_wait_for_a_core_adds_none(tmp_path: Path) -> None:
    assert _run_queue(tmp_path / "absent") == (0, 0)
    (tmp_path / "schedstat").write_text("100 20 3\n")
    assert _run_queue(tmp_path / "schedstat") == (20, 3)
