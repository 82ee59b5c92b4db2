"""The other tools beside `rivals.py`: what they are asked and say, and what runs in their environments.

`rivals_side.py bench serve [flags]` is `vllm bench serve`'s stand-in: `--num-prompts` requests, `--max-concurrency` at
a time, and a result as that saves it. `rivals_side.py ray SPEC` is a user's own OptunaSearch around one bench a launch.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_S, BENCH_S, STOP_S = 60.0, 120.0, 10.0
NEEDS = {"vllm-opt": ["vllm-optimizer==0.1.0a21"], "ray-optuna": ["ray[tune]==2.60.0", "optuna==5.0.0"]}
SPACE: dict[str, list[Any]] = {
    "max-num-seqs": [8, 16, 32, 64, 128],
    "max-num-batched-tokens": [2048, 4096, 8192, 16384, 32768],
    "gpu-memory-utilization": [0.7, 0.8, 0.85, 0.9, 0.94],
}
IN_USE = {"max-num-seqs": 64, "max-num-batched-tokens": 8192, "gpu-memory-utilization": 0.9}
LOAD = {"num-prompts": 4, "max-concurrency": 1, "random-input-len": 64, "random-output-len": 64}
Row = dict[str, Any]


def flags_in(values: Row) -> Row:
    return {name: values.get(name, here) for name, here in IN_USE.items()}


def engine_clock(url: str) -> tuple[float, float]:
    """Tokens decoded so far and the seconds that took, by the engine's own counters."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=BENCH_S) as answer:
        page = answer.read().decode()

    def total(name: str) -> float:
        return sum(map(float, re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)))

    # The first token of each request is its prefill's.
    return total("generation_tokens_total") - total("request_success_total"), total("request_decode_time_seconds_sum")


def bench(argv: list[str]) -> None:
    """One run against a server that is up; its speed is what the engine's clock says, the times are the client's."""
    flags = {argv[at][2:]: argv[at + 1] for at in range(len(argv) - 1) if argv[at].startswith("--")}
    prompts, flight, size = (int(flags[name]) for name in ("num-prompts", "max-concurrency", "random-input-len"))
    url, body = f"http://{flags['host']}:{flags['port']}", {"model": flags["model"], "ignore_eos": True}
    body |= {"max_tokens": int(flags["random-output-len"]), "temperature": 0}

    def one(number: int) -> float:
        sent = json.dumps({**body, "prompt": f"{time.monotonic_ns()} {number} " + "word " * size}).encode()
        request, began = urllib.request.Request(f"{url}/v1/completions", sent), time.perf_counter()
        with urllib.request.urlopen(request, timeout=BENCH_S) as answer:
            answer.read()
        return 1000 * (time.perf_counter() - began)

    before = engine_clock(url)
    with ThreadPoolExecutor(flight) as pool:
        times = sorted(pool.map(one, range(prompts)))
    tokens, seconds = (now - then for now, then in zip(engine_clock(url), before, strict=True))
    speed, output = flight * tokens / seconds, prompts * int(flags["random-output-len"])
    result = {
        "backend": "vllm", "model_id": flags["model"], "num_prompts": prompts, "max_concurrency": flight,
        "duration": output / speed, "completed": prompts, "failed": 0, "total_input_tokens": prompts * size,
        "total_output_tokens": output, "request_throughput": speed * prompts / output, "output_throughput": speed,
        "total_token_throughput": speed * (output + prompts * size) / output, "mean_tpot_ms": 1000 * flight / speed,
        "mean_e2el_ms": sum(times) / prompts, "median_e2el_ms": times[prompts // 2], "p99_e2el_ms": times[-1],
    }  # fmt: skip
    (Path(flags["result-dir"]) / flags["result-filename"]).write_text(json.dumps(result), encoding="utf-8")


def launched(spec: Row, values: Row) -> float:
    """One engine started, measured once and stopped, as a user's script does; RuntimeError where it does not start."""
    where, out = ["--host", "127.0.0.1", "--port", str(spec["port"])], Path(spec["out"])
    chosen = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    with out.with_suffix(".log").open("ab") as log:
        engine = subprocess.Popen(["vllm", "serve", spec["model"], *where, *chosen], stdout=log, stderr=log)
        try:
            until = time.monotonic() + START_S
            while not healthy(spec["port"]):
                if engine.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"vllm serve did not start: {values}")
                time.sleep(0.1)
            saved = ["--model", spec["model"], "--result-dir", str(out.parent), "--result-filename", "bench.json"]
            subprocess.run(["vllm", "bench", "serve", *where, *spec["bench"], *saved], check=True, timeout=BENCH_S)
        finally:
            engine.terminate()
            try:
                engine.wait(STOP_S)
            except subprocess.TimeoutExpired:
                engine.kill()
    return float(json.loads((out.parent / "bench.json").read_text(encoding="utf-8"))["output_throughput"])


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ray_tune(spec: Row) -> None:
    """One trial at a time, the configuration in use first; saves (values, speed or None) in the order tried."""
    # By name: only this mode runs where Ray Tune is.
    ray, tune = importlib.import_module("ray"), importlib.import_module("ray.tune")
    optuna = importlib.import_module("ray.tune.search.optuna")
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=spec["temp"], _node_ip_address="127.0.0.1"
    )

    def trial(values: Row) -> None:
        tune.report({"output_throughput": launched(spec, values)})

    search = optuna.OptunaSearch(
        {name: tune.choice(choices) for name, choices in SPACE.items()},
        metric="output_throughput", mode="max", seed=spec["seed"], points_to_evaluate=[IN_USE],
    )  # fmt: skip
    wanted = tune.TuneConfig(search_alg=search, num_samples=spec["launches"], max_concurrent_trials=1)
    where = tune.RunConfig(name="rival", storage_path=str(Path(spec["out"]).parent), verbose=0)
    found = tune.Tuner(trial, tune_config=wanted, run_config=where).fit()
    tried = [[one.config, None if one.error else one.metrics["output_throughput"]] for one in found]
    ray.shutdown()
    Path(spec["out"]).write_text(json.dumps(tried), encoding="utf-8")


