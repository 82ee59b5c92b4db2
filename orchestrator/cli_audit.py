"""Commands that check: audit what an engine claims, and measure any server with the instrument alone."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple, get_args

import click
import yaml

from search_spaces.configuration import Configuration
from trackers.records import TrialRecord

from .audit import AuditMove, AuditRow, compare_audits
from .audit import audit as audit_rows
from .audit_collect import asked_of, audit_trial
from .audit_facts import Verdict
from .audit_live import facts_from_url
from .audit_peaks import log_of, trial_of
from .card import Card, find_card, measure_card, read_cards
from .engine_log import read_ends
from .errors import MeasurementFailed, PlanError
from .library import find_plan, find_trial, shelves
from .measure_url import Measured, measure_url
from .peak import Peak
from .server_view import Served, local_engine, view_server
from .stability import StabilityRule, judge_windows
from .tables import WIDTH
from .workload import Kind, Workload, load_workload

__all__ = ["audit", "audit_table", "card_rows", "measure"]

_KEY = "VLLM_API_KEY"
_LOG_BYTES = 4 << 20
_SHOWN = """decode_tok_s prefill_tok_s output_throughput request_throughput request_goodput acceptance_length
    tokens_per_pass passes_s median_ttft_ms p99_ttft_ms median_tpot_ms median_itl_ms p99_itl_ms median_e2el_ms
    repeat_speedup needle_retrieved""".split()  # noqa: SIM905


class _Audit(NamedTuple):
    name: str
    rows: tuple[AuditRow, ...]
    notes: Sequence[str] = ()


@click.command()
@click.argument("what", metavar="PLAN|URL|TRIAL")
@click.option("--load", is_flag=True, help="Of a URL: several requests at once too, not only single ones.")
@click.option("--measure-card", "card", is_flag=True, help="Measure the card instead of trusting its sheet.")
@click.option("--card", "sheet", metavar="NAME", help="Of a URL: the card it runs on, such as 'H200'.")
@click.option("--model", help="Of a URL: the model's served name; its first by default.")
@click.option("--model-files", help="Of a URL: directory or hub id of the model's own files.")
@click.option("--log", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Of a URL: the log.")
@click.option("--python", type=click.Path(exists=True, path_type=Path), help="The engine's own, for the card.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def audit(what: str, *, card: bool, python: Path | None, as_json: bool, **of_url: Any) -> None:
    """Compare what an engine reports, what arithmetic expects, and what was measured.

    A URL gets single requests and is left as it was; a plan's peaks, or a trial, their records.

    \b
    Example:  repeak audit http://127.0.0.1:8000
              repeak audit quickstart-cpu
    """  # noqa: D301
    moves: list[AuditMove] = []
    if what.startswith(("http://", "https://")):
        audits = [_of_url(what, card, python, **of_url)]
    elif of_url["load"]:
        raise click.UsageError("--load is for the URL of a running server.")
    elif plan := find_plan(what):
        audits, moves = _of_plan(plan, card, python)
    else:
        _, record = find_trial(what)
        audits = [_of_trial(record.trial_id, record, card, python)]
    if as_json:
        plain = [{**one._asdict(), "rows": [row.model_dump() for row in one.rows]} for one in audits]
        click.echo(json.dumps({"audits": plain, "moves": [one.model_dump() for one in moves]}, indent=1))
        return
    for one in audits:
        click.echo(f"{one.name}\n{audit_table(one.rows)}")
        for note in one.notes:
            click.echo("\n".join(wrap(note, WIDTH)))
    for move in moves:
        click.echo("\n".join(wrap(f"{move.name}: {move.sentence}", WIDTH, subsequent_indent="    ")))


def _of_url(
    url: str, measured: bool, python: Path | None, *, load: bool, sheet: str | None, model: str | None,
    model_files: str | None, log: Path | None,
) -> _Audit:  # fmt: skip
    here = local_engine(url)
    said = log or (here.log if here else None)
    key = os.environ.get(_KEY)
    served = view_server(url, model, api_key=key)
    known = find_card(sheet) if sheet else None
    if here and known is None and here.env.get("CUDA_VISIBLE_DEVICES") != "":
        known = next(iter(read_cards()), None)
    line = asked_of(here.argv, here.env) if here else None
    card, rows = _card(known, measured, python, here.argv if here else ())
    facts, notes = facts_from_url(
        url, model=served.model, model_files=model_files, line=line,
        log_text=read_ends(said, _LOG_BYTES, _LOG_BYTES) if said else "", card=card, load=load, api_key=key,
        say=lambda text: click.echo(f"  {text}", err=True),
    )  # fmt: skip
    return _Audit(f"{url}  {served.model}  vllm {served.version or '?'}", (*audit_rows(facts), *rows), notes)


def _of_trial(name: str, record: TrialRecord, measured: bool, python: Path | None) -> _Audit:
    gpu = record.fingerprint.items.get("gpu", "").split(", ")[0]
    argv = next((launch.argv for launch in record.launches if launch.argv), ())
    card, rows = _card(find_card(gpu) if gpu else None, measured, python, argv)
    return _Audit(name, (*audit_trial(record, log_of(record), card=card), *rows))


def _of_plan(plan: str, measured: bool, python: Path | None) -> tuple[list[_Audit], list[AuditMove]]:
    """Each study's peaks, and what moved from one engine's to the next one's."""
    audits: list[_Audit] = []
    moves: dict[AuditMove, None] = {}
    before: dict[str, _Audit] = {}
    for shelf in shelves(plan):
        targets: dict[Configuration, list[str]] = {}
        for target, held in (shelf.closed.peak or {}).items() if shelf.closed else ():
            targets.setdefault(Peak.model_validate(held).configuration, []).append(target)
        for configuration, names in targets.items():
            record = trial_of(configuration, shelf.records)
            if record is not None:
                engine = shelf.opened.facts.get("engine", shelf.opened.study)
                title = f"{engine}  {', '.join(names)}  {configuration.label()}"
                audits.append(_of_trial(title, record, measured, python))
                for target in (name for name in names if name in before):
                    moves |= dict.fromkeys(compare_audits(before[target].rows, audits[-1].rows))
                before |= dict.fromkeys(names, audits[-1])
    if not audits:
        raise PlanError(f"{plan} has no peak yet.", f"repeak tune, or a trial of it: repeak show {plan}")
    return audits, list(moves)


