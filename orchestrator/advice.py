"""Advice: what a retune means for whoever serves, in a few lines that can be read without having been there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Literal

from search_spaces.configuration import Configuration
from search_spaces.serve_args import serve_args
from trackers.records import Estimate, Frozen

from .candidates import Candidate
from .peak import Comparison, Peak, beats
from .retune_view import Verdict
from .study import Study
from .tables import WIDTH, value

__all__ = ["Advice", "advice_text", "advise"]

Regression = Literal["shown", "ruled out", "cannot tell"]
_LAUNCHES = 2  # a side, before anything is said to be lost or not


class Advice(Frozen):
    """What to do about one target on a stack that moved, and what that rests on.

    `peak` is the verdict in words, with what would decide it; `do` goes by what both stacks measured.
    `kept` is the old settings there over the old peak, `whole` the best there over the old peak (ratios of the
    metric). A regression is shown where the whole interval lies beyond the loss that counts (`most`).
    """

    target: str
    metric: str
    engine: str
    old_stack: str
    new_stack: str
    verdict: str
    peak: str
    do: str
    sure: str
    regression: Regression
    most: float
    old_peak: str
    old_value: Estimate
    kept_value: Estimate | None = None
    kept: Comparison | None = None
    new_peak: str | None = None
    new_value: Estimate | None = None
    whole: Comparison | None = None
    change: tuple[str, ...] = ()


def advise(
    old: Study, new: Study, before: Peak, verdict: Verdict, fields: tuple[Sequence[Candidate], Sequence[Candidate]],
    most: float,
) -> Advice:  # fmt: skip
    """What follows from a verdict.

    `fields` are what both stacks measured, the old one's as it reads today; `most` the relative loss that counts.
    """
    shift, peak, target = verdict.shift, verdict.peak, before.target
    then, now = ({one.configuration: one for one in side} for side in fields)
    known, here = then[before.configuration], now.get(before.configuration)
    best = now.get(peak.configuration) if peak else None

    lower = target.lower_is_better

    def over(one: Candidate | None) -> Comparison | None:
        if one is None:
            return None
        return beats(one.evidence, known.evidence, shift.noise, shift.delta, lower_is_better=lower)

    kept, whole = over(here), over(best)
    # What the old stack has too, if only its settings are changed, no upgrade brings.
    there = then.get(best.configuration) if best and shift.missed else None
    had, rival = over(there), there or known
    pair = (best.evidence, rival.evidence) if best else None
    engine = beats(*pair, shift.noise, shift.delta, lower_is_better=lower, restated=rival.restated) if pair else None
    # One launch a side has nothing but the prior to say how far a second would lie from it.
    twice = best is not None and min(len(rival.evidence), len(best.evidence)) >= _LAUNCHES
    seems = regression(engine, most, lower_is_better=lower)
    found = seems if before.confirmed and twice else "cannot tell"
    clear = here is not None and min(len(known.evidence), len(here.evidence)) >= _LAUNCHES
    both = seems == regression(kept, most, lower_is_better=lower) == "shown"
    if had and before.confirmed and clear and both:
        # What was missed is launched once on the old stack; the old settings, launched twice on both, show it as well.
        found = "shown"
    moved = peak is not None and peak.configuration != before.configuration
    change = changes(old, new, before.configuration, peak.configuration) if peak and moved else ()
    in_place = old.stack.items.get("vllm") == new.stack.items.get("vllm")
    return Advice(
        target=target.name,
        metric=target.metric,
        engine=new.engine,
        old_stack=f"{old.engine} {old.stack.key}",
        new_stack=f"{new.engine} {new.stack.key}",
        verdict=shift.verdict,
        peak=shift.said + shift.decides,
        do=_do(found, seems, kept, whole, had, engine, moved=moved, in_place=in_place),
        sure=_sure(before, known, there, whole, verdict, most),
        regression=found,
        most=most,
        old_peak=before.configuration.label(),
        old_value=known.estimate(shift.noise),
        kept_value=here and here.estimate(shift.noise),
        kept=kept,
        new_peak=peak and peak.configuration.label(),
        new_value=best and best.estimate(shift.noise),
        whole=whole,
        change=change,
    )


def regression(whole: Comparison | None, most: float, *, lower_is_better: bool = False) -> Regression:
    """Shown where even the better end of the interval loses more than `most`, ruled out where the worse does not."""
    if whole is None or whole.note:
        return "cannot tell"
    low, high = (1 / whole.high, 1 / whole.low) if lower_is_better else (whole.low, whole.high)
    return "shown" if high < 1 - most else "ruled out" if low > 1 - most else "cannot tell"


def changes(old: Study, new: Study, then: Configuration, now: Configuration) -> tuple[str, ...]:
    """Flag by flag and variable by variable, from one configuration's serve command to the other's."""
    before, after = _words(old, then), _words(new, now)
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return tuple(
        f"add {name} {after[name]}".rstrip()
        if name not in before
        else f"drop {name} (was {before[name] or 'set'})"
        if name not in after
        else f"{name}: {before[name]} -> {after[name]}"
        for name in names
    )


def _words(study: Study, one: Configuration) -> Mapping[str, str]:
    arguments, env = serve_args(one, serve=study.pad.serve, space=study.space)
    found = dict(env)
    for word in arguments:
        if word.startswith("--"):
            name, _, text = word.partition("=")
            found[name] = text
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def _do(
    found: Regression, seems: Regression, kept: Comparison | None, whole: Comparison | None, had: Comparison | None,
    lost: Comparison | None, *, moved: bool, in_place: bool,
) -> str:  # fmt: skip
    """`had`: what the new settings bring on the old stack, where they were missed; `lost`: what `found` is of.

    `seems` is `found` by the interval alone, however few its launches.
    """
    if whole is None or lost is None:
        return "do not upgrade: nothing could be measured there"
    same = f"{_percent(kept)} at the old settings, measured on both stacks" if kept else "the old settings do not run"
    best = f"{_percent(whole)} at the new peak" + (f", {_percent(had)} with it on the old stack" if had else "")
    if found == "shown":
        head = "go back to the old stack if you can" if in_place else "do not upgrade"
        head += ", change its serve command" if had else ""
        return f"{head}: {same}, {best if moved else 'and nothing is shown to be better there'}"
    head = "" if in_place else "upgrade; " if found == "ruled out" else "upgrade if something else asks for it; "
    doubts = {
        "shown": "that it got slower is not shown by so few launches",
        "ruled out": "that it got no slower is not shown by so few launches",
        "cannot tell": "whether it got slower cannot be told",
    }
    doubt = "" if found == "ruled out" else f"; {doubts[seems]} ({_spread(lost)})"
    if moved:
        return f"{head}change the serve command: {same}, {best}{doubt}"
    return f"{head}keep the settings: {same}{doubt}"


def _percent(found: Comparison) -> str:
    """Never without what it may be off by."""
    most_likely = f"{found.ratio - 1:+.0%}".replace("+0%", "0%").replace("-0%", "0%").replace("%", " %")
    return f"{most_likely} ({_spread(found)})"


def _spread(found: Comparison) -> str:
    return f"{found.low - 1:+.0%} to {found.high - 1:+.0%}".replace("%", " %")


def _sure(
    before: Peak, known: Candidate, there: Candidate | None, whole: Comparison | None, verdict: Verdict, most: float
) -> str:
    """`there`: the new settings on the old stack, where they had been missed."""
    said = f"launches of one configuration differ by {verdict.shift.noise.sd:.1%} (standard deviation)"
    if whole is not None and not verdict.shift.missed:
        counts = f"95 %, as every interval here; the limit is a loss of {most:.0%}"
        said = f"best there over the old peak {_spread(whole)} ({counts}); {said}"
    turns = len(known.evidence)
    said += f"; {turns} launch{'es' * (turns > 1)} of the old peak on the old stack"
    said += f" and {len(there.evidence)} of the new settings" if there else ""
    if verdict.peak is not None:
        said += f", {verdict.peak.estimate.launches} of the best on the new"
    if not before.confirmed:
        said += "; the old peak was never launched afresh, so a loss cannot be shown"
    elif verdict.peak is not None and min(len(known.evidence), verdict.peak.estimate.launches) < _LAUNCHES:
        said += "; with one launch a side the interval rests on the noise that was expected"
    return said


def advice_text(one: Advice) -> str:
    """For a terminal of 80 columns: what to do, how sure, then the numbers."""
    lines = [f"{one.target}, {one.metric}: {one.old_stack} -> {one.new_stack}"]
    kept = f"the same settings: {value(one.kept_value)}" if one.kept_value else "the old settings do not run"
    best = f"{one.new_peak}: {value(one.new_value)}" if one.new_value else "nothing was measured"
    rows = [
        ("do", one.do),
        ("sure", one.sure),
        ("verdict", one.peak),
        ("old peak", f"{one.old_peak}: {value(one.old_value)} on the old stack"),
        ("new stack", kept),
        ("best there", "the same settings, as far as is shown" if one.new_peak == one.old_peak else best),
        *(("if anyway" if one.regression == "shown" else "change", change) for change in one.change),
    ]
    for name, said in rows:
        lines += wrap(f"{name + ':':12}{said}", WIDTH, initial_indent="  ", subsequent_indent=" " * 14)
    return "\n".join(lines) + "\n"
