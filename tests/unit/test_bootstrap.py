"""What the README's two commands do on a Python that lacks venv, may not be installed into, or does not fit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# A Python by its manners: it logs what it is asked, and makes environments whose Python may install.
PYTHON = """#!/bin/sh
echo "$0 $*" >> "{log}"
case "$*" in
  "-c import "*) exec "{real}" "$@" ;;
  *" --clear "*) for last; do :; done; mkdir -p "$last/bin"; cp "{child}" "$last/bin/python" ;;
  "-m pip install"*) {install} ;;
esac
"""
REFUSES = "echo 'error: externally-managed-environment' >&2; exit 1"  # as pip does beside EXTERNALLY-MANAGED
SITE = """
import sys
sys.executable = {python!r}
sys.version_info = (*{version!r}, 0, "final", 0)
sys.modules.update(dict.fromkeys({missing!r}))
"""
PIP = ".venv/bin/python -m pip install --quiet --disable-pip-version-check"
INSTALLS = [f"{PIP} --require-hashes -r requirements.lock", f"{PIP} --no-deps --editable ."]
PROBE = "-c import venv, ensurepip"


class Checkout:
    """The bootstrap beside a lock of its own, run by a real Python that takes a stub for itself."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.site = root, root / "path", root / "site"
        for folder in ("examples", "path", "site"):
            (root / folder).mkdir()
        shutil.copy(EXAMPLES / "bootstrap.py", root / "examples")
        for name in ("requirements.lock", "pyproject.toml"):
            (root / name).write_text(name)
        for tool in ("mkdir", "cp"):
            (self.path / tool).symlink_to(str(shutil.which(tool)))
        self.stub("child", install="exit 0")
        self.system = self.stub("system")

    def stub(self, name: str, install: str = REFUSES) -> Path:
        file, child = self.root / name, self.root / "child"
        file.write_text(PYTHON.format(log=self.root / "log", child=child, real=sys.executable, install=install))
        file.chmod(0o755)
        return file

    def install(
        self, *missing: str, version: tuple[int, int] = (3, 11)
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """`install` on a Python of that version without those modules; what came of it, and the commands it ran."""
        site = SITE.format(python=str(self.system), version=version, missing=missing)
        (self.site / "sitecustomize.py").write_text(site)
        (self.root / "log").write_text("")
        done = subprocess.run(
            [sys.executable, "-c", "import bootstrap; print(bootstrap.install('requirements.lock'))"],
            env={"PATH": str(self.path), "PYTHONPATH": f"{self.site}:{self.root / 'examples'}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        asked = (self.root / "log").read_text().replace(f"{self.root}/", "").replace(str(self.root), ".")
        return done, asked.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_python_that_may_not_be_installed_into_gets_a_virtual_environment_and_is_left_alone(
    checkout: Checkout,
) -> None:
    done, asked = checkout.install()
    assert (done.returncode, done.stderr) == (0, "")
    python = checkout.root / ".venv" / "bin" / "python"
    assert done.stdout.splitlines() == ["== installing requirements.lock into .venv", str(python)]
    assert asked == [f"system {PROBE}", "system -m venv --clear .venv", *INSTALLS]


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_a_python_without_venv_is_one_error_that_says_what_to_install(checkout: Checkout, missing: str) -> None:
    done, asked = checkout.install(missing, "virtualenv")
    assert (done.returncode, done.stdout, asked) == (1, "", [f"system {PROBE}"])
    what, hint = done.stderr.splitlines()
    assert what == f"{checkout.system} cannot make virtual environments: its modules venv and ensurepip are missing."
    assert "apt install python3-venv" in hint
    assert "pip install --user virtualenv" in hint
    assert not (checkout.root / ".venv").exists()


def test_without_venv_a_virtualenv_that_is_there_takes_its_place(checkout: Checkout) -> None:
    (checkout.site / "virtualenv.py").touch()
    done, asked = checkout.install("venv")
    assert (done.returncode, done.stderr) == (0, "")
    assert asked == [f"system {PROBE}", "system -m virtualenv --python system --clear .venv", *INSTALLS]


def test_a_python_that_does_not_fit_gives_way_to_the_first_on_path_that_starts(checkout: Checkout) -> None:
    (checkout.path / "python3.11").write_text("#!/bin/sh\nexit 127\n")
    (checkout.path / "python3.11").chmod(0o755)
    (checkout.path / "python3.12").symlink_to(checkout.stub("other"))
    done, asked = checkout.install(version=(3, 9))
    assert (done.returncode, done.stderr) == (0, "")
    assert asked[1:] == [f"path/python3.12 {PROBE}", "path/python3.12 -m venv --clear .venv", *INSTALLS]


def test_no_python_that_fits_is_one_error_that_says_which_would(checkout: Checkout) -> None:
    done, asked = checkout.install(version=(3, 14))
    assert (done.returncode, done.stdout, asked) == (1, "", [])
    what, hint = done.stderr.splitlines()
    assert what.endswith("is too old or too new, and no python3.11 to 3.13 is on PATH.")
    assert hint.startswith("  Install one of them")


def test_what_is_installed_is_used_again_until_the_lock_changes(checkout: Checkout) -> None:
    checkout.install()
    assert checkout.install()[1] == []
    (checkout.root / "requirements.lock").write_text("another")
    assert checkout.install()[1] == [".venv/bin/python -m pip -V", *INSTALLS]


def test_a_pip_that_fails_is_told_in_two_lines_and_tried_again_the_next_time(checkout: Checkout) -> None:
    checkout.stub("child", install="exit 3")
    done, _ = checkout.install()
    assert done.returncode == 1
    assert "pip could not install requirements.lock (it ended with 3" in done.stderr
    assert "package index" in done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(checkout.root / ".venv")
    checkout.stub("child", install="exit 0")
    assert checkout.install()[0].returncode == 0
