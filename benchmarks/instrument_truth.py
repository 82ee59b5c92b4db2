"""The instrument against a server with known times: what it measures beside the send times in the chunks.

    python benchmarks/instrument_truth.py [--requests 64]

For 1 to 9 tokens a chunk at concurrency 1, 8 and 32: medians of TTFT, ITL, TPOT and E2EL within 1 % or
0.3 ms of the stamps, p99 within 5 % or 2 ms, token counts exact. Exit code 1 where one is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))
from truth_server import serving

from orchestrator.http_stream import StreamClient
from orchestrator.load_metrics import Sample, client_metrics
from orchestrator.load_window import Traffic, send_window
from orchestrator.workload import Workload

TTFT_MS, ITL_MS, TOKENS = 60.0, 15.0, 48
FAMILIES = ("ttft", "itl", "tpot", "e2el")


def stamped(traffic: Traffic) -> list[Sample]:
    """The samples as the server's own stamps have them; one clock, since both are on one machine."""
    found = []
    for sample, (exchange,) in zip(traffic.samples(), traffic.answers, strict=True):
        chunks = [json.loads(data) for _, data in exchange.events() if data != b"[DONE]"]
        found.append(replace(sample, token_ns=[int(each["stamp"]) for each in chunks if "stamp" in each]))
    return found


def deviations(flight: int, tokens_per_chunk: int, requests: int) -> tuple[bool, dict[str, float]]:
    """Whether all is in bounds, and (measured - stamped) in ms by metric."""
    workload = Workload(
        name="truth", kind="generate", output_tokens=TOKENS, prompt_tokens=16,
        concurrency=flight, requests_per_window=max(requests, 2 * flight),
    )  # fmt: skip
    with serving(ttft_ms=TTFT_MS, itl_ms=ITL_MS, chunks=[tokens_per_chunk]) as url:
        traffic = send_window(StreamClient(url), workload, 0, model="m", timeout_s=300)
    samples = traffic.samples()
    seen, truth = client_metrics(samples, workload)[0], client_metrics(stamped(traffic), workload)[0]
    good = all(each.output_tokens == TOKENS and not each.error for each in samples)
    found = {}
    for family in FAMILIES:
        for part, share, floor_ms in (("median", 0.01, 0.3), ("p99", 0.05, 2.0)):
            name = f"{part}_{family}_ms"
            found[name] = seen[name] - truth[name]
            good &= abs(found[name]) <= max(share * truth[name], floor_ms)
    return good, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 3, 5, 9])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    args = parser.parse_args()
    whole = True
    names = [f"{part}_{family}_ms" for family in FAMILIES for part in ("median", "p99")]
    print("measured minus stamped, ms:", *(name.removesuffix("_ms") for name in names))
    for flight in args.concurrency:
        for count in args.chunks:
            good, found = deviations(flight, count, args.requests)
            whole &= good
            cells = " ".join(f"{found[name]:7.3f}" for name in names)
            print(
                f"concurrency {flight:2d}, {count} a chunk: {cells} {'ok' if good else 'OUT OF BOUNDS'}",
                flush=True,
            )
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
