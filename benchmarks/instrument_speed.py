"""Clients side by side against one instant server: requests a second and CPU of the whole process, as ratios.

    python benchmarks/instrument_speed.py [--engine-python ENV/bin/python --tokenizer MODEL_DIR]

The bare asyncio socket client is the server's limit; ours has to reach 90 % of it. With an engine's
interpreter `vllm bench serve` runs too, with `--guidellm` and `--aiperf` (paths of their commands) those as
well; our CPU has to be at most a fifth of the best of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fakes"))

REQUESTS, FLIGHT, TOKENS = 2000, 32, 4


class Bare(asyncio.Protocol):
    """The least a client can do: send bytes, and look for the bytes that end an answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.tail, self.done = transport, b"", None

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-5:]
        if self.tail == b"0\r\n\r\n":
            self.tail = b""
            self.done.set_result(None)


async def bare(port: int) -> float:
    loop = asyncio.get_running_loop()
    body = json.dumps({"model": "m", "prompt": "a b c d e f", "max_tokens": TOKENS, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    left = iter(range(REQUESTS))

    async def slot() -> None:
        transport, protocol = await loop.create_connection(Bare, "127.0.0.1", port)
        for _ in left:
            protocol.done = loop.create_future()
            transport.write(head + body)
            await protocol.done
        transport.close()

    began = time.monotonic()
    await asyncio.gather(*(slot() for _ in range(FLIGHT)))
    return REQUESTS / (time.monotonic() - began)


def ours(url: str) -> float:
    """The whole instrument: window, reading, proofs, record; the rate is that of the time it was sending."""
    # Here and not above: the bare client's CPU must not hold our imports.
    from orchestrator.load_client import measure_window  # noqa: PLC0415
    from orchestrator.workload import Workload  # noqa: PLC0415

    count = REQUESTS - 3 * FLIGHT
    load = Workload(
        name="s",
        kind="generate",
        output_tokens=TOKENS,
        prompt_tokens=8,
        concurrency=FLIGHT,
        requests_per_window=count,
    )
    found = measure_window(url, load, model="m")
    assert found.completed == count
    return found.metrics["request_throughput"]


def around_three_seconds() -> tuple[float, float]:
    """Seconds of traffic in one window, and of the whole measurement around it, everything imported already."""
    from truth_server import serving  # noqa: PLC0415

    from orchestrator.load_client import measure_window  # noqa: PLC0415
    from orchestrator.workload import Workload  # noqa: PLC0415

    load = Workload(name="s", kind="generate", output_tokens=16, prompt_tokens=8, requests_per_window=32)
    with serving(ttft_ms=10, itl_ms=5) as url:
        measure_window(url, load.model_copy(update={"requests_per_window": 1}), model="m")
        began = time.monotonic()
        found = measure_window(url, load, model="m", window=1)
        return found.duration_s, time.monotonic() - began


def child(command: list[str]) -> tuple[str, float, float]:
    """Output, CPU seconds and wall seconds of a process and all it started."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        sys.exit(f"{command[:3]} failed: {ran.stdout[-1500:]} {ran.stderr[-1500:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ran.stdout + ran.stderr, cpu, time.monotonic() - began


def others(args: argparse.Namespace, url: str, folder: str) -> dict[str, list[str]]:
    """Commands of the field's clients for the same load, those that were named."""
    found = {}
    if args.engine_python:
        found["vllm bench serve"] = [
            args.engine_python, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai",
            "--base-url", url, "--endpoint", "/v1/completions", "--model", "m", "--tokenizer", args.tokenizer,
            "--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(TOKENS),
            "--num-prompts", str(REQUESTS), "--max-concurrency", str(FLIGHT), "--ignore-eos",
            "--temperature", "0", "--disable-tqdm",
        ]  # fmt: skip
    if args.guidellm:
        found["guidellm"] = [
            args.guidellm, "run", "--backend", f"kind=openai_http,target={url},model=m",
            "--profile", f"kind=concurrent,streams={FLIGHT}",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--tokenizer", f"kind=hf_auto,model={args.tokenizer}",
            "--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={TOKENS}",
            "--output", f"kind=json,path={folder}/guidellm.json", "--disable-progress",
        ]  # fmt: skip
    if args.aiperf:
        found["aiperf"] = [
            args.aiperf, "profile", "--model", "m", "--tokenizer", args.tokenizer, "--url", url,
            "--endpoint-type", "completions", "--streaming", "--concurrency", str(FLIGHT),
            "--request-count", str(REQUESTS), "--synthetic-input-tokens-mean", "8",
            "--output-tokens-mean", str(TOKENS), "--use-server-token-count", "--no-gpu-telemetry",
            "--ui", "none", "--artifact-dir", folder,
        ]  # fmt: skip
    return found


def rate(text: str, wall: float) -> float:
    """Requests a second as the client reports them; its whole time where it does not say."""
    said = re.search(r"(?:RATE|Request throughput \(req/s\):)\s+([\d.]+)", text)
    return float(said[1]) if said else REQUESTS / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    for name in ("--engine-python", "--tokenizer", "--guidellm", "--aiperf", "--child"):
        parser.add_argument(name, default="")
    args = parser.parse_args()
    if args.child:
        kind, url = args.child.split("@", 1)
        print("RATE", asyncio.run(bare(int(url.rsplit(":", 1)[1]))) if kind == "bare" else ours(url))
        return
    from truth_server import serving  # noqa: PLC0415

    seen: dict[str, list[tuple[float, float]]] = {}
    with serving(ttft_ms=0, itl_ms=0) as url, tempfile.TemporaryDirectory() as folder:
        commands = {name: [sys.executable, __file__, "--child", f"{name}@{url}"] for name in ("bare", "ours")}
        for turn in range(args.rounds):
            for name, command in (commands | (others(args, url, folder) if not turn else {})).items():
                text, cpu, wall = child(command)
                seen.setdefault(name, []).append((rate(text, wall), cpu))
    base = statistics.median(value for value, _ in seen["bare"])
    mine = statistics.median(cpu for _, cpu in seen["ours"])
    for name, values in seen.items():
        speed, cpu = (statistics.median(part) for part in zip(*values, strict=True))
        print(f"{name:17s} requests/s {speed / base:5.2f} of bare, CPU {cpu / mine:5.1f} x ours ({cpu:.2f} s)")
    reached = statistics.median(value for value, _ in seen["ours"]) / base
    rivals = [cpu for name, values in seen.items() if name not in ("bare", "ours") for _, cpu in values]
    lean = not rivals or mine <= min(rivals) / 5
    print(f"ours reaches {reached:.0%} of the bare client", "" if lean else "with too much CPU")
    print("{:.2f} s of traffic were measured in {:.2f} s".format(*around_three_seconds()))
    sys.exit(0 if reached >= 0.9 and lean else 1)


if __name__ == "__main__":
    main()
