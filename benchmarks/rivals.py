"""Beside other tools: the same simulated engine, space and launches for each, and a truth that is known.

    python benchmarks/rivals.py FOLDER [--seeds 3] [--nulls 4] [--launches 20] [--tools repeak,ray-optuna]

`repeak` is its own loop; `vllm-opt` is vllm-optimizer with TPE and its four repeats a launch; `vllm-opt-validated` adds
its finalist validation, and keeps what is in use where that names no clear winner; `ray-optuna` is Ray Tune's
OptunaSearch around a script. FOLDER gets their virtual environments and a row for each study, which is not run again.
`vllm serve` on PATH is the simulated engine, `vllm bench serve` a stand-in. Every tool reads speed off the engine's
clock: what a busy machine adds to a client's times would drown what is compared.

The space is three flags, 125 configurations. No drafters: vllm-opt can list whole --speculative-config texts, but not
k below a drafter. A `peak` surface has a hill for each flag, one interaction, and 25 configurations that cannot start;
a `null` one is flat. A launch keeps an effect of 1.5 %, which repeats within it do not see, and a window one of 0.2 %.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import rivals_side
from benchmarks.rivals_side import IN_USE, LOAD, NEEDS, SPACE, Row, engine_clock, flags_in, ray_optuna, vllm_opt
from orchestrator.candidates import candidates, noise_of
from orchestrator.local_slot import LocalSlot
from orchestrator.objective import targets
from orchestrator.peak import Peak, declare_peak
from orchestrator.plan_file import load_plan
from orchestrator.process_tree import environment, free_port
from orchestrator.session import journal_directory, tune_plan
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_spec import Noise, Simulation
from orchestrator.simulated_surface import Surface, Traffic
from orchestrator.slots import LocalSlots
from orchestrator.watchdog import process_table, send
from orchestrator.workload import Workload
from trackers.journal import Journal
from trackers.records import Measurement

BOUND_S, GONE_S = 900.0, 20.0
NOISE, TRAFFIC = Noise(launch_sd=0.015, window_sd=0.002), Traffic(streams=LOAD["max-concurrency"])
FLAT = Surface(
    base_tok_s=60.0, slope=0.0, budget_loss=0.0, cache_cost=0.0, unprofiled_gib=0.0, graph_gib_per_token=0.0,
    state_groups=0, block_size=16, max_model_len=4096,
)  # fmt: skip


def under(values: Row) -> Row:
    return {name.replace("-", "_"): value for name, value in values.items()}


def speed(surface: Surface, values: Row) -> float:
    return 0.0 if surface.failure(under(values)) else float(surface.decode_tok_s(under(values), TRAFFIC))


def make_surface(kind: str, seed: int) -> Surface:
    """On a hill, what is in use loses 5 to 15 %."""
    rng, hill = random.Random(f"rivals/{seed}"), FLAT
    while kind == "peak" and not 0.05 <= 1 - speed(hill, IN_USE) / best(hill) <= 0.15:
        effects = {}
        for name, choices in under(SPACE).items():
            top, loss = rng.randrange(len(choices)), rng.uniform(0.015, 0.04)
            effects[name] = {str(one): math.exp(-loss * abs(at - top)) for at, one in enumerate(choices)}
        pair = ("max_num_seqs", rng.choice([32, 64]), "max_num_batched_tokens", rng.choice([4096, 8192]), 0.95)
        hill = replace(FLAT, effects=effects, pairs=(pair,), activation_cliff_tokens=20000.0)
    return hill


def best(surface: Surface) -> float:
    return max(speed(surface, dict(zip(SPACE, one, strict=True))) for one in product(*SPACE.values()))


class Place:
    """One study's folder: its engine, the `vllm` on its PATH, and what it is to be run with."""

    def __init__(self, folder: Path, kind: str, seed: int, tool: str, launches: int) -> None:
        self.folder, self.seed, self.launches, self.surface = folder, seed, launches, make_surface(kind, seed)
        name, self.model = f"{kind}-{seed}-{tool}", folder / "model"
        self.at = folder / "studies" / name
        shutil.rmtree(self.at, ignore_errors=True)
        (self.at / "path").mkdir(parents=True)
        self.model.mkdir(exist_ok=True)
        self.port, drawn = free_port(), random.Random(name).randrange(10**6)
        shape = Simulation(surface=self.surface, noise=NOISE, seed=drawn, speed=20.0, tick_s=0.02)
        self.engine, vllm = simulated_environment(shape, self.at / "engine"), self.at / "path" / "vllm"
        bench = f'[ "$1" = bench ] && exec {sys.executable} -S {rivals_side.__file__} "$@"'
        vllm.write_text(f'#!/bin/sh\n{bench}\nexec {self.at}/engine/bin/vllm "$@"\n', encoding="utf-8")
        vllm.chmod(0o755)
        path, self.mark = f"{vllm.parent}:{os.environ['PATH']}", f"{os.getpid()}/{name}"
        self.env = {**os.environ, "PATH": path, "RIVALS_RUN": self.mark, "RAY_USAGE_STATS_ENABLED": "0"}

    def run(self, *command: str | Path) -> None:
        with (self.at / "log").open("wb") as log:
            subprocess.run(command, cwd=self.at, env=self.env, stdout=log, stderr=log, timeout=BOUND_S, check=False)

    def left(self) -> int:
        """Processes that still carry the study's mark after a while; they are ended, each by its pid."""
        until, mark = time.monotonic() + GONE_S, f"RIVALS_RUN={self.mark}".encode()
        while True:
            mine = [row.who for pid, row in process_table().items() if row.alive and mark in environment(pid)]
            if not mine or time.monotonic() > until:
                return sum(send(who, signal.SIGKILL) for who in mine)
            time.sleep(0.2)


