"""The report as one HTML file: no script, no request, light and dark, printable; every text escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from urllib.parse import quote

from .compare import Compared, TargetMove
from .compare_text import attributed_text, drift_text, gain_text
from .errors import RepeakError
from .library import Shelf
from .plan import TuningPlan
from .report import Answer, Report, build_report
from .report_charts import Chart
from .tables import ratio, value

__all__ = ["report_at_end", "report_html", "write_figures", "write_report"]

_LONGEST = 400
_STYLE = Path(__file__).with_name("report.css")
# Whatever a text might hold, the page can load and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def report_html(report: Report) -> str:
    """The whole page: answers first, then what moved, pictures, audits, trials, failures, stacks."""
    latest = report.answers[0].engine
    first = [one for one in report.answers if one.engine == latest]
    rest = [one for one in report.answers if one.engine != latest]
    at = datetime.fromtimestamp(report.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>{_e(report.plan)}</h1>",
        f'<p class="faint">{_e(report.model)} on {_e(report.machine)}, {at}</p>',
        '<p class="warn">Rehearsal on simulated engines: these numbers mean nothing.</p>' * report.simulated,
        f"<h2>What to run on {_e(latest)}</h2>",
        *map(_answer, first),
        *(["<h2>On the other engines</h2>", *map(_answer, rest)] if rest else []),
        *(["<h2>Between the engines</h2>", *map(_moved, report.moves)] if report.moves else []),
        *(["<h2>Which setting did it</h2>"] if report.effects else []),
        *(f"<pre tabindex=0>{_e(attributed_text(effect))}</pre>" for effect in report.effects),
        "<h2>Evidence in pictures</h2>",
        *map(_figure, report.charts),
        *_audits(report),
        *_trials(report),
        "<h2>What has no number, and why</h2>",
        _table("Trials by reason", ("count", "reason"), ((n, why) for why, n in report.failures.items()))
        if report.failures
        else "<p>Every trial was measured.</p>",
        "<h2>The stack under the numbers</h2>",
        _stacks(report),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_e(report.plan)}: what to run</title><style>{_STYLE.read_text(encoding='utf-8')}</style>"
    )
    body = "\n".join(filter(None, parts))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>\n{body}\n</main></body></html>\n'


def write_report(report: Report, file: Path) -> None:
    """Whole or not at all: a reader never sees half a page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(report_html(report), encoding="utf-8")
    part.replace(file)


