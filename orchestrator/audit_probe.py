"""Measures what a server's KV pool holds: hold a request of known length, read the share it takes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import httpx

from trackers.records import Frozen

from .clock import Clock, SystemClock
from .errors import MeasurementFailed
from .metrics_page import MetricsPage, parse_metrics

__all__ = ["CapacityPoint", "CapacityProbe", "fit_capacity", "probe_capacity"]

SHARES = (1 / 16, 1 / 4, 1 / 2, 3 / 4, 1)
HOLDS = (64, 512)
READINGS = 3
REFINEMENTS = 3
READ_EVERY_S = 0.02
IDLE_S = 20.0


class CapacityPoint(Frozen):
    """Requests of between `low` and `high` tokens each, held at once, and the share of the pool they took."""

    low: int
    high: int
    requests: int
    usage: float


class CapacityProbe(Frozen):
    """What holding requests showed; pairs are the lowest and the highest value that fit every reading.

    `blocks` is the number of usable blocks, None where the readings are no multiples of the labelled one;
    `block_tokens` and `fixed_blocks` (held whatever the length) are None where no single rule fits;
    `tokens` is what requests of `max_model_len` tokens can hold together, None where nothing reached far.
    """

    max_model_len: int
    points: tuple[CapacityPoint, ...]
    blocks: int | None = None
    block_tokens: tuple[int, int] | None = None
    fixed_blocks: tuple[int, int] | None = None
    full_blocks: tuple[int, int] | None = None
    tokens: tuple[float, float] | None = None
    preemptions: int = 0
    elapsed_s: float = 0.0


def fit_capacity(points: Sequence[CapacityPoint], labelled_blocks: int, max_model_len: int) -> CapacityProbe:
    """Reads every rule `fixed + ceil(tokens / block)` that all single-request points allow; exact, no fit."""
    probe = CapacityProbe(max_model_len=max_model_len, points=tuple(points))
    single = [point for point in points if point.requests == 1]
    # One block of the pool is never given out; engines count it or not.
    whole = (n for n in (labelled_blocks - 1, labelled_blocks) if n > 0 and all(_is_whole(p.usage * n) for p in points))
    blocks = next(whole, None)
    if blocks is None or not single:
        return probe
    held = [(point.low, point.high, round(point.usage * blocks)) for point in single]
    rules = _rules(held)
    found = probe.model_copy(update={"blocks": blocks})
    if rules:
        least = min(fixed - -max_model_len // most for fixed, _, most in rules)
        full = (least, max(fixed - -max_model_len // size for fixed, size, _ in rules))
        span = (min(size for _, size, _ in rules), max(most for _, _, most in rules))
        fixed = (min(rule[0] for rule in rules), max(rule[0] for rule in rules))
        found = found.model_copy(update={"block_tokens": span, "fixed_blocks": fixed})
    elif max(held)[1] >= 0.95 * max_model_len:
        full = (max(held)[2], max(held)[2] + 1)
    else:
        return found
    tokens = (blocks / full[1] * max_model_len, blocks / full[0] * max_model_len)
    return found.model_copy(update={"full_blocks": full, "tokens": tokens})


def _is_whole(value: float) -> bool:
    return value > 0.5 and abs(value - round(value)) < 1e-3


def _rules(held: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(fixed blocks, smallest, largest tokens a block) that explain all of (low, high tokens, blocks)."""
    rules = []
    for fixed in range(min(blocks for _, _, blocks in held)):
        smallest = max(-(-low // (blocks - fixed)) for low, _, blocks in held)
        limits = [(high - 1) // (blocks - fixed - 1) for _, high, blocks in held if blocks - fixed > 1]
        largest = min(limits, default=max(high for _, high, _ in held))
        if smallest <= largest:
            rules.append((fixed, smallest, largest))
    return rules


def probe_capacity(
    url: str,
    model: str,
    max_model_len: int,
    *,
    vocabulary: int = 32_000,
    longest: int = 32_768,
    at_once: int = 1,
    k: int = 0,
    budget_s: float = 90.0,
    api_key: str | None = None,
    clock: Clock | None = None,
    client: httpx.Client | None = None,
) -> CapacityProbe:
    """Holds single requests of rising length (and `at_once` of the longest) on an idle server.

    The server is left as it was. `k` are the tokens its drafter may write ahead.

    Raises:
        MeasurementFailed: the server cannot be reached, is busy, refuses, or nothing could be read in time.
    """
    clock = clock or SystemClock()
    started = clock.monotonic()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    session = client or httpx.Client(base_url=base, headers=headers, verify=base.startswith("https"))
    with session:
        probing = _Probing(session, clock, started + budget_s, model=model, vocabulary=vocabulary, k=k)
        first = probing.wait_idle()
        label = first.labels("vllm:cache_config_info").get("num_gpu_blocks", "")
        blocks = int(label) if label.isdigit() else 0
        reach = min(max_model_len, longest)
        points = [point for share in SHARES if (point := probing.hold(int(share * reach), 1))]
        for _ in range(REFINEMENTS):
            # Where two sizes of block would make another full length, a length between them tells.
            found = fit_capacity(points, blocks, max_model_len)
            if not found.block_tokens or not found.full_blocks or len(set(found.full_blocks)) == 1:
                break
            middle = sum(found.block_tokens) // 2
            points += [point] if (point := probing.hold(reach // middle * middle, 1)) else []
        if at_once > 1 and (point := probing.hold(reach, at_once)):
            points.append(point)
        last = probing.wait_idle()
    if not points:
        raise MeasurementFailed(
            f"Nothing of the KV pool of {url} could be read within {budget_s:.0f} s.",
            "Give it more time, or check that /metrics has vllm:kv_cache_usage_perc.",
        )
    preempted = (last.total("vllm:num_preemptions") or 0) - (first.total("vllm:num_preemptions") or 0)
    seen = {"preemptions": int(preempted), "elapsed_s": clock.monotonic() - started}
    return fit_capacity(points, blocks, max_model_len).model_copy(update=seen)


class _Probing:
    """One probe under way: its connection, its deadline, and prompts that no cache has seen."""

    def __init__(
        self, session: httpx.Client, clock: Clock, deadline: float, *, model: str, vocabulary: int, k: int
    ) -> None:
        self.session, self.model, self.clock = session, model, clock
        self.deadline, self.k = deadline, k
        self.words = (vocabulary // 4, max(vocabulary // 2, vocabulary // 4 + 2))
        self.random = random.Random(clock.time())  # noqa: S311 - prompts, not secrets

    def page(self) -> MetricsPage:
        try:
            answer = self.session.get("/metrics", timeout=10)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise MeasurementFailed(
                f"{self.session.base_url} gives no /metrics: {error}.",
                "Check the address, and that the server was started without --disable-log-stats.",
            ) from error
        return parse_metrics(answer.text)

    def wait_idle(self) -> MetricsPage:
        limit = self.clock.monotonic() + IDLE_S
        while True:
            page = self.page()
            busy = [page.total(f"vllm:num_requests_{state}") or 0 for state in ("running", "waiting")]
            if not any(busy):
                return page
            if self.clock.monotonic() > limit:
                raise MeasurementFailed(
                    f"The server has {busy[0]:.0f} running and {busy[1]:.0f} waiting requests of others.",
                    "Probe its capacity when nobody else uses it.",
                )
            self.clock.sleep(READ_EVERY_S * 5)

    def hold(self, tokens: int, requests: int) -> CapacityPoint | None:
        """The point; None where time ran out or the requests were over before they were seen."""
        for extra in HOLDS:
            if tokens <= extra or self.clock.monotonic() >= self.deadline:
                return None
            self.wait_idle()
            usage = self._held_usage(tokens - extra, extra, requests)
            if usage:
                return CapacityPoint(low=tokens - extra, high=tokens + self.k, requests=requests, usage=usage)
        return None

    def _held_usage(self, prompt_tokens: int, extra: int, requests: int) -> float | None:
        try:
            with contextlib.ExitStack() as streams:
                for _ in range(requests):
                    self._open(streams, prompt_tokens, extra)
                pages = [self._later_page() for _ in range(READINGS)]
        except httpx.TimeoutException:
            return None
        except httpx.HTTPError as error:
            raise MeasurementFailed(f"The server broke off a request: {error}.", "Look at its log.") from error
        whole = [page for page in pages if page.total("vllm:num_requests_running") == requests]
        return max((page.total("vllm:kv_cache_usage_perc") or 0 for page in whole), default=None)

    def _later_page(self) -> MetricsPage:
        self.clock.sleep(READ_EVERY_S)
        return self.page()

    def _open(self, streams: contextlib.ExitStack, prompt_tokens: int, extra: int) -> None:
        """Starts a streamed request and reads on to its first token: from then on its prompt is held."""
        body = {
            "model": self.model,
            "prompt": self.random.choices(range(*self.words), k=prompt_tokens),
            "max_tokens": extra,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        left = max(1.0, self.deadline - self.clock.monotonic())
        answer = streams.enter_context(self.session.stream("POST", "/v1/completions", json=body, timeout=left))
        if answer.status_code != 200:
            said = answer.read().decode(errors="replace")[:200]
            raise MeasurementFailed(
                f"The server refused a request of {prompt_tokens} tokens ({answer.status_code}): {said}",
                "Check the model name and max_model_len.",
            )
        lines: Any = answer.iter_lines()
        streams.callback(lines.close)  # an iterator let go of would end the request
        next((line for line in lines if line.startswith("data:")), None)
