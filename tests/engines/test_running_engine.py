"""One real engine left running: what the instrument, the gates and the audit say of a server by its URL."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
from real_runs import start

from orchestrator.local_slot import LocalSlot
from orchestrator.metrics_page import parse_metrics

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


def test_a_missing_tool_parser_is_named_by_the_instrument(running: tuple[LocalSlot, str], place: Path) -> None:
    measured = start(place, "measure", running[1], "-w", "tool_loop", "--max-windows", "1", "--json")
    out, err = measured.communicate(timeout=600)
    assert measured.returncode == 4, err
    failed = {check["name"]: check["detail"] for check in json.loads(out)["checks"] if check["passed"] is False}
    assert "tool_call_not_parsed" in failed["tool_call_parsed"]


def test_gates_and_proofs_of_a_drafting_engine(running: tuple[LocalSlot, str]) -> None:
    found = {check.name: check for check in running[0].check_gates(["greedy_repeats", "json_schema", "min_p"])}
    assert found["greedy_repeats"].passed is True, found
    assert found["gate_json_schema"].passed is True, found
    # Drafting cannot honour it: refusing and ignoring both are named.
    assert found["gate_min_p"].passed is False, found
    assert found["gate_min_p"].detail


def test_an_audit_by_url_measures_the_pool_and_leaves_the_server_as_it_was(
    running: tuple[LocalSlot, str], place: Path
) -> None:
    def page():
        return parse_metrics(httpx.get(f"{running[1]}/metrics", timeout=10).text)

    before, begun = page().labels("vllm:cache_config_info"), time.monotonic()
    audit = start(place, "audit", running[1], "--json")
    out, err = audit.communicate(timeout=900)
    assert audit.returncode == 0, err
    print(f"the audit took {time.monotonic() - begun:.0f} s")
    rows = {row["name"]: row for row in json.loads(out)["audits"][0]["rows"]}
    blocks = int(before["num_gpu_blocks"]) * int(before["block_size"])
    assert rows["pool tokens"]["measured"] == pytest.approx(blocks, rel=0.05), rows["pool tokens"]
    assert rows["pool tokens"]["verdict"] == "agrees", rows["pool tokens"]
    wrong = {name: row["sentence"] for name, row in rows.items() if row["verdict"] in ("impossible", "premise differs")}
    assert wrong == {}
    after = page()
    assert after.labels("vllm:cache_config_info") == before
    assert after.total("vllm:num_requests_running") == 0
