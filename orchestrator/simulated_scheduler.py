"""The simulated engine itself: requests get KV blocks, are prefilled, and are decoded pass by pass."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .simulated_metrics import Counters
from .simulated_spec import Simulation, launch_effect, window_effect

__all__ = ["Request", "Scheduler"]

_GOLDEN = 0.6180339887498949
_PRECISE_S = 0.0015
Event = tuple[float, "Request", int]


@dataclass(eq=False, slots=True)
class Request:
    """One sequence; `chunks` gets (tokens so far, finish reason or None)."""

    prompt: Sequence[str | int]
    max_tokens: int
    workload: str
    reason: str = "length"
    chunks: asyncio.Queue[tuple[int, str | None]] = field(default_factory=asyncio.Queue)
    arrived_s: float = field(default_factory=time.monotonic)
    done: int = 0
    blocks: int = 0
    passes: int = 0
    cached: int = 0
    speedup: int = 1
    started_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    key: int = 0

    def __post_init__(self) -> None:
        # The same for the same prompt, in every process.
        self.key = zlib.crc32(repr(self.prompt).encode())


class Scheduler:
    """Engine time runs ahead of the real one and each event waits for its moment, so lateness never adds up.

    Accepted drafts follow a low-discrepancy sequence: their mean is the surface's after few passes.
    """

    def __init__(self, simulation: Simulation, values: Mapping[str, Any], launch: int, name: str) -> None:
        self.simulation, self.values, self.launch = simulation, values, launch
        self.surface = surface = simulation.surface
        self.faults = simulation.faults_for(launch, values)
        self.k = surface.drafter(values)[1]
        self.counters = Counters(name, self.k)
        self.blocks = int(surface.blocks(values))
        self.seats = int(surface.value(values, "max_num_seqs"))
        self.caching = bool(surface.value(values, "enable_prefix_caching"))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.arrival = asyncio.Event()
        self.started_s = self.now = time.monotonic()
        self._passes = 0
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._prompts: set[int] = set()
        self._pass_s: dict[int, float] = {}
        self._positions: dict[str, list[float]] = {}
        self._windows: dict[int, float] = {}
        noise, seed = simulation.noise, simulation.seed
        self._decode_factor = launch_effect(noise, seed, launch) * simulation.speed
        self._prefill_tok_s = float(surface.prefill_tok_s(values)) * simulation.speed
        self._prefill_tok_s *= launch_effect(noise, seed, launch, "prefill")

    @property
    def used(self) -> int:
        return sum(request.blocks for request in self.running)

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        self.arrival.set()

    def abort(self, request: Request) -> None:
        """The client went away."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._end(request, "abort")

    async def run(self) -> None:
        """Until cancelled."""
        if self.faults.get("never_generates"):
            await asyncio.Event().wait()
        while True:
            if not self.waiting and not self.running:
                self.arrival.clear()
                await self.arrival.wait()
                self.now = time.monotonic()
            events = sorted(self._step(), key=lambda event: event[0])
            for event in events:
                await self._deliver(*event)
            if not events:
                await asyncio.sleep(self.now - time.monotonic())

    async def _deliver(self, at_s: float, request: Request, tokens: int) -> None:
        if (wait := at_s - time.monotonic() - _PRECISE_S) > 0:
            await asyncio.sleep(wait)
        if (wait := at_s - time.monotonic()) > 0:
            time.sleep(wait)  # noqa: ASYNC251 - the event loop wakes up to a millisecond late, this does not
        if request not in self.running:
            return
        first = not request.first_s
        request.first_s = request.first_s or at_s
        name = "time_to_first_token_seconds" if first else "inter_token_latency_seconds"
        self._observe(name, at_s - (request.arrived_s if first else request.last_s))
        request.last_s = at_s
        self.counters.count["generation_tokens"] += tokens
        over = request.done >= request.max_tokens
        request.chunks.put_nowait((request.done, request.reason if over else None))
        if over:
            self._end(request, request.reason)
        await asyncio.sleep(0)

    def _step(self) -> list[Event]:
        """Admit and prefill one request if it fits, else passes until a tick is over or one finishes."""
        if self.waiting and self._admits(self.waiting[0]):
            return self._prefill(self.waiting.popleft())
        events: dict[Request, Event] = {}
        end = self.now + self.simulation.tick_s
        finished = False
        stalled = self.faults.get("stall_after_tokens")
        while self.now < end and not finished:
            step = self._step_s(len(self.running))
            for request in list(self.running):
                if request not in self.running or (stalled is not None and request.done >= stalled):
                    continue
                finished |= self._pass(request, step, events)
            self.now += step
        return list(events.values())

    def _pass(self, request: Request, step: float, events: dict[Request, Event]) -> bool:
        request.passes += 1
        self._passes += 1
        at = request.passes * _GOLDEN % 1
        accepted = sum(1 for chance in self._chances(request.workload) if chance > at)
        self._count_drafts(accepted)
        made = (accepted + 1) * request.speedup
        took = min(made, request.max_tokens - request.done)
        request.done += took
        over = request.done >= request.max_tokens
        # The last pass ends with its last token needed, or short outputs would look slow.
        at_s = self.now + (step * took / made if over else step)
        events[request] = (at_s, request, took + (events[request][2] if request in events else 0))
        self._grow(request, events)
        return over

    def _chances(self, workload: str) -> list[float]:
        if workload not in self._positions:
            drafter, k = self.surface.drafter(self.values)
            self._positions[workload] = drafter.positions(k, workload)
        return self._positions[workload]

    def _step_s(self, streams: int) -> float:
        if streams not in self._pass_s:
            self._pass_s[streams] = 1 / float(self.surface.passes_s(self.values, max(streams, 1)))
        noise = self.simulation.noise
        window = int((self.now - self.started_s) / noise.window_s)
        if window not in self._windows:
            self._windows[window] = window_effect(noise, self.simulation.seed, self.launch, window)
        return self._pass_s[streams] / self._decode_factor / self._windows[window]

    def _count_drafts(self, accepted: int) -> None:
        if not self.k:
            return
        count, times = self.counters.count, 2 if "acceptance_doubled" in self.simulation.lies else 1
        count["spec_decode_num_drafts"] += 1
        count["spec_decode_num_draft_tokens"] += self.k
        count["spec_decode_num_accepted_tokens"] += accepted * times
        for position in range(accepted):
            self.counters.accepted_at[position] += times

    def _need(self, request: Request) -> int:
        return int(self.surface.request_blocks(self.values, len(request.prompt) + request.done + 1))

    def _admits(self, request: Request) -> bool:
        return len(self.running) < self.seats and self.used + self._need(request) <= self.blocks

    def _grow(self, request: Request, events: dict[Request, Event]) -> None:
        """Blocks for its new tokens; when none are left the youngest other request is put back."""
        need = self._need(request)
        while self.used - request.blocks + need > self.blocks and len(self.running) > 1:
            victim = next(other for other in reversed(self.running) if other is not request)
            if victim in events:
                victim.done -= events.pop(victim)[2]
            self.running.remove(victim)
            victim.blocks = 0
            self.waiting.appendleft(victim)
            self.counters.count["num_preemptions"] += 1
        request.blocks = need

    def _prefill(self, request: Request) -> list[Event]:
        request.blocks = self._need(request)
        # Each goes on where the engine's sequence stands, so that requests one after another share one.
        request.passes = request.passes or self._passes
        self.running.append(request)
        self.now = max(self.now, request.arrived_s)
        request.started_s = request.started_s or self.now
        tokens = len(request.prompt) + request.done
        request.cached = self._cached(request)
        self.now += (tokens - request.cached) / self._prefill_tok_s
        if request.done:
            return []
        count = self.counters.count
        count["prompt_tokens"] += len(request.prompt)
        count["prompt_tokens_cached"] += request.cached
        request.done = 1
        return [(self.now, request, 1)]

    def _cached(self, request: Request) -> int:
        """Tokens of a prompt that are served from the cache; the prompt's own blocks are in it afterwards."""
        lies, length = self.simulation.lies, len(request.prompt)
        seen = request.key in self._prompts
        self._prompts.add(request.key)
        if "cached_output" in lies and seen:
            request.speedup = 20
        if not self.caching:
            return 0
        size, key, hits, hitting = self.surface.block_size, 0, 0, True
        for start in range(0, length - size + 1, size):
            key = zlib.crc32(repr((key, *request.prompt[start : start + size])).encode())
            hitting = hitting and key in self._cache
            hits += size * hitting
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) > self.blocks:
            self._cache.popitem(last=False)
        hits = min(hits, length - 1)
        if "hits_when_cold" in lies and not seen:
            hits = max(hits, int(length * 0.9))
        self.counters.count["prefix_cache_queries"] += length
        self.counters.count["prefix_cache_hits"] += hits
        return hits

    def _observe(self, name: str, value: float) -> None:
        stretched = name.endswith("seconds") and "clock_off" in self.simulation.lies
        self.counters.seen[name].append(value * (1.05 if stretched else 1))

    def _end(self, request: Request, reason: str) -> None:
        self.running.remove(request)
        request.blocks = 0
        self.counters.finished[reason] += 1
        if reason == "abort":
            return
        decode = request.last_s - request.first_s
        self._observe("e2e_request_latency_seconds", request.last_s - request.arrived_s)
        self._observe("request_queue_time_seconds", request.started_s - request.arrived_s)
        self._observe("request_inference_time_seconds", request.last_s - request.started_s)
        self._observe("request_prefill_time_seconds", request.first_s - request.started_s)
        self._observe("request_decode_time_seconds", decode)
        self._observe("request_time_per_output_token_seconds", decode / max(request.done - 1, 1))
        self._observe("request_prompt_tokens", len(request.prompt))
        self._observe("request_generation_tokens", request.done)
