"""`repeak audit URL` on a simulated engine: what it sends, how long it takes, what it names."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from orchestrator.cli import cli
from orchestrator.engine_environment import serve_command
from orchestrator.metrics_page import MetricsPage, parse_metrics
from orchestrator.process_tree import free_port
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_spec import Simulation
from orchestrator.simulated_surface import Drafter, Surface

CONFIG = Path(__file__).parent.parent / "fixtures" / "configs" / "hybrid-27b.json"
SURFACE = Surface(
    version="0.32.0",
    base_tok_s=60.0,
    prefill_max_tok_s=15_000.0,
    weights_gib=50.1,
    memory_gib=140.0,
    kv_bytes_per_token=65_536,
    block_size=400,
    max_model_len=32_768,
    drafters={"mtp": Drafter(cost=0.15)},
)


@contextmanager
def engine(tmp_path: Path, *flags: str, lies: tuple[str, ...] = ()) -> Iterator[str]:
    """A simulated engine in a process of its own, its model's files beside it."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    config = json.loads(CONFIG.read_text())
    config["text_config"]["mamba_ssm_dtype"] = "bfloat16"
    (model / "config.json").write_text(json.dumps(config))
    environment = simulated_environment(Simulation(surface=SURFACE, lies=lies), tmp_path / "env")
    port = free_port()
    command = [*serve_command(environment), str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
    with (tmp_path / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    url, waiter, until = f"http://127.0.0.1:{port}", threading.Event(), time.monotonic() + 60
    try:
        while not answers(url):
            assert process.poll() is None, (tmp_path / "engine.log").read_text()[-500:]
            assert time.monotonic() < until
            waiter.wait(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def page(url: str) -> MetricsPage:
    return parse_metrics(httpx.get(f"{url}/metrics").text)


def audited(url: str, *options: str) -> tuple[dict[str, dict], list[str]]:
    done = CliRunner().invoke(cli, ["audit", url, "--json", *options])
    assert done.exit_code == 0, done.stderr
    (found,) = json.loads(done.stdout)["audits"]
    return {row["name"]: row for row in found["rows"]}, found["notes"]


def test_an_honest_engine_is_audited_in_time_and_left_as_it_was(tmp_path) -> None:
    length = ("--max-model-len", "32768", "--no-enable-prefix-caching")
    with engine(tmp_path, *length) as url:
        labels, began = page(url).labels("vllm:cache_config_info"), time.monotonic()
        rows, notes = audited(url, "--card", "NVIDIA H200")
        took, after = time.monotonic() - began, page(url)
    assert took < 120
    assert not [note for note in notes if "not" in note], "its command, log and model were found by themselves"
    found = {name: row["sentence"] for name, row in rows.items() if row["verdict"] not in ("agrees", "cannot tell")}
    assert found == {}
    for name in (
        "block size",
        "blocks",
        "pool report",
        "pool tokens",
        "clock",
        "output tokens",
        "pass ceiling",
    ):
        assert rows[name]["verdict"] == "agrees", rows[name]
    assert rows["pool tokens"]["measured"] == pytest.approx(rows["pool tokens"]["expected"], rel=0.05)
    assert after.labels("vllm:cache_config_info") == labels
    assert after.total("vllm:num_requests_running") == 0
    assert after.total("vllm:num_preemptions") == 0


def test_single_requests_unless_load_is_asked_for(tmp_path, monkeypatch) -> None:
    seen: list[float] = []
    real = MetricsPage.total

    def watched(self: MetricsPage, name: str) -> float | None:
        value = real(self, name)
        if name == "vllm:num_requests_running":
            seen.append(value or 0)
        return value

    monkeypatch.setattr(MetricsPage, "total", watched)
    with engine(tmp_path, "--max-model-len", "4096") as url:
        _, notes = audited(url)
        assert max(seen) == 1, notes
        _, notes = audited(url, "--load")
        assert max(seen) == 4, notes


@pytest.mark.parametrize(
    ("lie", "row", "flags"),
    [
        ("clock_off", "clock", ()),
        ("wrong_block_size", "block size", ()),
        ("hits_when_cold", "prefix caching", ("--enable-prefix-caching",)),
        (
            "acceptance_doubled",
            "tokens per pass",
            ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'),
        ),
    ],
)
def test_each_lie_of_an_engine_is_named_by_its_row(tmp_path, lie, row, flags) -> None:
    with engine(tmp_path, "--max-model-len", "4096", *flags, lies=(lie,)) as url:
        rows, _ = audited(url)
    assert rows[row]["verdict"] not in ("agrees", "cannot tell"), shlex.join(flags)
    assert rows[row]["sentence"]


def test_a_key_is_needed_only_where_the_server_asks_for_one_and_is_never_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret-value")
    with engine(tmp_path, "--max-model-len", "4096") as url:
        done = CliRunner().invoke(cli, ["audit", url])
        monkeypatch.delenv("VLLM_API_KEY")
        without = CliRunner().invoke(cli, ["audit", url])
    assert done.exit_code == 0
    assert "s3cret-value" not in done.output
    assert "http_401" in str(without.exception)
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[1:])
