"""The simulated engine's schedule keeps the surface's speeds, holds blocks truly, and lies only when told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.metrics_page import MetricsPage, parse_metrics
from orchestrator.simulated_moves import GH200
from orchestrator.simulated_scheduler import Request, Scheduler
from orchestrator.simulated_spec import Noise, Simulation, launch_effect
from orchestrator.simulated_surface import Surface, Traffic

DENSE = replace(GH200, state_groups=0, block_size=16, max_model_len=8192)
COLD = {"enable_prefix_caching": False}
SPEED = 1000.0


def scheduler(values: dict[str, object], surface: Surface = DENSE, launch: int = 0, **more: object) -> Scheduler:
    return Scheduler(Simulation(surface=surface, **{"speed": SPEED, **more}), values, launch, "m")


def served(engine: Scheduler, requests: Sequence[Request]) -> Sequence[Request]:
    """All answered together; times are the schedule's, whatever the machine did meanwhile."""

    async def run() -> None:
        for request in requests:
            engine.submit(request)
        task = asyncio.create_task(engine.run())
        for request in requests:
            while (await asyncio.wait_for(request.chunks.get(), 20))[1] is None:
                pass
        task.cancel()

    asyncio.run(run())
    return requests


def decode_tok_s(request: Request) -> float:
    return (request.done - 1) / (request.last_s - request.first_s) / SPEED


def page(engine: Scheduler) -> MetricsPage:
    return parse_metrics(engine.counters.page({}, {}))


def said(n: int, tokens: int = 400, prompt: int = 4) -> list[Request]:
    return [Request([f"{at}"] * prompt, tokens, "generate") for at in range(n)]


@pytest.mark.parametrize("k", [0, 2, 4, 8])
@pytest.mark.parametrize("streams", [1, 8])
def test_streams_decode_at_the_speed_of_the_surface(k: int, streams: int) -> None:
    values = {**COLD, **({"drafter": "mtp", "k": k} if k else {})}
    found = [decode_tok_s(request) for request in served(scheduler(values), said(streams, 1000))]
    truth = DENSE.decode_tok_s(values, Traffic(streams=streams))
    assert sum(found) / streams == pytest.approx(truth, rel=0.015)


def test_together_they_give_what_the_surface_says_prompts_included() -> None:
    def score() -> float:
        requests = served(scheduler(COLD), said(8, 512, 1024))
        took = max(r.last_s for r in requests) - min(r.arrived_s for r in requests)
        return 8 * 512 / took / SPEED

    truth = DENSE.score(COLD, Traffic(streams=8, input_tokens=1024, output_tokens=512))
    # Arrivals are real: a busy machine spreads the burst and lowers it, and never raises it.
    best = max(score() for _ in range(3))
    assert truth * 0.7 < best < truth * 1.02


def test_no_more_run_at_once_than_max_num_seqs_allows() -> None:
    requests = served(scheduler({**COLD, "max_num_seqs": 2}), said(4, 100))
    assert sorted(r.first_s for r in requests)[2] > min(r.last_s for r in requests)


def test_positions_are_counted_as_the_surface_accepts_them() -> None:
    engine = scheduler({**COLD, "drafter": "mtp", "k": 4})
    served(engine, said(8, 128))
    found = page(engine)
    drafts = found.total("vllm:spec_decode_num_drafts") or 0
    rates = found.by_label("vllm:spec_decode_num_accepted_tokens_per_pos", "position")
    for at, chance in enumerate(DENSE.drafters["mtp"].positions(4, "generate")):
        assert rates[str(at)] / drafts == pytest.approx(chance, abs=0.03)
    assert found.total("vllm:spec_decode_num_accepted_tokens") == sum(rates.values())
    assert found.total("vllm:spec_decode_num_draft_tokens") == 4 * drafts
    assert found.total("vllm:generation_tokens") == 8 * 128
    assert found.total("vllm:prompt_tokens") == 8 * 4
    assert found.by_label("vllm:request_success", "finished_reason")["length"] == 8


def test_without_a_drafter_there_are_no_draft_counters() -> None:
    assert not page(scheduler(COLD)).has("vllm:spec_decode_num_drafts")


