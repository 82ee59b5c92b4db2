"""What a preflight saves: time to refusal by a warm one against time to failure of a real launch, as ratios.

    python benchmarks/preflight.py [--repeats 3]

Errors of configuration that a launch finds only after it has imported the engine, on every engine environment of
this user's data directory; the model is the one that examples/fetch_model.py brings. Each launch stands between
two preflights, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from orchestrator.engine_environment import EngineEnvironment, EnvironmentRequest, make_environment
from orchestrator.home import home
from orchestrator.local_slot import LocalSlot
from orchestrator.orders import Launchpad
from search_spaces.configuration import Configuration, Scalar
from search_spaces.space import SearchSpace

ERRORS: dict[str, dict[str, Scalar]] = {
    "batch below sequences": {"drafter": "none", "serve.max_num_seqs": 8, "serve.max_num_batched_tokens": 4},
    "length over the model's": {"drafter": "none", "serve.max_model_len": 1_000_000},
    "drafter without its package": {"drafter": "suffix", "k": 4},
    "no multi-token head": {"drafter": "mtp", "k": 1},
}


def pad_of(environment: EngineEnvironment, logs: Path) -> Launchpad:
    return Launchpad(
        environment=environment,
        space=SearchSpace.model_validate({"knobs": []}),
        model=str(home() / "models" / "smollm2-135m"),
        serve={},
        env={},
        bfloat16=False,
        logs=logs,
        run_id="preflight",
        start_timeout_s=lambda: 900.0,
    )


def refusal_s(slot: LocalSlot, pad: Launchpad, values: dict[str, Scalar]) -> tuple[float, str]:
    began = time.perf_counter()
    failure = slot.preflight(pad.order(Configuration(values=values), "asked", 0))
    assert failure is not None
    return time.perf_counter() - began, failure.cause


def failure_s(slot: LocalSlot, pad: Launchpad, values: dict[str, Scalar], number: int) -> tuple[float, str]:
    began = time.perf_counter()
    failure = slot.launch(pad.order(Configuration(values=values), "launched", number)).launch.failure
    took = time.perf_counter() - began
    slot.stop()
    assert failure is not None
    return took, failure.cause


def compare(environment: EngineEnvironment, logs: Path, repeats: int) -> None:
    pad, slot = pad_of(environment, logs / environment.key), LocalSlot("benchmark")
    try:
        began = time.perf_counter()
        slot.preflight(pad.order(Configuration(values={"drafter": "none"}), "warm", 0))
        print(f"{environment.version}: first check, imports included, {time.perf_counter() - began:.1f} s", flush=True)
        # Not counted: it fills the caches that later launches start from.
        failure_s(slot, pad, next(iter(ERRORS.values())), len(ERRORS))
        for number, (name, values) in enumerate(ERRORS.items()):
            before = [refusal_s(slot, pad, values) for _ in range(repeats)]
            launch, cause = failure_s(slot, pad, values, number)
            checks = [*before, *(refusal_s(slot, pad, values) for _ in range(repeats))]
            same = {found for _, found in checks} == {cause}
            check = median(took for took, _ in checks)
            print(
                f"{environment.version} {name}: launch {launch:.1f} s, preflight {check:.2f} s, "
                f"ratio {launch / check:.0f}, {'same cause' if same else 'another cause'}: {cause}",
                flush=True,
            )
    finally:
        slot.abort()
        slot.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as logs:
        for folder in sorted((home() / "environments").glob("vllm*/bin/python")):
            environment = make_environment(
                EnvironmentRequest(adopt=str(folder)), root=home() / "environments", progress=print
            )
            compare(environment, Path(logs), repeats)


if __name__ == "__main__":
    main()
