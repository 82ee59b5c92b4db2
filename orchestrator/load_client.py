"""The instrument: one window of a workload against one server becomes a Measurement, checks included."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from trackers.records import Acceptance, Check, Measurement

from .client_watch import share_of_result
from .clock import Clock, SystemClock
from .http_stream import StreamClient
from .load_metrics import Sample, client_metrics, server_metrics
from .load_window import Traffic, could_not, send_window
from .metrics_page import acceptance_between, counters_between
from .proofs import Evidence, ServerExpectation, greedy_repeats, window_checks
from .workload import Workload

__all__ = ["bench_json", "measure_window", "repeat_greedy"]


def measure_window(
    base_url: str,
    workload: Workload,
    *,
    model: str,
    launch: int = 0,
    window: int = 0,
    server: ServerExpectation | None = None,
    clock: Clock | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    stall_s: float = 120.0,
) -> Measurement:
    """Sends the window's requests and returns what they gave; what failed half-way is kept and named.

    Args:
        base_url: Any OpenAI-compatible server; its counters and proofs are read where it has them.
        workload: What to send.
        model: The name the server knows the model by.
        launch: Number of the engine start, for the record.
        window: Number of the window; decides the bytes that are sent.
        server: What was launched; without it the proofs of identity and settings do not apply.
        clock: For the time of the record.
        api_key: Bearer token.
        timeout_s: Bound on the window; requests under way then are given up and counted as failed.
        stall_s: Bound on the silence of one stream.

    Raises:
        MeasurementFailed: Nothing could be measured and no proof says why: unreachable, TLS, key, no answer.
    """
    started_at = (clock or SystemClock()).time()
    client = StreamClient(base_url, api_key=api_key, stall_s=stall_s)
    traffic = send_window(client, workload, window, model=model, timeout_s=timeout_s)
    samples = traffic.samples()
    metrics, span = client_metrics(samples, workload)
    counted = acceptance_between(traffic.before, traffic.after)
    acceptance = None if counted is None else Acceptance(**dict(zip(_COUNTED, counted, strict=True)))
    metrics |= server_metrics(traffic.before, traffic.after, samples, acceptance, workload.in_flight)
    if "median_ttft_ms" in metrics:
        traffic.client["share"] = share_of_result(traffic.client, metrics)
    checks = window_checks(_evidence(traffic, samples, metrics, acceptance, server))
    _refuse_empty(base_url, samples, checks)
    measured = [each for each in samples if each.request.phase == "measured"]
    good = [each for each in measured if not each.error]
    return Measurement(
        workload=workload.ref,
        launch=launch,
        window=window,
        started_at=started_at,
        duration_s=span.seconds,
        completed=len(good),
        failed=len(measured) - len(good),
        total_input_tokens=sum(each.input_tokens for each in good),
        total_output_tokens=sum(each.output_tokens for each in good),
        metrics=metrics,
        acceptance=acceptance,
        checks=checks,
        client=traffic.client,
        extra=_extra(traffic),
    )


# What an audit asks of a window later, when the server is gone.
_AUDITED = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "spec_decode_num_drafts",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "request_success",
    "generation_tokens",
    "iteration_tokens_total_count",
    "request_time_per_output_token_seconds_count",
    "request_time_per_output_token_seconds_sum",
)
_COUNTED = ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")


def _evidence(
    traffic: Traffic,
    samples: Sequence[Sample],
    metrics: dict[str, float],
    acceptance: Acceptance | None,
    server: ServerExpectation | None,
) -> Evidence:
    return Evidence(
        workload=traffic.workload,
        samples=samples,
        metrics=metrics,
        acceptance=acceptance,
        before=traffic.before,
        after=traffic.after,
        models=traffic.models,
        version=traffic.version,
        client=traffic.client,
        host=traffic.host,
        turns=traffic.turns,
        expected=server,
    )


def _refuse_empty(base_url: str, samples: Sequence[Sample], checks: Sequence[Check]) -> None:
    """Nothing whole came back: an error, unless another proof says why."""
    named = any(check.passed is False and check.name != "streams_finished" for check in checks)
    if named or any(not each.error for each in samples):
        return
    first = next((each for each in samples if each.error != "not_sent"), samples[0])
    raise could_not(base_url, first.error, first.detail)


def _extra(traffic: Traffic) -> dict[str, str]:
    workload = traffic.workload
    kept = {
        "model": traffic.model,
        "endpoint": workload.endpoint,
        "max_concurrency": str(workload.in_flight or ""),
        "request_rate": str(workload.request_rate or "inf"),
        "burstiness": str(workload.burstiness),
        "seed": str(workload.seed),
        "temperature": str(workload.temperature),
        "enable_thinking": str(workload.enable_thinking),
        "reasoning_effort": workload.reasoning_effort or "",
        "stopped": traffic.stop,
        "version": traffic.version or "",
    }
    if traffic.before and traffic.after:
        moved = counters_between(traffic.before, traffic.after)
        kept["counters"] = json.dumps({name: moved[name] for name in _AUDITED if name in moved})
    return {name: value for name, value in {**kept, **traffic.host}.items() if value}


def repeat_greedy(
    base_url: str, workload: Workload, *, model: str, api_key: str | None = None, timeout_s: float = 120.0
) -> Check:
    """Once a launch: two of the workload's prompts, asked one at a time, in three rounds.

    Raises:
        MeasurementFailed: The server could not be asked.
    """
    if workload.temperature:
        return greedy_repeats([])
    alone = workload.model_copy(update={"concurrency": 1, "request_rate": None, "requests_per_window": 2})
    texts = []
    for _ in range(3):
        client = StreamClient(base_url, api_key=api_key, stall_s=timeout_s)
        traffic = send_window(client, alone, -1, model=model, timeout_s=timeout_s)
        samples = traffic.samples()
        _refuse_empty(base_url, samples, ())
        texts.append([each.text for each in samples if not each.error])
    # The first round fills the prefix cache; the other two are computed alike, near-ties included.
    return greedy_repeats(list(zip(*texts[1:], strict=False)))


def bench_json(measurement: Measurement) -> dict[str, Any]:
    """The measurement as `vllm bench serve --save-result` writes one, for tools that read that."""
    found, extra = measurement.metrics, measurement.extra
    rate = extra.get("request_rate", "inf")
    shaped: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(measurement.started_at)),
        "backend": "vllm",
        "endpoint_type": "openai-chat" if extra.get("endpoint") == "chat" else "openai",
        "label": measurement.workload.name,
        "model_id": extra.get("model"),
        "num_prompts": measurement.completed + measurement.failed,
        "request_rate": rate if rate == "inf" else float(rate),
        "burstiness": float(extra.get("burstiness", "1")),
        "max_concurrency": int(extra["max_concurrency"]) if "max_concurrency" in extra else None,
        "duration": measurement.duration_s,
        "completed": measurement.completed,
        "failed": measurement.failed,
        "total_input_tokens": measurement.total_input_tokens,
        "total_output_tokens": measurement.total_output_tokens,
        "request_goodput": None,
        **found,
    }
    drafted = measurement.acceptance
    if drafted is not None and drafted.drafts:
        shaped["spec_decode_num_drafts"] = drafted.drafts
        shaped["spec_decode_draft_tokens"] = drafted.draft_tokens
        shaped["spec_decode_accepted_tokens"] = drafted.accepted_tokens
        shaped["spec_decode_per_position_acceptance_rates"] = [
            count / drafted.drafts for count in drafted.accepted_per_position
        ]
    return shaped