@pytest.mark.parametrize(("caching", "states"), [(False, 3), (True, 6)])
def test_a_request_holds_its_tokens_in_blocks_and_its_state(caching: bool, states: int) -> None:
    surface = replace(GH200, max_model_len=16384)
    engine = scheduler({"enable_prefix_caching": caching}, surface, faults={"stall_after_tokens": 1})
    request = Request(["x"] * 2000, 8, "generate")

    async def held() -> int:
        engine.submit(request)
        task = asyncio.create_task(engine.run())
        await asyncio.wait_for(request.chunks.get(), 20)
        task.cancel()
        return engine.used

    assert asyncio.run(held()) == math.ceil(2001 / 640) + states
    engine.abort(request)
    assert engine.used == 0


def test_requests_beyond_the_pool_are_preempted_and_still_answered() -> None:
    engine = scheduler({**COLD, "kv_cache_memory_bytes": 80 * 16 * 32768, "max_model_len": 1024})
    served(engine, said(4, 500))
    found = page(engine)
    assert (found.total("vllm:num_preemptions") or 0) > 0
    assert found.total("vllm:generation_tokens") == 4 * 500
    assert engine.used == 0


def test_a_repeated_prefix_is_served_from_the_cache_and_only_then() -> None:
    engine = scheduler({"enable_prefix_caching": True})
    for hits in (0, 992):
        (request,) = served(engine, [Request(list(range(1000)), 4, "generate")])
        assert request.cached == hits
    assert page(engine).total("vllm:prefix_cache_hits") == 992
    assert page(engine).total("vllm:prefix_cache_queries") == 2000


def test_the_cache_forgets_what_the_pool_cannot_hold() -> None:
    engine = scheduler({"enable_prefix_caching": True, "kv_cache_memory_bytes": 80 * 16 * 32768})
    for first in (0, 5000, 0):
        (request,) = served(engine, [Request(list(range(first, first + 1200)), 4, "generate")])
    assert request.cached == 0


@pytest.mark.parametrize("launch", range(3))
def test_a_launch_has_its_own_speed(launch: int) -> None:
    noise = Noise(launch_sd=0.1)
    (request,) = served(scheduler(COLD, noise=noise, seed=3, launch=launch), said(1, 1000))
    truth = DENSE.decode_tok_s(COLD, Traffic()) * launch_effect(noise, 3, launch)
    assert decode_tok_s(request) == pytest.approx(truth, rel=0.002)


def test_a_drifting_engine_slows_from_window_to_window() -> None:
    engine = scheduler(COLD, noise=Noise(drift=0.1, window_s=0.05), speed=50.0)
    early, late = (served(engine, said(1, 500))[0] for _ in range(2))
    assert decode_tok_s(late) < 0.9 * decode_tok_s(early)


def test_prompts_never_seen_are_told_as_cached() -> None:
    engine = scheduler({"enable_prefix_caching": True}, lies=("hits_when_cold",))
    served(engine, [Request(list(range(1000)), 4, "generate")])
    assert page(engine).total("vllm:prefix_cache_hits") == 900


def test_accepted_drafts_are_told_twice() -> None:
    values = {**COLD, "drafter": "mtp", "k": 2}
    told = []
    for lies in ((), ("acceptance_doubled",)):
        engine = scheduler(values, lies=lies)
        served(engine, said(1, 300))
        told.append(page(engine).total("vllm:spec_decode_num_accepted_tokens") or 0)
    assert told[1] == 2 * told[0] > 0


def test_the_engines_own_clock_runs_five_percent_long() -> None:
    engine = scheduler(COLD, lies=("clock_off",))
    (request,) = served(engine, said(1, 300))
    told = engine.counters.seen["request_decode_time_seconds"][0]
    assert told == pytest.approx(1.05 * (request.last_s - request.first_s))


def test_an_answer_given_before_comes_faster_than_the_engine_can() -> None:
    engine = scheduler(COLD, lies=("cached_output",))
    first, again = (served(engine, said(1, 500))[0] for _ in range(2))
    assert decode_tok_s(again) > 10 * decode_tok_s(first)