def _card(
    known: Card | None, measured: bool, python: Path | None, argv: Sequence[str]
) -> tuple[Card | None, tuple[AuditRow, ...]]:
    """The card whose rates are ceilings, and what measuring it showed."""
    if not measured:
        return known, ()
    own = python or next((Path(word) for word in argv[:1] if word.startswith("/")), None)
    if own is None:
        raise click.UsageError("--measure-card needs --python: the engine's own is not known here.")
    found = measure_card(own)
    trusted = known if known and known.bandwidth_bytes_s else found
    return trusted, tuple(card_rows(known, found))


def card_rows(sheet: Card | None, measured: Card) -> Iterator[AuditRow]:
    """A card against its maker's sheet: it cannot be faster, and should not be much slower."""
    for name, unit, scale in (("bandwidth", "GB/s", 1e9), ("16-bit rate", "TFLOP/s", 1e12)):
        field = "bandwidth_bytes_s" if scale == 1e9 else "flops_16bit"
        got, wanted = getattr(measured, field), getattr(sheet, field) if sheet else None
        found = AuditRow(name=f"card {name}", measured=got / scale, unit=unit, tolerance=0.3)
        share = got / wanted if wanted else 0.0
        said = f"{share:.0%} of its sheet." if wanted else f"No sheet of {measured.name} is known."
        verdict: Verdict = "premise differs" if share > 1.05 else "slow path?" if share < 0.7 else "agrees"
        expected = wanted / scale if wanted else None
        yield found.judged(verdict if wanted else "cannot tell", said, expected=expected)


