"""Schedule: the retune of a plan each night, as a systemd user timer or a crontab line."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pydantic import Field

from trackers.records import Frozen

from .errors import RepeakError
from .window import HOUR

__all__ = ["Nightly", "Run", "cron_line", "install", "run", "uninstall", "unit_folder", "unit_name", "units"]

_TIMEOUT_S = 60
Run = Callable[[list[str], str | None], tuple[int, str]]


class Nightly(Frozen):
    """One plan's retune at a local time of day; `home` is set where REPEAK_HOME was."""

    plan: str
    file: Path
    at: str = Field(pattern=f"^{HOUR}$")
    until: str | None = Field(None, pattern=f"^{HOUR}$")
    budget: str | None = None
    home: str | None = None

    @property
    def name(self) -> str:
        return unit_name(self.plan)

    @property
    def command(self) -> list[str]:
        script = Path(sys.executable).with_name("repeak")
        start = [str(script)] if script.is_file() else [sys.executable, "-P", "-m", "orchestrator"]
        limits = [word for name in ("budget", "until") if (text := getattr(self, name)) for word in (f"--{name}", text)]
        return [*start, "retune", str(self.file), "--if-moved", *limits]


def unit_name(plan: str) -> str:
    """Of a plan's units, and the mark of its crontab line; another plan's is another."""
    slug = re.sub(r"[^a-z0-9]+", "-", plan.lower()).strip("-")
    digest = hashlib.sha256(plan.encode()).hexdigest()[:6]
    return f"repeak-{slug}" if slug == plan else f"repeak-{slug}-{digest}"


def units(nightly: Nightly) -> dict[str, str]:
    """File name -> text of a service and its timer.

    A stop is one SIGINT to the driver alone: it abandons the launch, keeps what is measured and ends its engines.
    """
    environment = f"Environment={_quoted('REPEAK_HOME=' + nightly.home)}\n" if nightly.home else ""
    title = f"repeak: the peak of {nightly.plan} again, where its stack moved".replace("%", "%%")
    service = (
        f"[Unit]\nDescription={title}\n\n[Service]\nType=oneshot\n{environment}"
        f"ExecStart={' '.join(map(_quoted, nightly.command))}\n"
        "Nice=10\nKillMode=mixed\nKillSignal=SIGINT\nTimeoutStopSec=300\n"
    )
    # Not persistent: a run that was missed waits for the next night, it does not start when people work.
    timer = (
        f"[Unit]\nDescription={title}\n\n[Timer]\nOnCalendar=*-*-* {nightly.at}:00\nPersistent=false\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    return {f"{nightly.name}.service": service, f"{nightly.name}.timer": timer}


def cron_line(nightly: Nightly) -> str:
    """One line of a crontab; what the run says goes to the system's log."""
    hour, minute = map(int, nightly.at.split(":"))
    home = f"REPEAK_HOME={shlex.quote(nightly.home)} " if nightly.home else ""
    command = f"{home}{shlex.join(nightly.command)} 2>&1 | logger -t {nightly.name}"
    # An unescaped % would end the command there.
    return f"{minute} {hour} * * * {command} # {nightly.name}".replace("%", r"\%")


def install(nightly: Nightly, folder: Path, *, cron: bool, run: Run) -> None:
    """Puts it in place of an earlier one; what could not be enabled is taken away again.

    Raises:
        RepeakError: systemd or cron would not take it.
    """
    if cron:
        _write_crontab([*_others({nightly.name}, run), cron_line(nightly)], run)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in units(nightly).items():
        (folder / name).write_text(text, encoding="utf-8")
    for words in (["daemon-reload"], ["enable", "--now", f"{nightly.name}.timer"]):
        code, said = run(["systemctl", "--user", *words], None)
        if code:
            _remove_units(nightly.name, folder, run)
            hint = "Is there a user session (`loginctl enable-linger`)? `--cron` uses the crontab instead."
            raise RepeakError(f"systemd did not take the timer: {said.strip()[-300:]}", hint)


def uninstall(what: str, folder: Path, run: Run) -> list[str]:
    """Removes timer, service and crontab line of a plan, by its name or its file, which may be gone.

    Returns what was there.
    """
    names, file = {unit_name(what)}, str(Path(what).absolute())
    names |= {one.stem for one in folder.glob("repeak-*.service") if _quoted(file) in one.read_text(encoding="utf-8")}
    removed = [part for name in sorted(names) for part in _remove_units(name, folder, run)]
    code, said = run(["crontab", "-l"], None)
    escaped = f" retune {shlex.quote(file)} ".replace("%", r"\%")
    names |= {line.rpartition(" # ")[2] for line in said.splitlines() if code == 0 and escaped in line}
    if code == 0 and len(others := _others(names, run)) < len(said.splitlines()):
        _write_crontab(others, run)
        removed.append("the crontab line")
    return removed


def _remove_units(name: str, folder: Path, run: Run) -> list[str]:
    timer = f"{name}.timer"
    there = [one for one in (f"{name}.service", timer) if (folder / one).exists()]
    if there:
        run(["systemctl", "--user", "disable", "--now", timer], None)
        for path in (*(folder / one for one in there), folder / "timers.target.wants" / timer):
            path.unlink(missing_ok=True)
        run(["systemctl", "--user", "daemon-reload"], None)
    return there


def _others(names: Collection[str], run: Run) -> list[str]:
    """The crontab's other lines; none where the user has no crontab."""
    code, said = run(["crontab", "-l"], None)
    if code and "no crontab" not in said:
        raise RepeakError(f"The crontab cannot be read: {said.strip()[-300:]}", "Install cron, or leave --cron out.")
    marks = tuple(f" # {name}" for name in names)
    return [] if code else [line for line in said.splitlines() if not line.endswith(marks)]


def _write_crontab(lines: list[str], run: Run) -> None:
    empty = not any(line.strip() for line in lines)
    text = "".join(f"{line}\n" for line in lines)
    code, said = run(["crontab", "-r"], None) if empty else run(["crontab", "-"], text)
    if code:
        raise RepeakError(f"The crontab was not changed: {said.strip()[-300:]}", "Check that cron may be used here.")


def run(command: list[str], given: str | None) -> tuple[int, str]:
    """Exit code and output of a bounded command; 127 where it is not installed."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, input=given or "", capture_output=True, text=True, timeout=_TIMEOUT_S, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def unit_folder(environ: Mapping[str, str]) -> Path:
    """Where systemd looks for a user's own units."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "systemd" / "user"


def _quoted(word: str) -> str:
    """A word that systemd reads back whole."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
