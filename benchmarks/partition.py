"""A node that is cut off for a minute and comes back, in a study on three raylets in network namespaces.

    sudo python benchmarks/partition.py [--seconds 60]

Simulated engines, two slots, a GPU that is none for each. The cut falls on a node whose trial has a window on disk.
Told in the end: what the trials came to, whether two engines ever stood on one slot, and what was left running.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

NODES, HOST, NET, PORT = ("rpk-a", "rpk-b", "rpk-c"), "10.213.77.1", "10.213.77.", 6399


def sh(command: str) -> str:
    return subprocess.run(command.split(), check=True, text=True, capture_output=True, timeout=120).stdout


def network() -> None:
    sh("ip link add rpk type bridge")
    sh(f"ip addr add {HOST}/24 dev rpk")
    sh("ip link set rpk up")
    for number, name in enumerate(NODES, 11):
        sh(f"ip netns add {name}")
        sh(f"ip link add {name}-o type veth peer name eth0 netns {name}")
        sh(f"ip link set {name}-o master rpk up")
        sh(f"ip netns exec {name} ip addr add {NET}{number}/24 dev eth0")
        for link in ("lo", "eth0"):
            sh(f"ip netns exec {name} ip link set {link} up")


def no_network() -> None:
    for name in NODES:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}-o"], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", "rpk"], check=False, capture_output=True)


def engines(home: Path) -> list[tuple[str, str, str]]:
    """(network namespace, card, cookie) of every engine that runs; the leader of each alone."""
    from orchestrator.janitor import read  # noqa: PLC0415 - REPEAK_HOME first
    from orchestrator.process_tree import environment, identify  # noqa: PLC0415

    found = []
    for path in (home / "running").glob("*.json"):
        entry = read(path)
        if entry and entry.engine and not entry.cookie.startswith("preflight"):
            words = dict(word.decode().partition("=")[::2] for word in environment(entry.engine.pid))
            with suppress(OSError):  # it may end while it is looked at
                net = str(Path(f"/proc/{entry.engine.pid}/ns/net").readlink())
                if identify(entry.engine.pid) == entry.engine:
                    found.append((net, words.get("CUDA_VISIBLE_DEVICES", ""), entry.cookie))
    return found


class Cut(threading.Thread):
    """Cuts one node off once its trial has a window, heals it, and looks at every engine meanwhile."""

    def __init__(self, home: Path, journal: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self.home, self.journal, self.seconds = home, journal, seconds
        self.ended, self.crowded, self.at = threading.Event(), set[tuple[str, str]](), ""
        self.most = 0

    def run(self) -> None:
        names = {str(Path(f"/proc/{pid}/ns/net").readlink()): name for name, pid in inside().items()}
        healed = 0.0
        while not self.ended.wait(0.2):
            now = engines(self.home)
            self.most = max(self.most, len(now))
            self.crowded |= {slot for slot, count in Counter(one[:2] for one in now).items() if count > 1}
            if not self.at and (net := self._measuring(now)):
                self.at, healed = names[net], time.monotonic() + self.seconds
                sh(f"ip link set {self.at}-o down")
                print(f"  cut off {self.at}", flush=True)
            if healed and time.monotonic() > healed:
                sh(f"ip link set {self.at}-o up")
                healed = 0.0
                print(f"  healed {self.at}", flush=True)

    def _measuring(self, now: list[tuple[str, str, str]]) -> str:
        text = self.journal.read_text() if self.journal.exists() else ""
        lines = [line for line in text.splitlines() if "decode_tok_s" in line]
        trials = {net: cookie.partition("-")[2].rpartition("-")[0] for net, _, cookie in now}
        return next((net for net, trial in trials.items() if any(trial in line for line in lines)), "")


def inside() -> dict[str, int]:
    """A process in each namespace."""
    return {name: int(sh(f"ip netns pids {name}").split()[0]) for name in NODES}


def study(address: str, name: str) -> None:
    from orchestrator.plan import TuningPlan  # noqa: PLC0415 - the environment first
    from orchestrator.session import journal_directory, tune_plan  # noqa: PLC0415
    from trackers.journal import Journal  # noqa: PLC0415

    plan = TuningPlan.model_validate(
        {
            "name": name,
            "model": {"id": "org/model"},
            "engines": [{"name": side, "simulated": f"null/0/{side}"} for side in ("old", "new")],
            "workloads": [{"name": "edit", "kind": "edit", "prompt_tokens": 64, "output_tokens": 64}],
            "space": {"max_num_seqs": [2, 4, 8]},
            "precision": {"relative": "30%", "min_windows": 6, "max_windows": 6, "launch_noise": "5%"},
            "finalists": {"count": 1, "launches": 1},
            "slots": {"count": 2, "gpus": 1, "nodes": 2},
        }
    )
    result = tune_plan(plan, address=address)
    with Journal(journal_directory(plan)) as journal:
        found = [one for each in result.studies for one in journal.records(each.key)]
    windows = Counter((one.trial_id, each.launch, each.window) for one in found for each in one.windows)
    searched = Counter(
        (one.study, one.configuration.key) for one in found if one.role == "search" and one.state == "measured"
    )
    told = {
        "states": dict(Counter(one.state for one in found)),
        "windows twice": sum(count > 1 for count in windows.values()),
        "configurations measured": len(searched),
        "measured twice": sum(count > 1 for count in searched.values()),
    }
    print(json.dumps(told), flush=True)


def joined(address: str, nodes: int) -> None:
    """Waits until so many have: raylets of one host that start at once take each other's names."""
    import ray  # noqa: PLC0415 - the environment first

    ray.init(address=address, log_to_driver=False)
    until = time.monotonic() + 180
    while sum(one["Alive"] for one in ray.nodes()) < nodes and time.monotonic() < until:
        time.sleep(1)
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    place = Path(tempfile.mkdtemp(prefix="partition-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    token = place / "token"
    token.write_text("0" * 64)
    os.environ |= {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0", "REPEAK_HOME": str(place / "home"), "PYTHONPATH": str(Path.cwd()),
        "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
    }  # fmt: skip
    ray = f"{Path(sys.executable).parent}/ray"
    started: list[subprocess.Popen[bytes]] = []

    def start(where: str, *words: str) -> None:
        command = [*where.split(), ray, "start", "--block", "--num-cpus=1", "--disable-usage-stats", *words]
        started.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        )

    no_network()
    network()
    try:
        start("", "--head", f"--node-ip-address={HOST}", f"--port={PORT}", "--num-gpus=0", "--include-dashboard=false")
        time.sleep(15)
        for number, name in enumerate(NODES, 11):
            start(
                f"ip netns exec {name}", f"--address={HOST}:{PORT}", f"--node-ip-address={NET}{number}", "--num-gpus=1"
            )
            joined(f"{HOST}:{PORT}", number - 9)
        cut = Cut(place / "home", place / "home" / "journals" / "partition" / "journal.jsonl", seconds)
        cut.start()
        study(f"{HOST}:{PORT}", "partition")
        until = time.monotonic() + seconds + 60
        while engines(place / "home") and time.monotonic() < until:
            time.sleep(1)
        cut.ended.set()
        cut.join()
        left = engines(place / "home")
        print(json.dumps({"cut": cut.at, "two on one slot": sorted(cut.crowded), "at once": cut.most, "left": left}))
    finally:
        for one in started:
            os.killpg(one.pid, 15)
        for one in started:
            one.wait(60)
        no_network()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
