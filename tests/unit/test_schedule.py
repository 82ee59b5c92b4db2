"""A schedule is read by the program that runs it, and leaves nothing when it goes."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from croniter import croniter
from pydantic import ValidationError

from orchestrator.errors import RepeakError
from orchestrator.schedule import Nightly, cron_line, install, uninstall, units


def nightly(**changes: object) -> Nightly:
    held = {"plan": "night", "file": Path('/a b/100% "plan" $X.yaml'), "at": "02:30", "budget": "2h", "home": "/h o"}
    return Nightly.model_validate(held | changes)


class Host:
    """systemctl and crontab of a user, in memory."""

    def __init__(self, crontab: str | None = None, fails: str = "") -> None:
        self.crontab, self.fails, self.calls = crontab, fails, []

    def __call__(self, command: list[str], given: str | None) -> tuple[int, str]:
        self.calls.append(command)
        if self.fails and self.fails in command:
            return 1, "Failed to connect to bus"
        if command == ["crontab", "-l"]:
            return (0, self.crontab) if self.crontab is not None else (1, "no crontab for me")
        if command == ["crontab", "-"]:
            self.crontab = given
        if command == ["crontab", "-r"]:
            self.crontab = None
        return 0, ""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not on this machine")
def test_systemd_reads_the_units_whatever_the_path(tmp_path: Path) -> None:
    for name, text in units(nightly()).items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in units(nightly())]
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert not [line for line in done.stderr.splitlines() if "repeak" in line], done.stderr


def test_a_stop_reaches_the_driver_alone_and_a_missed_night_is_not_made_up_for_by_day() -> None:
    texts = units(nightly())
    assert "KillMode=mixed\nKillSignal=SIGINT" in texts["repeak-night.service"]
    assert "Persistent=false" in texts["repeak-night.timer"]
    assert "OnCalendar=*-*-* 02:30:00" in texts["repeak-night.timer"]


def test_cron_runs_it_at_that_time_and_reads_the_command_whole() -> None:
    line = cron_line(nightly(file=Path("/a b/100% plan.yaml"), until="06:00"))
    fields, command = " ".join(line.split()[:5]), " ".join(line.split()[5:])
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    assert croniter(fields, begun).get_next(datetime) == begun.replace(hour=2, minute=30)
    assert "%" not in command.replace(r"\%", "")
    shown = f"set -- {command.replace(chr(92) + '%', '%').split(' 2>&1')[0].split(' ', 2)[2]}; printf '%s|' \"$@\""
    said = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, timeout=30, check=True).stdout
    assert said.endswith("retune|/a b/100% plan.yaml|--if-moved|--budget|2h|--until|06:00|")


def test_cron_stays_right_over_a_change_of_the_clocks() -> None:
    fields = " ".join(cron_line(nightly()).split()[:5])
    nights = croniter(fields, datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [nights.get_next(datetime).day for _ in range(3)] == [29, 30, 31]


@pytest.mark.parametrize("field", ["at", "until"])
@pytest.mark.parametrize("time", ["24:00", "2:00", "noon", "02:60"])
def test_a_time_that_is_none_is_refused(field: str, time: str) -> None:
    with pytest.raises(ValidationError):
        nightly(**{field: time})


def test_two_plans_whose_names_are_alike_have_units_of_their_own() -> None:
    assert nightly(plan="My plan").name != nightly(plan="my-plan").name != nightly(plan="my.plan").name


def test_installed_and_uninstalled_leaves_nothing(tmp_path: Path) -> None:
    host, folder = Host("0 5 * * * mine\n"), tmp_path / "user"
    install(nightly(), folder, cron=False, run=host)
    assert sorted(file.name for file in folder.iterdir()) == ["repeak-night.service", "repeak-night.timer"]
    assert ["systemctl", "--user", "enable", "--now", "repeak-night.timer"] in host.calls
    install(nightly(), folder, cron=True, run=host)
    install(nightly(at="03:00"), folder, cron=True, run=host)
    assert host.crontab is not None
    assert [line.split()[:2] for line in host.crontab.splitlines()] == [["0", "5"], ["0", "3"]]
    assert len(uninstall("night", folder, host)) == 3
    assert (list(folder.iterdir()), host.crontab) == ([], "0 5 * * * mine\n")
    assert uninstall("night", folder, host) == []


def test_what_was_installed_for_a_file_is_found_by_that_file(tmp_path: Path) -> None:
    host, folder = Host("0 5 * * * mine\n"), tmp_path / "user"
    install(nightly(), folder, cron=False, run=host)
    install(nightly(), folder, cron=True, run=host)
    other = nightly(plan="other", file=Path("/other.yaml"))
    install(other, folder, cron=True, run=host)
    assert len(uninstall(str(nightly().file), folder, host)) == 3
    assert host.crontab == f"0 5 * * * mine\n{cron_line(other)}\n"


def test_a_crontab_that_held_only_ours_is_gone_after(tmp_path: Path) -> None:
    host = Host()
    install(nightly(), tmp_path, cron=True, run=host)
    uninstall("night", tmp_path, host)
    assert host.crontab is None


def test_a_timer_that_systemd_refuses_is_taken_away_again(tmp_path: Path) -> None:
    with pytest.raises(RepeakError, match="did not take the timer"):
        install(nightly(), tmp_path, cron=False, run=Host(fails="enable"))
    assert list(tmp_path.iterdir()) == []


def test_a_crontab_that_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    host = Host(fails="-l")
    with pytest.raises(RepeakError, match="cannot be read"):
        install(nightly(), tmp_path, cron=True, run=host)
    assert ["crontab", "-"] not in host.calls
