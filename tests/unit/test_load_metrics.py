"""From streams to numbers: known times give known metrics; a stream that is not whole is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.http_wire import Exchange
from orchestrator.load_metrics import Sample, client_metrics, percentile, read_sample, server_metrics
from orchestrator.metrics_page import MetricsPage, parse_metrics
from orchestrator.workload import Request, Workload
from trackers.records import Acceptance

MS = 1_000_000


def request(phase: Any = "measured", kind: Any = "generate", expect: str = "", output: int = 5) -> Request:
    return Request(0, kind, phase, "/v1/completions", {"prompt": "p"}, output, None, expect)


def sample(sent: float, tokens: list[float], count: int, phase: str = "measured", **fields: Any) -> Sample:
    """Times in ms."""
    times = [round(at * MS) for at in tokens]
    return Sample(request(phase), round(sent * MS), times, 10, count, "length", **fields)


def workload(**fields: Any) -> Workload:
    return Workload(name="w", kind="generate", **fields)


def stream(*chunks: Any, status: int = 200, error: str = "", done: bool = True) -> Exchange:
    reads = [(at * MS, b"data: " + json.dumps(chunk).encode() + b"\n\n") for at, chunk in enumerate(chunks, 1)]
    end = [(99 * MS, b"data: [DONE]\n\n")] if done else []
    return Exchange(sent_ns=0, status=status, reads=reads + end, error=error)


def text(value: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": value, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


def test_a_stream_is_read_with_counts_from_usage_and_not_from_chunks() -> None:
    read = read_sample(request(), stream(text("a b c"), text(""), text("d", "length"), USAGE))
    assert (read.error, read.text, read.input_tokens, read.output_tokens) == ("", "a b cd", 7, 5)
    assert read.token_ns == [1 * MS, 2 * MS, 3 * MS]


def test_the_role_that_opens_a_chat_is_no_token_and_reasoning_is_one() -> None:
    chunks = [
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta("stop", content="a"),
        USAGE,
    ]
    read = read_sample(request(), stream(*chunks))
    assert read.token_ns == [2 * MS, 3 * MS]
    assert (read.reasoned, read.text) == (True, "a")


@pytest.mark.parametrize(
    ("exchange", "error"),
    [
        (stream(text("a"), error="stalled", done=False), "stalled"),
        (stream(text("a"), text("b", "length")), "no_usage"),
        (stream(text("a"), USAGE), "not_finished"),
        (stream(text("a"), {"error": {"message": "EngineDeadError"}}, USAGE), "stream_error"),
        (stream(text("a"), {"choices": 5}, USAGE), "malformed_sse"),
        (stream(text("a"), "text", USAGE), "malformed_sse"),
        (Exchange(status=200, reads=[(1, b"data: {oh\n\n")]), "malformed_sse"),
        (Exchange(status=200, reads=[(1, b'{"choices": [{"text": "a"}]}')]), "not_streamed"),
        (Exchange(status=429, reads=[(1, b'{"error": {"message": "slow down"}}')]), "http_429"),
        (Exchange(status=503, reads=[(1, b"<html>")]), "http_503"),
        (Exchange(error="unreachable"), "unreachable"),
    ],
)
def test_a_stream_that_is_not_whole_is_named(exchange: Exchange, error: str) -> None:
    assert read_sample(request(), exchange).error == error


def test_what_came_before_a_failure_is_kept() -> None:
    read = read_sample(request(), stream(text("a"), text("b"), error="early_eof", done=False))
    assert (read.text, len(read.token_ns)) == ("ab", 2)


def test_the_servers_own_words_are_the_detail() -> None:
    read = read_sample(request(), Exchange(status=404, reads=[(1, b'{"error": {"message": "no such model"}}')]))
    assert read.detail == "no such model"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], q: float) -> None:
    assert percentile(sorted(values), q) == pytest.approx(np.percentile(values, q), rel=1e-9, abs=1e-6)


def test_latencies_are_what_the_times_say() -> None:
    # Three chunks with 1, 2 and 4 tokens: the gaps between chunks are not the time of a token.
    metrics, span = client_metrics([sample(0, [20, 40, 80], 7), sample(100, [130, 150, 190], 7)], workload())
    assert metrics["mean_ttft_ms"] == pytest.approx(25)
    assert metrics["median_tpot_ms"] == pytest.approx(10)
    assert metrics["mean_itl_ms"] == pytest.approx(30)
    assert metrics["p99_e2el_ms"] == pytest.approx(89.9)
    assert metrics["decode_tok_s"] == pytest.approx(100)
    assert metrics["prefill_tok_s"] == pytest.approx(400)
    assert metrics["std_ttft_ms"] == pytest.approx(5)
    assert span.seconds == pytest.approx(0.19)
    assert metrics["output_throughput"] == pytest.approx(14 / 0.19)


def test_with_one_in_flight_throughput_is_total_over_duration() -> None:
    metrics, span = client_metrics([sample(0, [20, 100], 5), sample(100, [130, 200], 5)], workload())
    assert metrics["request_throughput"] == pytest.approx(2 / span.seconds)
    assert metrics["total_token_throughput"] == pytest.approx(30 / span.seconds)


def test_filling_and_draining_do_not_move_the_throughput() -> None:
    # Four in flight, each one second long and staggered: exactly four a second, however many are measured.
    phases = ["warm_up"] * 8 + ["measured"] * 5 + ["cool_down"] * 4
    sent = [250 * at for at in range(len(phases))]
    samples = [sample(at, [at + 100, at + 1000], 5, phase) for at, phase in zip(sent, phases, strict=True)]
    metrics, span = client_metrics(samples, workload(concurrency=4))
    assert span.seconds == pytest.approx(2.0)
    assert metrics["request_throughput"] == pytest.approx(4.0, rel=0.03)
    assert metrics["output_throughput"] == pytest.approx(20.0, rel=0.03)
    assert metrics["mean_e2el_ms"] == pytest.approx(1000)


def test_goodput_counts_what_keeps_every_bound() -> None:
    samples = [sample(0, [20, 40], 5), sample(40, [90, 110], 5)]
    metrics, span = client_metrics(samples, workload(goodput="ttft:30 tpot:6"))
    assert metrics["request_goodput"] == pytest.approx(1 / span.seconds)


def test_failed_requests_have_no_part_in_the_numbers() -> None:
    samples = [sample(0, [20, 40], 5), sample(40, [45], 5, error="early_eof")]
    assert client_metrics(samples, workload())[0]["mean_ttft_ms"] == pytest.approx(20)
    assert client_metrics(samples[1:], workload())[0] == {}


def test_a_stream_in_one_piece_has_no_decode_time() -> None:
    metrics, _ = client_metrics([sample(0, [20], 5)], workload())
    assert "decode_tok_s" not in metrics
    assert "mean_tpot_ms" not in metrics


def test_a_shared_prefix_reports_its_repeat_speedup() -> None:
    shared = Workload(name="s", kind="shared_prefix")
    samples = [sample(0, [100, 110], 5), sample(110, [120, 130], 5), sample(130, [140, 150], 5)]
    assert client_metrics(samples, shared)[0]["repeat_speedup"] == pytest.approx(10)


def test_needles_are_counted_beside_the_numbers() -> None:
    found = [
        Sample(request(kind="long_context", expect="123"), 0, [MS, 2 * MS], 9, 5, "length", t) for t in ("a 123", "no")
    ]
    assert client_metrics(found, Workload(name="n", kind="long_context"))[0]["needle_retrieved"] == 0.5


def page(**series: float) -> MetricsPage:
    return parse_metrics("\n".join(f"vllm:{name} {value}" for name, value in series.items()))


def test_tokens_a_pass_come_from_the_draft_counters_and_passes_from_the_steps() -> None:
    samples = [sample(0, [10, 110], 21), sample(200, [210, 310], 21)]
    before = page(iteration_tokens_total_count=5, generation_tokens_total=9, request_decode_time_seconds_sum=1.0)
    after = page(iteration_tokens_total_count=17, generation_tokens_total=51, request_decode_time_seconds_sum=1.2)
    drafted = Acceptance(drafts=10, draft_tokens=60, accepted_tokens=30)
    found = server_metrics(before, after, samples, drafted, 1)
    assert found["tokens_per_pass"] == pytest.approx(1 + 30 / 10)
    assert found["passes_s"] == pytest.approx(10 / 0.2)
    assert found["acceptance_length"] == pytest.approx(4)
    assert found["spec_decode_acceptance_rate"] == pytest.approx(50)


def test_with_many_in_flight_a_pass_is_a_step_of_the_batch() -> None:
    samples = [sample(0, [10, 1000], 20), sample(0, [10, 1000], 20)]
    before = page(iteration_tokens_total_count=0, generation_tokens_total=0)
    after = page(iteration_tokens_total_count=20, generation_tokens_total=40)
    assert server_metrics(before, after, samples, None, 2) == {"tokens_per_pass": 2.0, "passes_s": 20.0}


def test_without_the_servers_counters_nothing_is_made_up() -> None:
    assert server_metrics(None, None, [sample(0, [1, 2], 5)], None, 1) == {}
    none = Acceptance(drafts=0, draft_tokens=0, accepted_tokens=0)
    assert server_metrics(page(x=1), page(x=1), [sample(0, [1, 2], 5)], none, 1) == {}