def audit_table(rows: Sequence[AuditRow]) -> str:
    """A row each, 80 columns, and the sentence of everything that does not agree."""
    lines = [f"{'':22} {'reported':>13} {'expected':>13} {'measured':>13}"]
    for row in rows:
        label = f"{row.name}, {row.unit}"
        label = label if row.unit and row.unit not in row.name and len(label) <= 22 else row.name
        if len(label) > 22:
            lines.append(label)
            label = ""
        cells = " ".join(f"{_cell(value):>13}" for value in (row.reported, row.expected, row.measured))
        lines.append(f"{label:22} {cells} {row.verdict}")
        if row.verdict != "agrees":
            lines += wrap(row.sentence, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _cell(value: float | str | None) -> str:
    if isinstance(value, float | int):
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e10 else f"{value:.4g}"
    return "-" if value is None else value if len(value) <= 13 else f"{value[:12]}…"


@click.command()
@click.argument("url")
@click.option(
    "-w",
    "--workload",
    "given",
    multiple=True,
    default=("generate",),
    show_default=True,
    help="A kind, a YAML file of workloads (a plan too), or a JSONL file of requests; repeatable.",
)
@click.option("--model", help="The served name; the server's first by default.")
@click.option("-c", "--concurrency", type=click.IntRange(1), help="Requests in flight.")
@click.option("--request-rate", type=float, help="Requests a second instead.")
@click.option("--prompt-tokens", type=click.IntRange(8))
@click.option("--output-tokens", type=click.IntRange(2))
@click.option("--requests", "requests_per_window", type=click.IntRange(1), help="Measured in one window.")
@click.option("--goodput", help="Such as 'ttft:200 tpot:50'.")
@click.option("--seed", type=int, help="A fresh one by default: no prompt is in the server's cache.")
@click.option("--metric", default="decode_tok_s", show_default=True, help="What has to settle.")
@click.option(
    "--precision",
    type=click.FloatRange(0.01, 99),
    default=5.0,
    show_default=True,
    help="Half-width to reach, in percent.",
)
@click.option("--max-windows", type=click.IntRange(1), default=12, show_default=True)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), default=600.0, help="Seconds a window.")
@click.option("--json", "as_json", is_flag=True, help="As vllm bench serve saves it, one line a workload.")
def measure(
    url: str, *, given: Sequence[str], model: str | None, metric: str, precision: float, max_windows: int,
    timeout_s: float, as_json: bool, **changes: Any,
) -> int:  # fmt: skip
    """Measure any OpenAI-compatible server: windows until stable, with the proofs that apply.

    A key is taken from the variable VLLM_API_KEY.

    \b
    Example:  repeak measure http://127.0.0.1:8000 -w generate -w edit
              repeak measure http://127.0.0.1:8000 -w requests.jsonl -c 8 --json
    """  # noqa: D301
    workloads = [one for name in given for one in _workloads(name, changes)]
    key = os.environ.get(_KEY)
    served = view_server(url, model, api_key=key, timeout_s=min(10.0, timeout_s))
    least = min(5, max_windows)
    rule = StabilityRule(precision=precision / 100, min_windows=least, max_windows=max_windows)
    code = 0
    for workload in workloads:
        try:
            found = measure_url(
                url, workload, model=served.model, rule=rule, metric=metric, api_key=key, timeout_s=timeout_s,
                say=lambda text: click.echo(f"  {text}", err=True),
            )  # fmt: skip
        except MeasurementFailed as error:
            if len(workloads) == 1:
                raise
            click.echo(f"{workload.name}: {error}", err=True)
            code = error.exit_code
            continue
        code = 4 if found.ending == "failed" else code
        click.echo(json.dumps(found.as_json()) if as_json else _measured(served, found, rule), nl=as_json)
    return code


def _workloads(given: str, changes: Mapping[str, Any]) -> Iterator[Workload]:
    """What one --workload names, with the options that were given."""
    path, asked = Path(given), {name: value for name, value in changes.items() if value is not None}
    if given in get_args(Kind) and given not in ("mixed", "jsonl"):
        chat = {"endpoint": "chat"} if given == "tool_loop" else {}
        rows: list[Any] = [{"name": given, "kind": given, **chat}]
    elif path.suffix == ".jsonl":
        rows = [{"name": re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem), "kind": "jsonl", "path": path.name}]
    else:
        rows = _listed(path)
    for row in rows:
        if not isinstance(row, Mapping):
            raise PlanError(f"{path}: a workload is a mapping, such as {{name: edit, kind: edit}}.")
        yield load_workload({"seed": int(time.time()), **row, **asked}, folder=path.parent)


def _listed(path: Path) -> list[Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        kinds = ", ".join(kind for kind in get_args(Kind) if kind not in ("mixed", "jsonl"))
        raise PlanError(f"{path} is no workload: {error}.", f"Name a kind ({kinds}) or a file.") from error
    rows = found.get("workloads", [found]) if isinstance(found, Mapping) else found
    return list(rows) if isinstance(rows, list) else [rows]


def _measured(served: Served, found: Measured, rule: StabilityRule) -> str:
    """One workload's numbers with their 95 % half-widths, then its proofs."""
    pooled = found.pooled
    lines = [f"{pooled.workload.name}  {served.url}  {served.model}  {served.version}"]
    lines += wrap(f"{found.ending}: {found.reason}", WIDTH, subsequent_indent="    ")
    for name in (name for name in _SHOWN if name in pooled.metrics):
        values = [one.metrics.get(name, 0.0) for one in found.windows]
        half = judge_windows(values, rule).half_width if min(values) > 0 and len(found.counted) > 1 else None
        lines.append(f"  {name:22} {pooled.metrics[name]:>10.4g}" + (f" ± {half:.2g}" if half else ""))
    for check in found.checks:
        word = {True: "ok", False: "FAILED", None: "not seen"}[check.passed]
        lines.append(f"  {check.name:22} {word:8} {check.detail[:46]}")
    return "\n".join(lines) + "\n"
