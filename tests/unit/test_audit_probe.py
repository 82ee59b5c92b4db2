"""Measuring a pool of known geometry through the same HTTP a real server speaks."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import httpx
import pytest

from orchestrator.audit_probe import CapacityPoint, fit_capacity, probe_capacity
from orchestrator.errors import MeasurementFailed


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Pool:
    """A server that holds `fixed` + ceil(tokens / block) blocks a request until the client lets go."""

    blocks: int
    block: int
    fixed: int = 0
    null_block: bool = True
    label: int | None = None
    strangers: int = 0
    over_at_once: bool = False
    seconds_a_token: float = 0.0
    status: int = 200
    clock: Clock = field(default_factory=Clock)
    held: list[int] = field(default_factory=list)
    asked: list[dict] = field(default_factory=list)
    metrics: bool = True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200 if self.metrics else 404, text=self.page())
        body = json.loads(request.content)
        self.asked.append(body)
        if self.status != 200:
            return httpx.Response(self.status, text="max_tokens must be smaller")
        self.clock.now += self.seconds_a_token * len(body["prompt"])
        if self.seconds_a_token and request.extensions["timeout"]["read"] < self.seconds_a_token * len(body["prompt"]):
            raise httpx.ReadTimeout("late", request=request)
        return httpx.Response(200, stream=Held(self, len(body["prompt"]) + 1))

    def page(self) -> str:
        used = sum(self.fixed - -tokens // self.block for tokens in self.held)
        share = used / (self.blocks - self.null_block)
        return (
            f'vllm:num_requests_running{{engine="0"}} {len(self.held) + self.strangers}\n'
            f'vllm:num_requests_waiting{{engine="0"}} 0.0\nvllm:num_preemptions_total{{engine="0"}} 0.0\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {share!r}\n'
            f'vllm:cache_config_info{{num_gpu_blocks="{self.label or self.blocks}"}} 1.0\n'
        )

    def probe(self, max_model_len: int, **options):
        client = httpx.Client(transport=httpx.MockTransport(self), base_url="http://engine")
        return probe_capacity("http://engine", "m", max_model_len, client=client, clock=self.clock, **options)


class Held(httpx.SyncByteStream):
    def __init__(self, pool: Pool, tokens: int) -> None:
        self.pool, self.tokens = pool, tokens
        if not pool.over_at_once:
            pool.held.append(tokens)

    def __iter__(self):
        yield b'data: {"choices": [{"text": "a"}]}\n\n'
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        if self.tokens in self.pool.held:
            self.pool.held.remove(self.tokens)


def test_the_tiny_hybrid_is_measured_to_the_block() -> None:
    pool = Pool(blocks=13_107, block=640, fixed=3)
    found = pool.probe(4096, vocabulary=320)
    assert (found.blocks, found.fixed_blocks, found.full_blocks) == (13_106, (3, 3), (10, 10))
    assert found.block_tokens[0] <= 640 <= found.block_tokens[1]
    assert found.tokens[0] == pytest.approx(5_368_627, rel=1e-3)
    assert pool.held == []


def test_fifty_seeded_geometries_are_measured_within_three_percent() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        pool = Pool(
            blocks=rng.randrange(400, 60_000),
            block=rng.choice((16, 16, 32, 128, 400, 640, 784)),
            fixed=rng.choice((0, 0, 3, 6, 12)),
            null_block=rng.random() < 0.5,
        )
        length = rng.choice((4096, 32_768, 131_072))
        found = pool.probe(length, longest=16_384)
        blocks = pool.blocks - pool.null_block
        truth = blocks / (pool.fixed - -length // pool.block) * length
        assert found.tokens[0] <= truth * 1.001, seed
        assert found.tokens[1] >= truth * 0.999, seed
        assert sum(found.tokens) / 2 == pytest.approx(truth, rel=0.03), seed
        assert found.block_tokens[0] <= pool.block <= found.block_tokens[1], seed
        assert found.fixed_blocks[0] <= pool.fixed <= found.fixed_blocks[1], seed


def test_requests_stay_within_the_models_length_and_carry_only_plain_tokens() -> None:
    pool = Pool(blocks=2000, block=16)
    pool.probe(2048, vocabulary=320)
    assert all(len(body["prompt"]) + body["max_tokens"] <= 2048 for body in pool.asked)
    assert all(80 <= token < 160 for body in pool.asked for token in body["prompt"])
    assert len({tuple(body["prompt"][:16]) for body in pool.asked}) == len(pool.asked)


def test_only_single_requests_are_sent_unless_more_are_allowed() -> None:
    pool = Pool(blocks=2000, block=16)
    assert {point.requests for point in pool.probe(2048).points} == {1}
    loaded = Pool(blocks=2000, block=16).probe(2048, at_once=4)
    assert loaded.points[-1].requests == 4
    assert loaded.points[-1].usage == pytest.approx(4 * 125 / 1999, rel=0.02)


def test_a_wrong_number_of_blocks_is_seen_in_the_shares() -> None:
    found = Pool(blocks=2000, block=16, label=2300).probe(2048)
    assert found.blocks is None
    assert found.tokens is None


def test_a_rule_that_fits_nothing_still_gives_the_full_length() -> None:
    usages = [(256, 20), (1024, 21), (2048, 60), (4096, 61)]
    points = [CapacityPoint(low=n - 64, high=n, requests=1, usage=b / 999) for n, b in usages]
    found = fit_capacity(points, 1000, 4096)
    assert (found.block_tokens, found.full_blocks) == (None, (61, 62))
    assert fit_capacity(points, 1000, 100_000).tokens is None


def test_requests_that_are_over_before_they_are_seen_give_no_point() -> None:
    with pytest.raises(MeasurementFailed, match="could be read"):
        Pool(blocks=2000, block=16, over_at_once=True).probe(2048)


def test_a_slow_server_is_left_when_time_is_up() -> None:
    pool = Pool(blocks=2000, block=16, seconds_a_token=0.02)
    found = pool.probe(2048, budget_s=30)
    assert 1 <= len(found.points) < 5
    assert pool.clock.now < 60
    assert pool.held == []


def test_a_busy_server_is_not_probed() -> None:
    with pytest.raises(MeasurementFailed, match="1 running"):
        Pool(blocks=2000, block=16, strangers=1).probe(2048)


def test_a_refusal_says_what_the_server_said() -> None:
    with pytest.raises(MeasurementFailed, match="max_tokens must be smaller"):
        Pool(blocks=2000, block=16, status=400).probe(2048)


def test_a_server_without_metrics_is_named() -> None:
    with pytest.raises(MeasurementFailed, match="metrics"):
        Pool(blocks=2000, block=16, metrics=False).probe(2048)
