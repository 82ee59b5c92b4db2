"""The audit's rows about memory: blocks, bytes, tokens, states, full-length requests, weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .audit_facts import AuditFacts, AuditRow, close, number, row
from .model_arithmetic import PoolLayout, element_bytes, pool_layout, reported_tokens

__all__ = ["pool_rows"]

GIB = 2**30
EXACT = 0.005
POOL = 0.05


@dataclass(frozen=True, slots=True)
class _Pool:
    """What the engine says of its pool and the layout that arithmetic gives a pool of that block size."""

    facts: AuditFacts
    layout: PoolLayout
    label: int | None
    size: float | None
    blocks: int | None
    tokens: float | None
    concurrency: float | None
    length: int | None
    in_flight: int

    @property
    def token_bytes(self) -> float:
        return self.layout.block_bytes / self.layout.block_tokens

    @property
    def size_implied(self) -> float | None:
        """Tokens a block by the pool's bytes and blocks."""
        return self.size / self.blocks / self.token_bytes if self.size and self.blocks else None

    @property
    def size_measured(self) -> float | None:
        span = self.facts.probe and self.facts.probe.block_tokens
        return _within(span, self.label, self.size_implied) if span else None

    @property
    def full(self) -> int | None:
        """Blocks that a request of max_model_len holds, by arithmetic."""
        return self.layout.request_blocks(self.length, self.in_flight) if self.length else None


def _within(span: tuple[float, float], *candidates: float | None) -> float:
    """A measurement is a span: the first candidate that it allows, else its middle."""
    allowed = (each for each in candidates if each and span[0] * (1 - EXACT) <= each <= span[1] * (1 + EXACT))
    return next(allowed, sum(span) / 2)


def pool_rows(facts: AuditFacts) -> Iterator[AuditRow]:
    pool = _read(facts)
    if pool is None:
        known = facts.shape is not None and facts.shape.family != "unknown"
        why = "its cache format or mixture of layers" if known else "the architecture"
        yield AuditRow(name="KV pool", sentence=f"No arithmetic for this model: {why} is not known.")
        return
    yield _block_size(pool)
    yield _blocks(pool)
    yield _bytes(pool)
    yield _token_bytes(pool)
    yield _report(pool)
    yield _tokens(pool)
    if pool.layout.state_groups:
        yield _states(pool)
    yield _full_length(pool)
    yield _weights(facts)


def _read(facts: AuditFacts) -> _Pool | None:
    labels, said = facts.cache_config, facts.reported
    label = number(labels, "block_size") or number(said, "effective.attention_block_size")
    mode = labels.get("mamba_cache_mode") or ""
    layout = facts.shape and pool_layout(
        facts.shape,
        model_dtype=facts.model_dtype if facts.model_dtype != "auto" else facts.shape.dtype,
        cache_dtype=labels.get("cache_dtype") or "auto",
        block_tokens=_trusted_block(facts, label),
        tensor_parallel=facts.cards,
        k=facts.k,
        drafter=facts.drafter,
        aligned=mode == "align" if mode else bool(facts.caching),
    )
    if not layout:
        return None
    gib = number(said, "kv_cache_gib")
    length = number(said, "effective.max_model_len", "max_model_len") or number(facts.resolved, "max_model_len")
    return _Pool(
        facts=facts,
        layout=layout,
        label=int(label) if label else None,
        size=number(labels, "kv_cache_memory_bytes", "cpu_kvcache_space_bytes") or (gib * GIB if gib else None),
        blocks=int(number(labels, "num_gpu_blocks") or 0) or None,
        tokens=number(said, "kv_cache_tokens") or number(labels, "kv_cache_size_tokens"),
        concurrency=number(labels, "kv_cache_max_concurrency") or number(said, "max_concurrency"),
        length=int(length) if length else None,
        in_flight=int(number(said, "max_num_batched_tokens") or 0),
    )


