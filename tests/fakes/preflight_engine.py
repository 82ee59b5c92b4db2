"""An installation whose `vllm` is a parser and a configuration, and no engine: what a preflight asks."""

from __future__ import annotations

import sys
from pathlib import Path

MODULES = {
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "vllm/usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'server'\n",
    "vllm/entrypoints/cli/serve.py": """
class Serve:
    name = "serve"

    def subparser_init(self, commands):
        parser = commands.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--model")
        for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"):
            parser.add_argument(flag, type=int)
        parser.add_argument("--speculative-config")
        parser.add_argument("--do", choices=("die", "hang", "memory", "package", "odd", "setting"))
        return parser

    def validate(self, args):
        print("what is printed does not disturb the answers")


def cmd_init():
    return [Serve()]
""",
    "vllm/engine/arg_utils.py": """
import json, os, time


class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, args):
        assert args.model, "the model stands where the engine looks for it"
        found = cls()
        found.args = args
        return found

    def create_engine_config(self, usage_context):
        do = self.args.do
        if do == "die":
            os.abort()
        if do == "hang":
            time.sleep(600)
        if do == "memory":
            raise ValueError("No available memory for the cache blocks.")
        if do == "package":
            raise ImportError("Arctic Inference is required for suffix decoding.")
        if do == "odd":
            raise RuntimeError("nobody has heard of this")
        if do == "setting" and "VLLM_SETTING" in os.environ:
            raise ValueError("max_num_batched_tokens (4) must be greater than or equal to max_num_seqs (8).")
        if json.loads(self.args.speculative_config or "{}").get("num_speculative_tokens", 0) > 2:
            raise ValueError("num_speculative_tokens:4 must be divisible by n_predict=3")
""",
}


def install(site: Path) -> None:
    for name, text in MODULES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")


def python(place: Path, body: str = "") -> Path:
    """An interpreter that has the fake engine; with a body, one that runs that whatever it is given."""
    place.mkdir(parents=True, exist_ok=True)
    install(place / "site")
    file = place / "python"
    start = (
        f"#!{sys.executable}\n{body}" if body else f'#!/bin/sh\nPYTHONPATH={place}/site exec {sys.executable} "$@"\n'
    )
    file.write_text(start, encoding="utf-8")
    file.chmod(0o755)
    return file
