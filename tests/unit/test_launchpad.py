"""An order says of its engine what stands on its command line, by the flags' own names."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engine_environment import EngineEnvironment
from orchestrator.orders import Launchpad
from orchestrator.slot import LaunchOrder
from search_spaces.catalog import READY_MADE
from search_spaces.space_input import SpaceInput


def order(space: dict[str, object], **chosen: object) -> LaunchOrder:
    built = SpaceInput.model_validate(space).build()
    environment = EngineEnvironment(
        key="k", requirement="vllm==0.30.0", version="0.30.0", python=Path("python"), directory=None,
        flavour="other", lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    pad = Launchpad(
        environment=environment, space=built, model="m", serve={"max_model_len": "32k", "load_format": "dummy"}, env={},
        bfloat16=False, logs=Path(), run_id="r", start_timeout_s=lambda: 1.0,
    )  # fmt: skip
    return pad.order(built.complete(chosen), "t", 0)


def test_what_is_left_to_the_engine_is_held_against_nothing() -> None:
    settings = order({"use": list(READY_MADE)}).settings
    assert "default" not in settings.values()
    assert {"attention_backend", "async_scheduling", "kv_offloading_size"}.isdisjoint(settings)


def test_a_knob_s_own_name_is_not_the_engine_s() -> None:
    knobs = {
        "seats": {"flag": "--max-num-seqs", "choices": [8, 16]},
        "threads": {"env": "OMP_NUM_THREADS", "choices": [1, 2]},
        "graphs": {"flag": "--compilation-config.cudagraph_mode", "choices": ["FULL", "NONE"]},
    }
    found = order(knobs, seats=16)  # type: ignore[arg-type]
    assert found.settings == {"max_model_len": "32k", "load_format": "dummy", "max_num_seqs": "16"}
    assert found.env["OMP_NUM_THREADS"] == "1"
