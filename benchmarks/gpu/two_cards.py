"""Watches who is on which card while a study runs, and on demand kills the worker of one engine as both measure.

    python3 benchmarks/gpu/two_cards.py HOME OUT [--kill PLAN_NAME]    (ends when its standard input does)

HOME is the study's REPEAK_HOME. OUT gets a JSON line for each new pairing of an engine's process with a card, by the
environment of the process (CUDA_VISIBLE_DEVICES) and by the driver (NVML's process list), and one for the kill.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


def by_driver() -> dict[int, int]:
    """Process by card, as the driver counts cards; the driver's numbers of processes are the machine's own."""
    cards = subprocess.run(
        ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"], capture_output=True, text=True, check=False
    ).stdout.split("\n")
    index = {uuid.strip(): int(number) for number, _, uuid in (line.partition(",") for line in cards if line)}
    held = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.split("\n")  # fmt: skip
    pairs = [line.partition(",") for line in held if "," in line]
    return {int(pid): index[uuid.strip()] for pid, _, uuid in pairs if uuid.strip() in index}


def by_environment() -> dict[int, tuple[str, str, str]]:
    """What each process of an engine was given: its launch's cookie, its cards, its cache."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = dict(word.partition("=")[::2] for word in (place / "environ").read_text().split("\0"))
        except OSError:
            continue
        if cookie := words.get("REPEAK_COOKIE", ""):
            cards, cache = words.get("CUDA_VISIBLE_DEVICES", ""), words.get("VLLM_CACHE_ROOT", "")
            found[int(place.name)] = (cookie, cards, cache)
    return found


def kill_one(home: Path, plan: str) -> dict[str, object]:
    """The worker of one engine, once both running trials have a window on record; empty until then."""
    journal = home / "journals" / plan / "journal.jsonl"
    measured = [line for line in journal.read_text().splitlines() if "decode_tok_s" in line] if journal.exists() else []
    running = [json.loads(path.read_text()) for path in (home / "running").glob("*.json")]
    both = [
        one
        for one in running
        if one.get("engine") and any(one["cookie"].partition("-")[2].rpartition("-")[0] in line for line in measured)
    ]
    if len(both) < 2:
        return {}
    os.kill(both[0]["owner"][0], signal.SIGKILL)
    return {"killed": both[0]["owner"][0], "of": both[0]["cookie"], "beside": both[1]["cookie"], "at": time.time()}


def main(home: Path, out: Path, plan: str) -> None:
    seen, killed = set(), not plan
    with out.open("a") as file:

        def note(**what: object) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        while not select.select([sys.stdin], [], [], 1.0)[0]:
            cards, given = by_driver(), by_environment()
            for pid, (cookie, visible, cache) in given.items():
                pair = {"cookie": cookie, "visible": visible, "cache": cache, "pid": pid, "card": cards.get(pid)}
                if (key := (cookie, pid, cards.get(pid))) not in seen and pid in cards:
                    seen.add(key)
                    note(**pair)
            strangers = [pid for pid in cards if pid not in given]
            if strangers and ("strangers", tuple(strangers)) not in seen:
                seen.add(("strangers", tuple(strangers)))
                note(strangers=strangers)
            if not killed and (what := kill_one(home, plan)):
                killed = True
                note(**what)
        note(left={str(pid): card for pid, card in by_driver().items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4] if sys.argv[3:4] == ["--kill"] else "")
