"""Commands that keep: check, schedule, sync and clean."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
from pydantic import TypeAdapter, ValidationError

from trackers.journal import Journal
from trackers.mlflow_tracker import MlflowTracker
from trackers.problems import JournalBusy
from trackers.records import Frozen
from trackers.sync import sync

from .check import Checked, PeakCheck
from .engine_environment import environments_in, remove_environment
from .errors import PlanError, RepeakError
from .home import home, store_uri
from .kept_plan import find_any_plan, kept_plan
from .library import find_plan, plan_names, reading
from .notices import WEBHOOK
from .plan import TuningPlan
from .plan_forms import Seconds
from .prepare import environments_root
from .releases import Release
from .schedule import Nightly, cron_line, install, run, uninstall, unit_folder, units
from .upgrade import asking, checked

__all__ = ["check", "clean", "schedule", "sync_command"]

_MOVED = 10


@click.command()
@click.argument("plan_name", metavar="[PLAN]", required=False)
@click.option("--pre", is_flag=True, help="Pre-releases count as releases.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def check(plan_name: str | None, *, pre: bool, as_json: bool) -> int:
    """Say which recorded peaks are stale, and whether a newer engine resolves. Builds and launches nothing.

    Exit code 0: nothing moved; 10: something did.

    \b
    Example:  repeak check
              repeak check plan.yaml || repeak retune plan.yaml --if-moved
    """  # noqa: D301
    told: dict[str, Release] = {}
    found = {name: _checked(plan, told, pre=pre) for name, plan in _plans(plan_name)}
    if as_json:
        plain = {name: {"moved": one.moved, **one.model_dump(mode="json")} for name, one in found.items()}
        click.echo(json.dumps(plain, indent=1))
    else:
        click.echo("\n".join(_told(name, one) for name, one in found.items()) or "No plan ran here yet.")
    return _MOVED if any(one.moved for one in found.values()) else 0


def _plans(what: str | None) -> Iterator[tuple[str, TuningPlan | None]]:
    if what is not None:
        plan = find_any_plan(what)
        yield what, plan
        return
    for name in plan_names():
        yield name, kept_plan(name)


def _checked(plan: TuningPlan | None, told: dict[str, Release], *, pre: bool) -> Checked:
    """One plan that cannot be checked leaves the others be."""
    if plan is None:
        return Checked(notes=("its plan was not kept; name its file",))
    if pre:
        upgrades = plan.upgrades.model_copy(update={"follow": "pre-releases"})
        plan = plan.model_copy(update={"upgrades": upgrades})
    try:
        return checked(plan, asking(plan, os.environ, told))
    except RepeakError as error:
        return Checked(notes=(str(error),))


def _told(name: str, found: Checked) -> str:
    lines = [name, *(line for peak in found.peaks for line in _peak_lines(peak))]
    lines += [f"  {_release_line(release)}" for release in found.releases]
    lines += [f"  {note}" for note in found.notes]
    if not found.moved:
        return "\n".join([*lines, "  nothing moved, as far as it could be seen" if found.peaks else ""]).rstrip()
    time = f", about {found.seconds / 60:.0f} to {(found.most_seconds or 0) / 60:.0f} min" if found.seconds else ""
    cost = f"about {found.launches} launches where the peak stayed, at most {found.most_launches}{time}"
    return "\n".join([*lines, f"  proposed: repeak retune {name} --if-moved  ({cost})"])


def _peak_lines(peak: PeakCheck) -> list[str]:
    lines = [f"  {peak.engine}: {peak.state}{f' ({peak.note})' if peak.note else ''}"]
    return lines + [f"    {one.kind}: {one.name} {one.old or 'absent'} -> {one.new or 'absent'}" for one in peak.moves]


def _release_line(one: Release) -> str:
    said = {
        "new": f"{one.version} is new and resolves",
        "none": "nothing newer can be had" if one.broken else "nothing newer",
        "offline": f"the index did not answer, so releases are not known: {one.why}",
        "unknown": f"cannot tell whether there is a newer one: {one.why}",
    }[one.state]
    broken = "".join(f"; {version} is listed and cannot be had: {why}" for version, why in one.broken.items())
    return f"{one.distribution} {one.installed}: {said}{broken}"


@click.command()
@click.argument("plan_name", metavar="PLAN")
@click.option("--at", default="02:00", show_default=True, help="Local time of day.")
@click.option("--budget", help="Of each night, such as 2h.")
@click.option("--until", help="Local time of day by which each night's run has ended, such as 06:00.")
@click.option("--cron", is_flag=True, help="A crontab line instead of a systemd timer.")
@click.option("--install", "put", is_flag=True, help="Put it in place for this user.")
@click.option("--uninstall", "take", is_flag=True, help="Take timer, service and crontab line away.")
def schedule(
    plan_name: str, *, at: str, budget: str | None, until: str | None, cron: bool, put: bool, take: bool
) -> None:
    """Print a nightly `retune --if-moved` as a systemd user timer or a crontab line; or install it.

    \b
    Example:  repeak schedule plan.yaml --at 02:00 --until 06:00 --budget 2h
              repeak schedule plan.yaml --install
    """  # noqa: D301
    if put and take:
        raise click.UsageError("--install or --uninstall, not both.")
    folder = unit_folder(os.environ)
    if take:
        removed = uninstall(plan_name, folder, run)
        click.echo(f"removed {', '.join(removed)}" if removed else "nothing was installed", err=True)
        return
    plan, file = find_any_plan(plan_name), Path(plan_name).absolute()
    if not file.is_file():
        raise PlanError(f"There is no plan file {plan_name}.", "A schedule needs the plan's file.")
    try:
        if budget is not None:
            TypeAdapter(Seconds).validate_python(budget)
        place = str(home()) if os.environ.get("REPEAK_HOME") else None
        nightly = Nightly(plan=plan.name, file=file, at=at, until=until, budget=budget, home=place)
    except ValidationError as error:
        clock = {"at", "until"} & set(error.errors()[0]["loc"])
        what = "--at and --until are HH:MM, such as 02:00" if clock else "--budget is like 90m or 2h"
        raise click.UsageError(f"{what}.") from None
    parts = {"crontab": cron_line(nightly) + "\n"} if cron else units(nightly)
    click.echo("\n".join(text if cron else f"# {folder / name}\n{text}" for name, text in parts.items()), nl=False)
    if kept_out := sorted(name for name in os.environ if name.startswith(("MLFLOW_", "PIP_", "UV_", "HF_", WEBHOOK))):
        click.echo(f"set here, and not in a scheduled run: {', '.join(kept_out)}", err=True)
    if put:
        install(nightly, folder, cron=cron, run=run)
        click.echo(f"installed {nightly.name}, each day at {at}", err=True)


@click.command("sync")
@click.argument("plan_name", metavar="[PLAN]", required=False)
@click.option("--verify", is_flag=True, help="Ask the store itself what it holds, and mend what was lost there.")
def sync_command(plan_name: str | None, *, verify: bool) -> int:
    """Send to MLflow what it lacks of the journals. Every run does so by itself; this is for after an outage.

    Exit code 0: all of it is there; 1: some is not; 6: a run holds a journal, and sends it itself.

    \b
    Example:  repeak sync
              repeak sync quickstart-cpu --verify
    """  # noqa: D301
    name = find_plan(plan_name) if plan_name else None
    if plan_name and name is None:
        raise PlanError(f"No plan {plan_name!r} ran here.", f"There are: {', '.join(plan_names()) or 'none yet'}.")
    codes = [_sync(one, verify=verify) for one in ([name] if name else plan_names())]
    return 1 if 1 in codes else max(codes, default=0)


def _sync(name: str, *, verify: bool) -> int:
    plan = kept_plan(name)
    try:
        journal = Journal(home() / "journals" / name)
    except JournalBusy as busy:
        click.echo(f"{name}: {busy.message} {busy.hint}", err=True)
        return 6
    with journal, MlflowTracker(store_uri(plan.tracking.uri if plan else None), home() / "mlartifacts") as tracker:
        counts = sync(journal, tracker, verify=verify)
    for message in (*journal.messages, *counts.problems):
        click.echo(f"{name}: {message}", err=True)
    outage = "; the store does not answer" if counts.outage else ""
    click.echo(f"{name}: {counts.sent} sent, {counts.present} there already, {counts.failed} not sent{outage}")
    return 1 if counts.failed or counts.outage or counts.problems else 0


class Kept(Frozen):
    """One environment on disk: its size, and why it stays; nothing keeps what may go."""

    name: str
    size_mb: float
    keeps: str | None
    removed: bool = False


@click.command()
@click.option("--yes", is_flag=True, help="Remove what nothing keeps.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def clean(*, yes: bool, as_json: bool) -> None:
    """Show engine environments with their sizes; with --yes remove those without a peak or a study under way.

    \b
    Example:  repeak clean
              repeak clean --yes
    """  # noqa: D301
    found = [_remove(one) if yes and one.keeps is None else one for one in _environments()]
    if as_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
        return
    for one in found:
        what = "removed" if one.removed else one.keeps or "may go: repeak clean --yes"
        click.echo(f"{one.size_mb:8.0f} MB  {one.name}  {what}")
    freed = sum(one.size_mb for one in found if one.keeps is None)
    if found:
        click.echo(f"{freed:8.0f} MB  {'removed' if yes else 'could go'}; files shared with uv's cache count in full")
    else:
        click.echo("No environments yet.")


def _environments() -> Iterator[Kept]:
    locks, plans = _locks_in_use(), [kept_plan(name) for name in plan_names()]
    spare = max((plan.upgrades.keep for plan in plans if plan), default=0)
    for directory, environment in environments_in(environments_root()).items():
        keeps = locks.get(environment.lock_sha256[:16]) if environment else "it cannot be read, so it stays"
        keeps = keeps or _in_use(directory)
        if keeps is None and spare:
            spare, keeps = spare - 1, "a plan keeps the latest"
        size = sum(file.lstat().st_size for file in directory.rglob("*") if not file.is_symlink() and file.is_file())
        yield Kept(name=directory.name, size_mb=round(size / 1e6, 1), keeps=keeps)


def _locks_in_use() -> dict[str, str]:
    """Lock -> what stands on it: a peak, or a study that is under way; a damaged journal may have had a peak."""
    found = {}
    for name in plan_names():
        with reading(name) as journal:
            for key, opened in journal.studies().items():
                lock, closings = opened.fingerprint.items.get("lock"), journal.closings(key)
                if lock and (journal.messages or any(closed.peak for closed in closings)):
                    found[lock] = f"a peak of {name} stands on it"
                elif lock and not closings and any(one.state == "measured" for one in journal.records(key)):
                    found.setdefault(lock, f"a study of {name} is not finished")
    return found


def _in_use(directory: Path) -> str | None:
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(f"{directory}/" in word for word in process.info["cmdline"] or ()):
            return f"process {process.info['pid']} runs from it"
    return None


def _remove(one: Kept) -> Kept:
    if remove_environment(environments_root() / one.name):
        return one.model_copy(update={"removed": True})
    return one.model_copy(update={"keeps": "another process is making it"})
