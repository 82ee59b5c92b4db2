"""Charts drawn by matplotlib: SVG that follows light and dark and holds text as text, and PNG."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from .report_charts import Bar, Chart

__all__ = ["draw_png", "draw_svg"]

_INK, _FAINT = "#0a0b0c", "#dadbdc"
# Drawn in these, then replaced by variables: light and dark are one drawing. Each reads on both grounds.
_SERIES = {"#0000c1": "#0b62b0", "#0000c2": "#b34a00", "#0000c3": "#00795c", "#0000c4": "#9b3f86"}
_SERIES |= {"#0000c5": "#6b6200", "#0000c6": "#5b50c8", "#0000c7": "#4f5a66", "#0000c8": "#a8323a"}
_DARK = ("#6db3f2", "#ff9e57", "#4ccba5", "#e596cf", "#d5c94a", "#aba2ff", "#b3bdc8", "#ff8f93")
_MARKS = "osD^vPX*"
_LONGEST = 44
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "chart",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _FAINT,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "font.size": 9,
}


def draw_svg(chart: Chart) -> str:
    """One SVG element, with its own colours for either ground."""
    buffer = io.StringIO()
    _save(chart, buffer, "svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    light = {_INK: "#1b1f24", _FAINT: "#d6dade", **_SERIES}
    dark = dict(zip(light, ("#e6e9ec", "#3a4047", *_DARK), strict=True))
    for name in light:
        text = text.replace(name, f"var(--v{name[1:]})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
    rules = ["".join(f"--v{name[1:]}:{c};" for name, c in side.items()) for side in (light, dark)]
    style = f"<style>:root{{{rules[0]}}}@media (prefers-color-scheme:dark){{:root{{{rules[1]}}}}}</style>"
    head = text.index(">") + 1
    return text[:head] + style + text[head:]


def draw_png(chart: Chart) -> bytes:
    """On white, in the light colours."""
    buffer = io.BytesIO()
    _save(chart, buffer, "png", dpi=150, facecolor="white")
    return buffer.getvalue()


def _save(chart: Chart, buffer: Any, kind: str, **options: Any) -> None:
    colours = list(_SERIES) if kind == "svg" else list(_SERIES.values())
    # A glyph that the measuring font lacks is drawn by the reader's own.
    with warnings.catch_warnings(), mpl.rc_context(_STYLE):
        warnings.simplefilter("ignore")
        _figure(chart, colours).savefig(buffer, format=kind, **options)


def _figure(chart: Chart, colours: list[str]) -> Figure:
    names = list(dict.fromkeys(b.at for s in chart.series for b in s.bars if isinstance(b.at, str)))
    tall = 1.5 + 0.28 * len(names) if chart.kind == "sideways" else 3.1
    figure = Figure(figsize=(6.4, tall), layout="constrained")
    axes = figure.subplots()
    for n, series in enumerate(one for one in chart.series if one.bars):
        at = [names.index(b.at) if isinstance(b.at, str) else b.at for b in series.bars]
        sideways = chart.kind == "sideways"
        mids = [b.value for b in series.bars]
        axes.errorbar(
            mids if sideways else at,
            at if sideways else mids,
            **{"xerr" if sideways else "yerr": _errors(series.bars)},
            label=_short(series.name),
            color=colours[n % len(colours)],
            marker=_MARKS[n % len(_MARKS)],
            linestyle="-" if chart.kind == "line" else "none",
            markersize=4.5,
            linewidth=1.3,
            capsize=2.5,
        )
    if chart.kind == "sideways":
        axes.set_yticks(range(len(names)), [_short(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.5)
    elif names:
        axes.set_xticks(range(len(names)), [_short(name) for name in names])
    if chart.zero:
        axes.axvline(0, color=_INK, linewidth=0.8)
    axes.set_xlabel(_short(chart.x))
    axes.set_ylabel(_short(chart.y))
    if sum(1 for one in chart.series if one.bars) > 1:
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    return figure


def _errors(bars: tuple[Bar, ...]) -> Any:
    if any(b.low is None or b.high is None for b in bars):
        return None
    return [[b.value - (b.low or 0.0) for b in bars], [(b.high or 0.0) - b.value for b in bars]]


def _short(text: str) -> str:
    """On one line, without what XML cannot hold, and not longer than a picture is wide."""
    plain = " ".join(re.sub(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text).split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