def _trusted_block(facts: AuditFacts, label: float | None) -> int:
    """The labelled block size, unless the measurement rules it out."""
    span = facts.probe.block_tokens if facts.probe else None
    if span and label and not span[0] <= label <= span[1]:
        return (span[0] + span[1]) // 2
    return int(label or 16)


def _block_size(pool: _Pool) -> AuditRow:
    columns = (pool.label, pool.size_implied, pool.size_measured)
    finding = "The engine's block is not of the size it says: every token count built on that size is off."
    return row("block size", columns, "tokens", 0.02, finding=finding)


def _blocks(pool: _Pool) -> AuditRow:
    expected = pool.layout.blocks(pool.size) if pool.size else None
    probe = pool.facts.probe
    measured = pool.blocks if probe and probe.blocks else None
    finding = "The pool's bytes do not give that many blocks of this model: its KV format or layers differ."
    found = row("blocks", (pool.blocks, expected, measured), "blocks", 0.01, finding=finding)
    if probe and probe.points and not probe.blocks and pool.blocks:
        return found.judged("report differs", "The shares that were read are no multiples of one of its blocks.")
    return found


def _bytes(pool: _Pool) -> AuditRow:
    asked = number(pool.facts.requested, "kv_cache_memory_bytes")
    space = number(pool.facts.requested, "VLLM_CPU_KVCACHE_SPACE")
    expected = asked or (space * GIB if space else None)
    counted = float(pool.blocks * pool.layout.block_bytes) if pool.blocks else None
    finding = "The blocks, at this model's bytes a block, do not add up to the pool."
    agrees = "The pool is what was asked for." if expected else "The blocks add up to the pool."
    found = row("pool bytes", (pool.size, expected, counted), "bytes", 0.02, finding=finding, agrees=agrees)
    bound = None if expected else _memory_bound(pool.facts)
    if bound and pool.size and pool.size > bound * 1.01:
        sentence = "The pool is larger than the memory that its share and the weights leave."
        return found.judged("impossible", sentence, expected=bound)
    return found.judged(found.verdict, found.sentence, expected=expected or bound)


def _memory_bound(facts: AuditFacts) -> float | None:
    """The most a pool can have on one card: its share of the memory without the weights."""
    memory, weights = facts.card and facts.card.memory_bytes, number(facts.reported, "weights_gib")
    share = number(facts.cache_config, "gpu_memory_utilization")
    return memory * share - weights * GIB if memory and share and weights is not None else None


def _token_bytes(pool: _Pool) -> AuditRow:
    groups = pool.layout.full_groups or pool.layout.window_groups
    a_block = pool.size / pool.blocks * groups if pool.size and pool.blocks else None
    columns = (
        a_block / pool.label if a_block and pool.label else None,
        pool.token_bytes * groups,
        a_block / pool.size_measured if a_block and pool.size_measured else None,
    )
    finding = "A token takes other bytes than this model's KV layers."
    found = row("KV bytes per token", columns, "bytes", 0.02, finding=finding)
    shape = pool.facts.shape
    if found.finding and shape and shape.state and columns[0]:
        ratio = columns[0] / (pool.token_bytes * groups)
        if close(ratio, shape.layers / sum(group.layers for group in shape.attention), 0.1):
            sentence = "The engine keeps KV for all layers: it counts layers with a fixed state as attention."
            return found.judged(found.verdict, sentence)
    return found


