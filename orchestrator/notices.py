"""Notices: an outcome sent on, to a webhook and a command; that one of them fails is a warning and no more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from .plan_upgrades import Upgrades, private_url

__all__ = ["WEBHOOK", "send_notice"]

WEBHOOK = "REPEAK_WEBHOOK"
_POST_S, _COMMAND_S = 10.0, 60.0


def send_notice(
    upgrades: Upgrades,
    notice: Mapping[str, Any],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    *,
    transport: httpx.BaseTransport | None = None,
) -> None:
    """Send one outcome as JSON where the plan says, or the environment before it; each way is bounded and tried once.

    `say` is told what failed, without the address's secret parts; `transport` replaces the network in tests.
    """
    body = json.dumps(notice).encode()
    if url := environ.get(WEBHOOK) or upgrades.webhook:
        try:
            with httpx.Client(timeout=_POST_S, transport=transport) as client:
                client.post(url, content=body, headers={"Content-Type": "application/json"}).raise_for_status()
        except httpx.HTTPStatusError as error:
            say(f"the webhook {private_url(url)} answered {error.response.status_code}: the outcome was not sent there")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            say(f"the webhook {private_url(url)} could not be reached ({type(error).__name__}): not sent there")
    if upgrades.command:
        try:
            done = subprocess.run(upgrades.command, input=body, capture_output=True, timeout=_COMMAND_S, check=False)
            why = f"ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()[-200:]}"
        except (OSError, subprocess.TimeoutExpired) as error:
            done, why = None, str(error)
        if done is None or done.returncode:
            say(f"the command {upgrades.command[0]} did not take the outcome, {why}")
