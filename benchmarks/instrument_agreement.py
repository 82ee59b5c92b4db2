"""The instrument beside `vllm bench serve`: same server, same prompts, in alternation.

Needs a running engine without prefix caching and the interpreter of an environment that has vLLM:

    python benchmarks/instrument_agreement.py --url http://127.0.0.1:8000 --model m \
        --engine-python ENV/bin/python --tokenizer MODEL_DIR
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy import stats

from orchestrator.load_client import measure_window
from orchestrator.workload import Workload

EQUIVALENCE = 0.10
COUNTED = ("num_drafts", "draft_tokens", "accepted_tokens")


def vllm_bench(args: argparse.Namespace, workload: Workload, folder: Path) -> dict:
    """One run of `vllm bench serve` over all requests of window 0, warm-up and cool-down included."""
    requests = workload.requests(0)
    turns = [[{"value": each.body["prompt"]}, {"value": "an answer"}] for each in requests]
    prompts = folder / "prompts.json"
    # This format needs nothing that an engine's environment lacks (the plain one needs pandas).
    prompts.write_text(json.dumps([{"conversations": turn} for turn in turns]))
    command = [
        args.engine_python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai",
        "--base-url", args.url, "--endpoint", "/v1/completions", "--model", args.model,
        "--tokenizer", args.tokenizer, "--dataset-name", "sharegpt", "--dataset-path", str(prompts),
        "--sharegpt-output-len", str(workload.output_tokens), "--disable-shuffle",
        "--num-prompts", str(len(requests)), "--max-concurrency", str(workload.in_flight), "--ignore-eos",
        "--temperature", "0", "--save-result", "--save-detailed", "--result-dir", str(folder),
        "--result-filename", "bench.json", "--disable-tqdm",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    if ran.returncode:
        sys.exit(f"vllm bench serve failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return json.loads((folder / "bench.json").read_text())


def decode_rate(found: dict, skip: int, keep: int) -> float:
    """Mean decode tok/s of the measured requests from the detailed result."""
    pairs = list(zip(found["itls"], found["output_lens"], strict=True))[skip : skip + keep]
    return statistics.fmean((length - 1) / sum(gaps) for gaps, length in pairs)


def compare(args: argparse.Namespace, workload: Workload) -> bool:
    """Alternates both, and says whether counters are equal and decode speed is equivalent (TOST)."""
    logs, equal = [], []
    flight = workload.in_flight or 1
    skip = 2 * flight if flight > 1 else 0
    sent = len(workload.requests(0)) * workload.output_tokens
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.pairs):
            if turn % 2:
                theirs = vllm_bench(args, workload, Path(folder))
            ours = measure_window(args.url, workload, model=args.model)
            if not turn % 2:
                theirs = vllm_bench(args, workload, Path(folder))
            drafted = ours.acceptance
            mine = (drafted.drafts, drafted.draft_tokens, drafted.accepted_tokens) if drafted else (0, 0, 0)
            other = tuple(theirs.get(f"spec_decode_{counter}") or 0 for counter in COUNTED)
            equal.append(mine == other and theirs["total_output_tokens"] == sent and not ours.failed)
            rate = decode_rate(theirs, skip, workload.requests_per_window)
            logs.append(math.log(ours.metrics["decode_tok_s"] / rate))
            failing = [f"{check.name}: {check.detail}" for check in ours.checks if check.passed is False]
            print(f"  counters {mine} / {other}, decode ratio {math.exp(logs[-1]):.3f}", *failing, flush=True)
    mean, error = statistics.fmean(logs), stats.sem(logs)
    reach = stats.t.ppf(0.95, len(logs) - 1) * error
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    same = low > 1 - EQUIVALENCE and high < 1 + EQUIVALENCE
    verdict = f"{'equivalent' if same else 'not shown equivalent'} within {EQUIVALENCE:.0%}"
    print(f"{workload.name}, concurrency {flight}: counters equal in {sum(equal)} of {len(equal)} pairs;")
    print(f"  decode ratio, 90 % interval: {low:.3f} to {high:.3f}: {verdict}")
    return all(equal) and same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--kinds", nargs="+", default=["edit"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=300.0)
    args = parser.parse_args()
    good = True
    for kind in args.kinds:
        for flight in args.concurrency:
            workload = Workload(
                name=kind, kind=kind, concurrency=flight, requests_per_window=args.requests,
                output_tokens=args.output_tokens, prompt_tokens=120,
            )  # fmt: skip
            good &= compare(args, workload)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
