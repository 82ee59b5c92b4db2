"""An outcome reaches webhook and command whole; what fails is a warning that shows no secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from orchestrator import notices
from orchestrator.notices import send_notice
from orchestrator.plan_upgrades import Upgrades

NOTICE = {"plan": "night", "text": "do not upgrade: -38 % at the old settings"}
URL = "https://hooks.example/services/T0/secretsecret?token=hidden"


def test_the_webhook_gets_the_outcome_as_json_and_the_environments_comes_first() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204)

    upgrades = Upgrades(webhook="https://plan.example/hook")
    for environ in ({}, {"REPEAK_WEBHOOK": URL}):
        send_notice(upgrades, NOTICE, environ, pytest.fail, transport=httpx.MockTransport(answer))
    assert [request.url.host for request in asked] == ["plan.example", "hooks.example"]
    assert [json.loads(request.content) for request in asked] == [NOTICE, NOTICE]


@pytest.mark.parametrize("fails", [httpx.ConnectTimeout("slow"), httpx.ConnectError("dns"), 302, 500])
def test_a_webhook_that_fails_is_a_warning_without_its_secret(fails: Exception | int) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(fails, Exception):
            raise fails
        return httpx.Response(fails, headers={"Location": "https://elsewhere.example"})

    said: list[str] = []
    send_notice(Upgrades(), NOTICE, {"REPEAK_WEBHOOK": URL}, said.append, transport=httpx.MockTransport(answer))
    assert len(said) == 1
    assert "https://hooks.example/***" in said[0]
    assert not any(word in said[0] for word in ("secret", "hidden", "T0"))


def test_what_is_no_address_is_a_warning_too() -> None:
    said: list[str] = []
    send_notice(Upgrades(), NOTICE, {"REPEAK_WEBHOOK": "hooks.example/secret"}, said.append)
    assert len(said) == 1
    assert "secret" not in said[0]


def test_the_command_reads_the_outcome_on_its_standard_input(tmp_path: Path) -> None:
    to = tmp_path / "got.json"
    copy = f"import sys, pathlib; pathlib.Path({str(to)!r}).write_text(sys.stdin.read())"
    send_notice(Upgrades(command=(sys.executable, "-c", copy)), NOTICE, {}, pytest.fail)
    assert json.loads(to.read_text()) == NOTICE


@pytest.mark.parametrize("command", [("/nowhere/notify",), (sys.executable, "-c", "raise SystemExit('no mail')")])
def test_a_command_that_fails_is_a_warning(command: tuple[str, ...]) -> None:
    said: list[str] = []
    send_notice(Upgrades(command=command), NOTICE, {}, said.append)
    assert len(said) == 1
    assert command[0] in said[0]


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("notify", timeout)

    monkeypatch.setattr(notices.subprocess, "run", hang)
    said: list[str] = []
    send_notice(Upgrades(command=("notify",)), NOTICE, {}, said.append)
    assert "60" in said[0]
