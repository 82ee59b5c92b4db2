"""What pip would use is what uv is told, and credentials stay out of sight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import PlanError
from orchestrator.pip_settings import pip_configuration, redact, uv_settings

NOTHING = {"PIP_CONFIG_FILE": os.devnull}


def configured(folder: Path, user: str = "", chosen: str = "", **variables: str) -> dict[str, str]:
    """Variables of a user whose home has this pip.conf, and whose PIP_CONFIG_FILE holds that one."""
    environ = {"HOME": str(folder), "XDG_CONFIG_DIRS": str(folder / "xdg"), **variables}
    if user:
        (folder / ".config" / "pip").mkdir(parents=True)
        (folder / ".config" / "pip" / "pip.conf").write_text(user)
    if chosen:
        (folder / "chosen.conf").write_text(chosen)
        environ["PIP_CONFIG_FILE"] = str(folder / "chosen.conf")
    return environ


def test_every_setting_of_pip_that_finds_packages_reaches_uv(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    user = f"""
[global]
index-url = https://one.example/simple
extra-index-url =
    https://two.example/simple
    https://three.example/simple
find-links = {wheels} https://four.example/wheels
cert = /certs/ca.pem
constraint = /limits.txt
trusted-host = one.example two.example
timeout = 99
"""
    environ, arguments = uv_settings(configured(tmp_path, user), prefix=tmp_path)
    expected = {
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{wheels},https://four.example/wheels",
        "SSL_CERT_FILE": "/certs/ca.pem",
        "UV_CONSTRAINT": "/limits.txt",
        "UV_INSECURE_HOST": "one.example two.example",
        "UV_HTTP_TIMEOUT": "99",
    }
    assert expected.items() <= environ.items()
    assert arguments == ()


def test_nothing_is_told_where_nothing_is_configured() -> None:
    environ, arguments = uv_settings(NOTHING)
    assert environ == {"UV_PYTHON_DOWNLOADS": "never"}
    assert arguments == ()


def test_variables_win_over_the_install_section_which_wins_over_the_global_one(tmp_path: Path) -> None:
    user = "[global]\nindex-url = https://g.example\ntimeout = 1\ncert = /g\n"
    user += "[install]\nindex_url = https://i.example\ntimeout = 2\n"
    options = pip_configuration(configured(tmp_path, user, PIP_TIMEOUT="3"), prefix=tmp_path)
    assert {name: options[name] for name in ("index-url", "timeout", "cert")} == {
        "index-url": "https://i.example",
        "timeout": "3",
        "cert": "/g",
    }


def test_a_chosen_file_replaces_the_users_own_and_wins_over_the_virtual_environments(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://venv.example\nproxy = http://venv.example\n")
    environ = configured(tmp_path, "[global]\ncert = /user\n", "[global]\nindex-url = https://chosen.example\n")
    options = pip_configuration(environ, prefix=tmp_path)
    assert options["index-url"] == "https://chosen.example"
    assert options["proxy"] == "http://venv.example"
    assert options.get("cert") != "/user"


def test_pip_itself_reads_the_same_values_from_the_same_files(tmp_path: Path) -> None:
    user = "[global]\nindex-url = https://g.example\nextra-index-url = https://e.example\n    https://f.example\n"
    environ = configured(tmp_path, user + "[install]\nindex-url = https://i.example\n", PIP_CERT="/c")
    ask = [sys.executable, "-m", "pip", "config", "list"]
    if subprocess.run([*ask[:3], "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip to compare with")
    listed = subprocess.run(ask, env=environ, capture_output=True, text=True, check=True).stdout
    said = dict(line.split("=", 1) for line in listed.splitlines())
    options = pip_configuration(environ)
    assert repr(options["index-url"]) == said["install.index-url"]
    assert repr(options["cert"]) == said[":env:.cert"]
    assert repr(options["extra-index-url"]) == said["global.extra-index-url"]


def test_the_users_own_uv_variables_win_under_either_name() -> None:
    pip = {**NOTHING, "PIP_INDEX_URL": "https://pip.example", "PIP_EXTRA_INDEX_URL": "https://more.example"}
    mine = {
        "UV_INDEX_URL": "https://mine.example",
        "UV_INDEX": "https://also.example",
        "UV_HTTP_TIMEOUT": "7",
    }
    environ, _ = uv_settings({**pip, "PIP_TIMEOUT": "5", **mine})
    assert mine.items() <= environ.items()
    assert "UV_DEFAULT_INDEX" not in environ


def test_local_folders_that_are_not_there_are_dropped_as_pip_ignores_them(tmp_path: Path) -> None:
    here, gone = (tmp_path / "here").as_uri(), (tmp_path / "gone").as_uri()
    (tmp_path / "here").mkdir()
    links = {"PIP_EXTRA_INDEX_URL": f"{gone} {here}", "PIP_FIND_LINKS": str(tmp_path / "gone")}
    environ, _ = uv_settings({**NOTHING, **links})
    assert environ["UV_INDEX"] == here
    assert "UV_FIND_LINKS" not in environ
    environ, _ = uv_settings({**NOTHING, "PIP_EXTRA_INDEX_URL": gone})
    assert "UV_INDEX_STRATEGY" not in environ


def test_relative_folders_become_absolute_since_uv_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wheels").mkdir()
    assert uv_settings({**NOTHING, "PIP_FIND_LINKS": "wheels"}).environ["UV_FIND_LINKS"] == str(tmp_path / "wheels")
    assert uv_settings({**NOTHING, "UV_FIND_LINKS": "wheels"}).environ["UV_FIND_LINKS"] == str(tmp_path / "wheels")


def test_credentials_go_through_the_environment_and_never_through_arguments() -> None:
    secret = {"PIP_INDEX_URL": "https://me:s3cret@one.example/simple", "PIP_NO_INDEX": "true"}
    environ, arguments = uv_settings({**NOTHING, **secret})
    assert "s3cret" in environ["UV_DEFAULT_INDEX"]
    assert arguments == ("--no-index",)


def test_uv_is_left_neither_pips_variables_nor_what_would_stop_bytecode() -> None:
    more = {"PYTHONDONTWRITEBYTECODE": "1", "VIRTUAL_ENV": "/v", "PYTHONPATH": "/p", "PATH": "/bin"}
    environ, _ = uv_settings({**NOTHING, **more, "PIP_INDEX_URL": "https://one.example"})
    assert environ.keys() == {"PATH", "UV_DEFAULT_INDEX", "UV_PYTHON_DOWNLOADS"}


def test_an_interpreter_is_never_downloaded_even_where_the_user_allows_it() -> None:
    assert uv_settings({**NOTHING, "UV_PYTHON_DOWNLOADS": "automatic"}).environ["UV_PYTHON_DOWNLOADS"] == "never"


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    environ = configured(tmp_path, chosen="index-url = https://u:s3cret@one.example\n")
    with pytest.raises(PlanError, match=r"chosen\.conf") as caught:
        pip_configuration(environ, prefix=tmp_path)
    assert "s3cret" not in str(caught.value)


@given(st.from_regex(r"[A-Za-z0-9%._~-]+(:[A-Za-z0-9%._~@-]+)?", fullmatch=True))
def test_no_user_part_of_an_address_survives_redaction(user: str) -> None:
    text = f"error: https://{user}@one.example/simple failed (see git+ssh://{user}@two.example, 'x')"
    assert redact(text) == ("error: https://***@one.example/simple failed (see git+ssh://***@two.example, 'x')")


def test_text_without_credentials_is_left_as_it_is() -> None:
    text = "https://one.example/a@b/c and me@mail.example and torch==2.13.0+cpu"
    assert redact(text) == text
