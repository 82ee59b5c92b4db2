"""The audit against the simulated engine over HTTP: fifty pools of known size, and each of its lies."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from orchestrator.audit import AuditFacts, audit, counters_between
from orchestrator.audit_probe import probe_capacity
from orchestrator.card import find_card
from orchestrator.clock import SystemClock
from orchestrator.metrics_page import parse_metrics
from orchestrator.model_arithmetic import weigh
from orchestrator.model_config import Fields
from orchestrator.model_shape import describe
from orchestrator.simulated_http import Server
from orchestrator.simulated_scheduler import Scheduler
from orchestrator.simulated_spec import Simulation
from orchestrator.simulated_startup import cache_labels
from orchestrator.simulated_surface import Drafter, Surface
from trackers.records import Acceptance, Measurement, WorkloadRef

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"
LENGTH = 32_768
HYBRID = describe(Fields(json.loads((CONFIGS / "hybrid-27b.json").read_text()), "hybrid"))
HYBRID = HYBRID.model_copy(update={"state": HYBRID.state.model_copy(update={"dtype": "auto"})})
# The same geometry as the surface's pool: 65 536 bytes a token, blocks that hold one layer's state.
SURFACE = Surface(
    version="0.32.0",
    base_tok_s=70.0,
    prefill_max_tok_s=1e6,
    kv_bytes_per_token=65_536,
    block_size=400,
    max_model_len=LENGTH,
    drafters={"mtp": Drafter(cost=0.15)},
)


class Quick(SystemClock):
    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.004))


@contextmanager
def served(simulation: Simulation, values: dict) -> Iterator[str]:
    """A simulated engine in a thread of this process, at its address."""
    started, port, halt = threading.Event(), [], []

    async def serve() -> None:
        stop = asyncio.Event()
        halt.append((asyncio.get_running_loop(), stop))
        scheduler = Scheduler(simulation, values, 0, "m")
        labels = cache_labels(values, simulation)
        server = Server(scheduler, name="m", root="m", cache=labels, finished=lambda done: None)
        engine = asyncio.create_task(scheduler.run())
        listening = await asyncio.start_server(server.connection, "127.0.0.1", 0)
        port.append(listening.sockets[0].getsockname()[1])
        started.set()
        await stop.wait()
        engine.cancel()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{port[0]}"
    finally:
        loop, stop = halt[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def page(url: str):
    return parse_metrics(httpx.get(f"{url}/metrics").text)


def decode(url: str, prompts: list[str], tokens: int) -> Measurement:
    """One stream at a time, timed here."""
    before, tpot, made = page(url), [], 0
    for prompt in prompts:
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        times = []
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body | {"stream_options": {"include_usage": True}}
        ) as answer:
            for line in answer.iter_lines():
                chunk = json.loads(line[6:]) if line.startswith("data: {") else {}
                times += [time.perf_counter()] * bool(chunk.get("choices"))
                made += (chunk.get("usage") or {}).get("completion_tokens", 0)
        tpot.append((times[-1] - times[0]) / (tokens - 1))
    moved = counters_between(before, page(url))
    drafts = int(moved.get("spec_decode_num_drafts", 0))
    accepted = int(moved.get("spec_decode_num_accepted_tokens", 0))
    mean = sum(tpot) / len(tpot)
    return Measurement(
        workload=WorkloadRef(name="generate", sha256="0"),
        launch=1,
        window=1,
        started_at=0,
        duration_s=1,
        completed=len(prompts),
        failed=0,
        total_input_tokens=0,
        total_output_tokens=made,
        metrics={"mean_tpot_ms": 1e3 * mean, "decode_tok_s": 1 / mean},
        acceptance=Acceptance(drafts=drafts, draft_tokens=0, accepted_tokens=accepted) if drafts else None,
    )


def audited(values: dict, *lies: str, prompts: tuple[str, ...] = ("a b c", "d e f", "g h i")) -> dict[str, str]:
    """Row -> verdict, findings only."""
    simulation = Simulation(surface=SURFACE, lies=lies)
    with served(simulation, values) as url:
        before = page(url)
        window = decode(url, [f"{prompt} {'word ' * 900}" for prompt in prompts], 64)
        after = page(url)
        probe = probe_capacity(url, "m", LENGTH, clock=Quick())
        labels = after.labels("vllm:cache_config_info")
    facts = AuditFacts(
        engine="0.32.0",
        model_dtype="bfloat16",
        shape=HYBRID,
        weights=weigh(HYBRID),
        card=find_card("NVIDIA H200", 141 << 30),
        method=str(values.get("drafter", "none")),
        k=0,
        reported={"max_model_len": str(LENGTH), "kv_cache_gib": f"{SURFACE.pool_gib(values):.2f}"},
        cache_config=labels,
        probe=probe,
        windows=(window,),
        counters=counters_between(before, after),
        cold=True,
    )
    # The simulated pool keeps no state for each draft token, so only the counters look at the drafter.
    facts = facts.model_copy(update={"k": int(values.get("k", 0))}) if "acceptance_doubled" in lies else facts
    return {found.name: found.verdict for found in audit(facts) if found.finding}


def test_fifty_seeded_pools_are_measured_within_three_percent() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        surface = replace(
            SURFACE,
            base_tok_s=900.0,
            prefill_max_tok_s=1e7,
            block_size=rng.choice((16, 32, 128, 400, 640)),
            state_groups=rng.choice((0, 3)),
            kv_bytes_per_token=rng.choice((24_576, 65_536, 131_072)),
            memory_gib=rng.uniform(60, 140),
        )
        values = {"max_model_len": 4096, "enable_prefix_caching": rng.random() < 0.5}
        with served(Simulation(surface=surface), values) as url:
            found = probe_capacity(url, "m", 4096, clock=Quick())
        assert found.tokens is not None, seed
        assert sum(found.tokens) / 2 == pytest.approx(surface.kv_tokens(values), rel=0.03), seed


@pytest.mark.parametrize("caching", [True, False])
def test_an_honest_engine_gives_no_finding(caching) -> None:
    assert audited({"max_model_len": LENGTH, "enable_prefix_caching": caching}) == {}


@pytest.mark.parametrize(
    ("lie", "row"),
    [
        ("wrong_block_size", "block size"),
        ("state_counted_as_attention", "pool report"),
        ("hits_when_cold", "prefix caching"),
        ("clock_off", "clock"),
        ("acceptance_doubled", "tokens per pass"),
    ],
)
def test_each_lie_is_named_by_its_row(lie, row) -> None:
    values = {"max_model_len": LENGTH, "enable_prefix_caching": lie == "hits_when_cold"}
    if lie == "acceptance_doubled":
        values |= {"drafter": "mtp", "k": 2}
    assert row in audited(values, lie)


def test_output_from_a_cache_is_named_by_a_ceiling() -> None:
    values = {"max_model_len": LENGTH, "enable_prefix_caching": False}
    found = audited(values, "cached_output", prompts=("a b c",) * 8)
    assert found["token ceiling"] == found["pass ceiling"] == "impossible"