class ByEngineClock(LocalSlot):
    """The product's slot with speed by the engine's clock, which makes a slow client no objection."""

    def measure(self, workload: Workload, window: int) -> Measurement:
        url = self._ready.base_url if self._ready else ""
        before, found = engine_clock(url), super().measure(workload, window)
        tokens, seconds = (now - then for now, then in zip(engine_clock(url), before, strict=True))
        checks = tuple(check for check in found.checks if check.name != "client_bound")
        metrics = {**found.metrics, "decode_tok_s": tokens / seconds}
        return found.model_copy(update={"metrics": metrics, "checks": checks})


def repeak(place: Place) -> Row:
    line = " ".join(f"--{name} {value}" for name, value in IN_USE.items())
    names = ("requests_per_window", "concurrency", "prompt_tokens", "output_tokens")
    traffic = {"name": "load", "kind": "generate", **dict(zip(names, LOAD.values(), strict=True))}
    plan: Row = {"name": "rivals", "model": {"path": str(place.model)}, "incumbent": f"vllm serve {place.model} {line}"}
    plan |= {"engines": [{"name": "simulated", "python": str(place.engine.python)}], "workloads": [traffic]}
    plan |= {"space": under(SPACE), "search": {"seed": place.seed}, "budget": {"launches": place.launches}}
    plan["precision"] = {"min_windows": 3, "max_windows": 4}
    (place.at / "plan.yaml").write_text(json.dumps(plan), encoding="utf-8")
    place.env |= {"REPEAK_HOME": str(place.at), "MLFLOW_TRACKING_URI": f"sqlite:///{place.at}/mlflow.db"}
    # Forked, for the imports take longer than several launches.
    child = multiprocessing.get_context("fork").Process(target=tuned, args=(place,))
    child.start()
    child.join(BOUND_S)
    child.kill()
    return dict(json.loads((place.at / "told.json").read_text(encoding="utf-8")))