def answer(tried: list[tuple[Row, float | None]], chosen: Row, *, sure: bool | None, gain: float) -> Row:
    """What a tool that believes its largest reading says after each launch, and at its end."""

    def after(launches: int) -> Row:
        return max(tried[:launches], key=lambda one: one[1] or 0.0)[0]

    return {"after4": after(4), "after10": after(10), "end": chosen, "sure": sure, "gain": gain}


def vllm_opt(place: Any, *, validated: bool = False) -> Row:
    # Its baseline is a launch, and validation launches this and two others again.
    trials = place.launches - (4 if validated else 1)
    config = {
        "experiment": {"name": "rival", "output_dir": str(place.at / "runs"), "seed": place.seed},
        "server": {"model": str(place.model), "port": place.port, **IN_USE},
        "tune": {name: {"values": choices} for name, choices in SPACE.items()},
        "benchmark": {"engine": "vllm", "runs": [{"name": "load", "args": LOAD}]},
        "optimization": {"maximize": "output_tokens_per_second", "sampler": "tpe", "trials": trials},
        "analysis": {"finalist_validation": {}} if validated else {},
    }
    (place.at / "rival.yaml").write_text(json.dumps(config), encoding="utf-8")
    place.run(place.folder / "vllm-opt" / "bin" / "vllm-opt", "--config", place.at / "rival.yaml")
    (file,) = (place.at / "runs").glob("*/*/result.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    told = found.get("finalist_validation") or found
    read = {one["trial_id"]: one for one in told.get("search_ranking", found["ranking"])}
    read["baseline"] = told.get("search_baseline", found["baseline"])
    order = ["baseline", *(f"trial-{number:04d}" for number in range(1, trials + 1))]
    rows = [read.get(name, {"server_args": {}, "score": None}) for name in order]
    tried = [(flags_in(row["server_args"]), row["score"]) for row in rows]
    if validated:
        winner = found["selection_decision"]["winner_trial_id"] or "baseline"
        gain = (found["best_tuned_improvement_percent"] or 0.0) / 100
        return answer(tried, flags_in(read[winner]["server_args"]), sure=winner != "baseline", gain=gain)
    sure = "Repeat ranges favor the recommendation" in file.with_name("report.html").read_text(encoding="utf-8")
    return answer(tried, flags_in(found["best"]["server_args"]), sure=sure, gain=found["improvement_percent"] / 100)


def ray_optuna(place: Any) -> Row:
    sent = {**LOAD, "num-prompts": 4 * LOAD["num-prompts"]}
    flags = [text for name, one in sent.items() for text in (f"--{name}", str(one))]
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temp:
        spec = {"launches": place.launches, "seed": place.seed, "port": place.port}
        spec |= {"model": str(place.model), "bench": flags, "out": str(place.at / "ray.json"), "temp": temp}
        (place.at / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        python = place.folder / "ray-optuna" / "bin" / "python"
        place.run(python, __file__, "ray", place.at / "spec.json")
    tried = [(values, read) for values, read in json.loads((place.at / "ray.json").read_text(encoding="utf-8"))]
    chosen, read = max(tried, key=lambda one: one[1] or 0.0)
    return answer(tried, chosen, sure=None, gain=read / tried[0][1] - 1)


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        bench(sys.argv[2:])
    else:
        ray_tune(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
