"""Exports are read by the parser of the very engine they are for: arguments only, no weights."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.export import Serving, export
from orchestrator.prepare import environments_root

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

# What the serve command makes of its arguments, without running anything.
PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
commands = parser.add_subparsers(dest="subparser")
for command in cmd_init():
    command.subparser_init(commands)
known = vars(parser.parse_args(sys.argv[1:]))
print("\\n" + json.dumps({name: value for name, value in known.items()}, default=str))
"""
# The newest alone: importing an engine's parser takes half a minute, and the preflight's tests ask each version's.
ENVIRONMENTS = sorted(environments_root().glob("vllm*/bin/python"))[-1:]
SERVING = Serving(
    start=("python", "serve"),
    model="org/model",
    flags=(
        *("--max-model-len", "2048", "--max-num-seqs", "16", "--no-enable-prefix-caching", "--enforce-eager"),
        *("--gpu-memory-utilization", "0.85", "--served-model-name", "one", "two", "--dtype", "float32"),
        *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'),
    ),
    env={},
    stack={"vllm": "0.32.0"},
    title="a peak",
)
MEANT = {
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.85,
    "served_model_name": ["one", "two"],
    "dtype": "float32",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
}


def parsed(python: Path, words: list[str], tmp_path: Path) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-c", PARSE, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=tmp_path,
        env=env | {"VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.mark.parametrize("python", ENVIRONMENTS or [None], ids=lambda one: one and one.parent.parent.name)
def test_its_own_parser_reads_the_line_and_the_yaml_alike(python: Path | None, tmp_path: Path) -> None:
    if python is None:
        pytest.skip("no engine environment is built here: `python3 examples/quickstart.py` builds two")
    line = "\n".join(row for row in export(SERVING, "serve").splitlines() if not row.startswith("#"))
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:2] == ["vllm", "serve"]
    found = parsed(python, words[1:], tmp_path)
    assert found["model_tag"] == "org/model"
    assert {name: found[name] for name in MEANT} == MEANT
    file = tmp_path / "serve.yaml"
    file.write_text(export(SERVING, "yaml"), encoding="utf-8")
    again = parsed(python, ["serve", "--config", str(file)], tmp_path)
    assert again["model"] == "org/model"
    assert {name: again[name] for name in MEANT} == MEANT