def tuned(place: Place) -> None:
    """`repeak tune`, and what its own rules would have declared after the first launches."""
    os.environ |= place.env
    os.dup2(os.open(place.at / "log", os.O_WRONLY | os.O_CREAT), 2)
    plan = load_plan(place.at / "plan.yaml")
    result = tune_plan(plan, slots=LocalSlots(1, make=ByEngineClock))
    (study,), (target,) = result.studies, targets(plan.objective, plan.workload_names)
    with Journal(journal_directory(plan)) as journal:
        records = journal.records(study.key)
    used = list(accumulate(len(one.launches) for one in records))

    def declared(launches: int) -> Peak | None:
        seen = [one for one, number in zip(records, used, strict=True) if number <= launches]
        field, plain = candidates(seen, target, plan.precision.rule()), study.space.defaults.values
        noise = noise_of(field, plan.precision.launch_noise)
        return declare_peak(field, target, noise, plan.precision.zone, incumbent=study.incumbent, defaults=plain)

    def chosen(peak: Peak | None) -> Row:
        values = peak.configuration.values if peak else {}
        return flags_in({name.replace("_", "-"): one for name, one in values.items()})

    peak = result.outcome.peaks[study.engine].get(target.name)
    gain = peak.better_than_incumbent if peak else None
    told: Row = {"end": chosen(peak), "sure": gain is not None, "gain": gain.ratio - 1 if gain else 0.0}
    told |= {"after4": chosen(declared(4)), "after10": chosen(declared(10))}
    (place.at / "told.json").write_text(json.dumps(told), encoding="utf-8")


TOOLS: dict[str, Callable[[Place], Row]] = {
    "repeak": repeak, "vllm-opt": vllm_opt, "vllm-opt-validated": partial(vllm_opt, validated=True),
    "ray-optuna": ray_optuna,
}  # fmt: skip


def study(place: Place, kind: str, tool: str) -> Row:
    try:
        told = TOOLS[tool](place)
    finally:
        left = place.left()
    row = {"kind": kind, "seed": place.seed, "tool": tool, "allowed": place.launches, "told": told, "left": left}
    row["launches"] = Path(f"{place.at}/engine/surface.json.launches").stat().st_size
    top, before = best(place.surface), speed(place.surface, IN_USE)
    row |= {name: 1 - speed(place.surface, told[name]) / top for name in ("after4", "after10", "end")}
    row |= {"in_use": 1 - before / top, "switched": told["end"] != IN_USE}
    return row | {"told_gain": told["gain"] * row["switched"], "gain": speed(place.surface, told["end"]) / before - 1}


def table(rows: list[Row]) -> None:
    def mean(rows: list[Row], key: str) -> str:
        return f"{100 * sum(row[key] for row in rows) / len(rows):.1f}"

    head = "surface | tool | studies | launches | left running | regret % in use | after 4 | after 10 | end | worst"
    head += " | names another | stands by it | gain told % | true"
    print(f"| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for kind, tool in product(("peak", "null"), TOOLS):
        mine = [row for row in rows if (row["kind"], row["tool"]) == (kind, tool)]
        if n := len(mine):
            sure = [row["told"]["sure"] for row in mine]
            cells = [kind, tool, n, sum(row["launches"] for row in mine) / n, sum(row["left"] for row in mine)]
            cells += [mean(mine, key) for key in ("in_use", "after4", "after10", "end")]
            cells += [mean([max(mine, key=lambda row: float(row["end"]))], "end"), sum(row["switched"] for row in mine)]
            cells += ["-" if None in sure else sum(sure), mean(mine, "told_gain"), mean(mine, "gain")]
            print(f"| {' | '.join(map(str, cells))} |")


def install(folder: Path, tools: list[str]) -> None:
    """The others' virtual environments, where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in NEEDS.items():
        if any(tool.startswith(name) for tool in tools) and not (folder / name / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder / name], check=True, timeout=300)
            pip = [str(folder / name / "bin" / "python"), "-m", "pip", "install", "-q", *wanted]
            subprocess.run(pip, check=True, timeout=1800)
            (folder / name / "ready").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, number in (("seeds", 3), ("nulls", 4), ("launches", 20)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--tools", default=",".join(TOOLS))
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, tools = asked.folder.resolve(), asked.tools.split(",")
    install(folder, tools)
    (out := folder / "rows.jsonl").touch()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    done = {(row["kind"], row["seed"], row["tool"], row["allowed"]) for row in rows}
    cases = [("null", seed) for seed in range(asked.nulls)] + [("peak", seed) for seed in range(asked.seeds)]
    for (kind, seed), tool in product(sorted(cases, key=lambda case: case[1]), tools):
        if (kind, seed, tool, asked.launches) not in done:
            rows.append(study(Place(folder, kind, seed, tool, asked.launches), kind, tool))
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    table([row for row in rows if row["allowed"] == asked.launches])


if __name__ == "__main__":
    main()
