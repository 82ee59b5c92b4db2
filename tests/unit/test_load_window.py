"""Sending a window: how many are in flight, when they are due, and that hopeless answers stop it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from truth_server import serving

from orchestrator.http_stream import StreamClient
from orchestrator.load_window import Traffic, send_window
from orchestrator.workload import Workload


def sent(truth: dict[str, Any], **fields: Any) -> Traffic:
    workload = Workload(name="w", kind="generate", prompt_tokens=20, output_tokens=4, **fields)
    with serving(**truth) as url:
        return send_window(StreamClient(url), workload, 0, model="m", timeout_s=60)


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    traffic = sent({"ttft_ms": 30, "itl_ms": 1}, concurrency=3, requests_per_window=6)
    spans = [(each[0].sent_ns, each[0].ended_ns) for each in traffic.answers]
    most = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
    assert most == 3
    assert len(traffic.turnaround_ns) == len(spans) - 3


def test_an_open_loop_sends_when_due_whatever_is_in_flight() -> None:
    traffic = sent({"ttft_ms": 2500, "itl_ms": 1}, request_rate=50, burstiness=float("inf"), requests_per_window=8)
    starts = [each[0].sent_ns for each in traffic.answers]
    assert max(starts) < min(each[0].ended_ns for each in traffic.answers)
    assert len(traffic.late_ns) == 10
    assert all(late >= -1e6 for late in traffic.late_ns)


def test_a_hopeless_answer_stops_the_window() -> None:
    traffic = sent({"model": "other"}, requests_per_window=50)
    assert traffic.stop == "http_404"
    assert sum(bool(each) for each in traffic.answers) == 1
    assert [each.error for each in traffic.samples()].count("not_sent") == 49


def test_refusals_are_borne_to_a_point() -> None:
    traffic = sent({"lies": {"status": 429}}, requests_per_window=50)
    assert traffic.stop == "http_429"
    assert sum(bool(each) for each in traffic.answers) == 6


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        sent({}, requests_per_window=1)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
