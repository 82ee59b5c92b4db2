"""Reads a Prometheus text page, and the differences between two pages of one server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["MetricsPage", "acceptance_between", "counters_between", "grown", "parse_metrics"]

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Series name -> its (labels, value) pairs; buckets and creation times are left out."""

    series: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    def has(self, name: str) -> bool:
        """Whether the server counts this at all (a counter may be written with or without `_total`)."""
        return name in self.series or f"{name}_total" in self.series

    def total(self, name: str) -> float | None:
        """The sum over all labels (engines, models, reasons); None when the server does not count this."""
        pairs = self.series.get(f"{name}_total", self.series.get(name))
        return None if pairs is None else sum(value for _, value in pairs)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for labels, value in self.series.get(f"{name}_total", self.series.get(name, ())):
            found[labels.get(label, "")] = found.get(labels.get(label, ""), 0.0) + value
        return found

    def labels(self, name: str) -> dict[str, str]:
        """The labels of an information gauge, such as `vllm:cache_config_info`; empty when it is absent."""
        pairs = self.series.get(name, ())
        return dict(pairs[0][0]) if pairs else {}


def parse_metrics(text: str) -> MetricsPage:
    """Never raises: a line that is not of the format is not a series."""
    series: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in _lines(text):
        series.setdefault(name, []).append((labels, value))
    return MetricsPage({name: tuple(pairs) for name, pairs in series.items()})


def _lines(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        matched = _LINE.match(line)
        if matched is None or matched[1].endswith(("_bucket", "_created")):
            continue
        try:
            value = float(matched[3])
        except ValueError:
            continue
        pairs = _LABEL.findall(matched[2] or "")
        yield matched[1], {key: re.sub(r"\\.", _unescape, text) for key, text in pairs}, value


def _unescape(matched: re.Match[str]) -> str:
    return _ESCAPES.get(matched[0], matched[0])


def grown(before: MetricsPage | None, after: MetricsPage | None, name: str) -> float | None:
    """How far a counter moved between two pages; None where either page has not got it."""
    if before is None or after is None:
        return None
    first, last = before.total(name), after.total(name)
    return None if first is None or last is None else last - first


def counters_between(before: MetricsPage, after: MetricsPage) -> dict[str, float]:
    """How far every vLLM series moved between two pages, by name without `vllm:` and `_total`."""
    moved = {}
    for name in after.series:
        if name.startswith("vllm:"):
            last, first = after.total(name) or 0.0, before.total(name) or 0.0
            moved[name.removeprefix("vllm:").removesuffix("_total")] = last - first
    return moved


def acceptance_between(
    before: MetricsPage | None, after: MetricsPage | None
) -> tuple[int, int, int, tuple[int, ...]] | None:
    """Draft passes, draft tokens, accepted tokens, accepted by position; None where nothing drafts."""
    counts = [grown(before, after, f"vllm:spec_decode_num_{what}") for what in _DRAFT_COUNTERS]
    if before is None or after is None or None in counts:
        return None
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    first, last = before.by_label(name, "position"), after.by_label(name, "position")
    positions = sorted((key for key in last if key.isdigit()), key=int)
    drafts, tokens, accepted = (round(count or 0) for count in counts)
    return drafts, tokens, accepted, tuple(round(last[key] - first.get(key, 0.0)) for key in positions)


_DRAFT_COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