def report_at_end(shelves: Sequence[Shelf], plan: TuningPlan, file: Path, say: Callable[[str], None]) -> None:
    """The same when a run ends, where a report that cannot be made must not cost the run anything."""
    try:
        write_report(build_report(shelves, plan), file)
    except (RepeakError, OSError, ValueError) as error:
        say(f"no report: {error}; `repeak report {plan.name}` makes it again")


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Each chart as SVG and PNG, numbered in the order of the report."""
    from .report_figures import draw_png, draw_svg  # noqa: PLC0415 - matplotlib is slow to import

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, chart in enumerate(report.charts, 1):
        stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in chart.title.lower())[:60]
        for kind, data in (("svg", draw_svg(chart).encode()), ("png", draw_png(chart))):
            written.append(folder / f"{number:02d}-{stem}.{kind}")
            written[-1].write_bytes(data)
    return written


def _e(text: object) -> str:
    """Escaped, and not longer than anyone reads."""
    plain = str(text).replace("\0", "\ufffd")
    if len(plain) > _LONGEST and "\n" not in plain[:_LONGEST]:
        plain = f"{plain[:_LONGEST]}... ({len(plain)} characters)"
    return escape(plain)


def _table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{_e(name)}</th>' for name in headers)
    body = "".join("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    label = escape(caption[:120], quote=True)
    table = f"<table><caption>{_e(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{table}</div>'


def _answer(one: Answer) -> str:
    label = f"{one.target.name}: {one.peak.configuration.label()}"
    told = [("What to do", one.advice), ("How much better", one.better), ("How sure", one.sure)]
    told.append(("On what evidence", one.evidence))
    answers = "".join(f"<dt>{name}</dt><dd>{_e(said)}</dd>" for name, said in told if said)
    at = f"{one.engine}, stack {one.stack}"
    return (
        f'<div class="answer"><h3>{_e(label)}</h3><p class="faint">{_e(at)}</p>'
        f"<pre tabindex=0>{escape(one.command)}</pre><dl>{answers}</dl></div>"
    )


def _moved(found: Compared) -> str:
    parts = [f"<h3>{_e(found.old)} to {_e(found.new)}</h3>"]
    rows = [(name, old or "absent", new or "absent") for name, (old, new) in found.moved.items()]
    parts.append(_table("What moved in the stack", ("item", found.old, found.new), rows) if rows else "")
    parts += [part for move in found.targets for part in _target(move, found)]
    parts += [f"<p>{_e(note)}</p>" for note in found.notes]
    return "\n".join(parts)


def _target(move: TargetMove, found: Compared) -> Iterable[str]:
    yield f"<p><strong>{_e(move.target.name)}: {_e(move.shift.said)}.</strong> {_e(gain_text(move))}</p>"
    rows = [
        (
            step.name,
            step.configuration.label(),
            value(step.old) if step.old else "not measured",
            value(step.new) if step.new else "not measured",
            f"{ratio(step.new_over_old)} {step.new_over_old.verdict}" if step.new_over_old else "",
        )
        for step in move.steps
    ]
    headers = ("", "settings", found.old, found.new, "new / old")
    yield _table(f"{move.target.metric} on both engines", headers, rows)
    if move.drift:
        yield f"<p>{_e(drift_text(move.drift))}</p>"
    stayed = [
        (
            f"{one.workload}/{one.metric}",
            "control failed" if one.declared and one.found.verdict == "changed" else one.found.verdict,
            f"{one.found.ratio:.3f} ({one.found.low:.3f} to {one.found.high:.3f})",
            one.claim,
        )
        for one in move.stayed
    ]
    if stayed:
        yield _table("What stayed, by equivalence test", ("number", "verdict", "ratio (90 %)", "grounds"), stayed)


def _figure(chart: Chart) -> str:
    """As an image: nothing within it can reach the page, and it can be saved by itself."""
    from .report_figures import draw_svg  # noqa: PLC0415 - matplotlib is slow to import

    source = "data:image/svg+xml," + quote(draw_svg(chart), safe=" =:/;,()!*@?+$&'.-_~{}[]|^`")
    words = f"<details><summary>In words</summary><p>{_e(chart.says)}</p></details>"
    alt = escape(f"{chart.title}. {chart.says}"[:_LONGEST], quote=True)
    image = f'<img alt="{alt}" src="{escape(source)}">'
    return f"<figure><figcaption>{_e(chart.title)}</figcaption>{image}{words}</figure>"


def _audits(report: Report) -> Iterable[str]:
    if report.audits:
        yield "<h2>Reported, expected, measured</h2>"
    for name, rows in report.audits.items():
        cells = [
            (
                row.name,
                *(("" if v is None else f"{v:.6g}" if isinstance(v, float) else v) for v in columns),
                row.unit,
                row.verdict,
                row.sentence,
            )
            for row in rows
            for columns in [(row.reported, row.expected, row.measured)]
        ]
        yield _table(name, ("claim", "reported", "expected", "measured", "unit", "verdict", ""), cells)


def _trials(report: Report) -> Iterable[str]:
    yield "<h2>Every trial</h2>"
    for engine, records in report.trials.items():
        names = list(dict.fromkeys(ref.name for record in records for ref in record.workloads))
        rows = []
        for record in records:
            found = [record.estimates.get(f"{name}/{report.metric}") for name in names]
            values = [value(one) if one else "" for one in found]
            said = (
                record.number,
                record.role,
                record.configuration.label(),
                record.state,
                len(record.launches),
            )
            rows.append((*said, *values, record.trial_id))
        headers = ("#", "role", "configuration", "state", "launches", *names, "trial")
        yield _table(f"{engine}: {report.metric}", headers, rows)


def _stacks(report: Report) -> str:
    engines = list(report.stacks)
    names = sorted({name for items in report.stacks.values() for name in items})
    rows = [(name, *(report.stacks[engine].get(name, "") for engine in engines)) for name in names]
    return _table("Everything that could move a number", ("item", *engines), rows)