def _report(pool: _Pool) -> AuditRow:
    """The reported tokens against the reporting formula of that version."""
    facts, layout = pool.facts, pool.layout
    if not (pool.tokens and pool.blocks and pool.length and facts.version):
        return row("pool report", (pool.tokens, None, None), "tokens", EXACT)
    flights = {pool.in_flight, 2 * pool.in_flight} if layout.window_groups else {0}
    formulas = [reported_tokens(facts.version, layout, pool.blocks, pool.length, each) for each in flights]
    expected = min(formulas, key=lambda formula: abs(formula - (pool.tokens or 0)))
    old = facts.version < (0, 20, 2)
    rule = "blocks / groups x block size" if old else "full-length requests that fit x max_model_len"
    finding = f"vLLM {facts.engine} reports {rule}, which for this pool gives another number."
    if not close(pool.tokens, expected, EXACT) and close(pool.tokens * layout.groups, expected, POOL):
        finding = f"The report is 1/{layout.groups} of the formula: state layers are counted as attention."
    tolerance = POOL if layout.window_groups else EXACT
    columns = (pool.tokens, expected, None)
    return row("pool report", columns, "tokens", tolerance, finding=finding, agrees=f"By the formula: {rule}.")


def _tokens(pool: _Pool) -> AuditRow:
    probe, full = pool.facts.probe, pool.full
    expected = pool.blocks / full * pool.length if pool.blocks and full and pool.length else None
    span = probe.tokens if probe else None
    measured = _within(span, expected, pool.tokens) if span else None
    finding = "What requests of full length can hold is not what is reported."
    if pool.facts.version < (0, 20, 2) and pool.layout.groups > 1:
        finding = f"This version divides blocks by {pool.layout.groups} groups: the pool holds more than it says."
    return row("pool tokens", (pool.tokens, expected, measured), "tokens", POOL, finding=finding)


def _states(pool: _Pool) -> AuditRow:
    layout, probe = pool.layout, pool.facts.probe
    attention = layout.full_groups * -(-pool.length // layout.block_tokens) if pool.length else None
    reported = measured = None
    if pool.blocks and pool.concurrency and attention:
        reported = round(pool.blocks / pool.concurrency - attention, 1)
    if probe and probe.full_blocks and attention:
        measured = float(probe.full_blocks[0] - attention)
    finding = "A request, its prompt computed, holds another number of state blocks than it is charged with."
    columns = (reported, float(layout.state_blocks), measured)
    return row("state blocks", columns, "a request", 0.05, finding=finding)


def _full_length(pool: _Pool) -> AuditRow:
    """The latent failure: an engine may start with a pool that its longest request does not fit into."""
    probe, shape = pool.facts.probe, pool.facts.shape
    expected = pool.blocks / pool.full if pool.blocks and pool.full else None
    measured = probe.tokens[1] / pool.length if probe and probe.tokens and pool.length else None
    by_length = pool.tokens and pool.length and pool.facts.version >= (0, 20, 2)
    reported = (pool.tokens or 0) / (pool.length or 1) if by_length else pool.concurrency
    known = [value for value in (reported, expected, measured) if value is not None]
    found = AuditRow(name="full-length requests", unit="at once")
    found = found.model_copy(update={"reported": reported, "expected": expected, "measured": measured})
    if not known:
        return found.judged("cannot tell", "Neither the pool nor max_model_len is known.")
    if min(known) < 1:
        latent = "A request of max_model_len does not fit: no warning at the start, a failure at the first one."
        return found.judged("impossible", latent)
    longest = shape and shape.max_model_len
    beyond = longest and pool.length and min(known) * pool.length < longest
    more = f" The model's own {longest} tokens would not." if beyond else ""
    return found.judged("agrees", f"A request of max_model_len fits into the pool.{more}")


def _weights(facts: AuditFacts) -> AuditRow:
    loaded, expected = number(facts.reported, "weights_gib"), None
    if facts.weights and facts.shape:
        stored = facts.weights.total - (0 if facts.method == "mtp" else facts.weights.drafter)
        kept, used = element_bytes(facts.shape.dtype), element_bytes(facts.model_dtype, facts.shape.dtype)
        cast = used / kept if kept and used and not facts.shape.quantization else 1.0
        expected = stored * cast / facts.cards / GIB
    finding = "The engine loaded other weights than these files hold: another format, drafter or share."
    return row("weights loaded", (loaded, expected, None), "GiB", 0.1, finding=finding)
