"""Say whether an engine's own parser and configuration take a serve line, without weights: run by its Python.

One JSON object a line: `{"words": [...], "env": {...}, "limit_s": 60}` comes in, `{"exit": 0, "text": ""}` goes out;
`text` is what the engine said of its refusal, `near` the flags it has that are spelled like one it lacks. The first
line out is `{"exit": 0}` once everything is imported. Each request is answered in a fork of its own: what it does to
the device, to variables and caches ends with it, and so does a crash or a hang.
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any, NamedTuple

_ALIKE = 0.75


class Engine(NamedTuple):
    """The parts of an engine that a check needs, as its own `serve` command uses them."""

    parser: Any
    serve: Any
    flags: list[str]
    arguments: Any
    usage: Any


def load() -> Engine:
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm")
    commands = importlib.import_module("vllm.entrypoints.cli.serve").cmd_init()
    serve = next(command for command in commands if command.name == "serve")
    words = serve.subparser_init(parser.add_subparsers(dest="subparser"))
    return Engine(
        parser=parser,
        serve=serve,
        flags=[flag for action in words._actions for flag in action.option_strings],  # noqa: SLF001
        arguments=importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs,
        usage=importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER,
    )


def check(engine: Engine, asked: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    os.environ.clear()
    os.environ.update(asked["env"] | own)  # an image has its own
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            args = engine.parser.parse_args(["serve", *asked["words"]])
        engine.serve.validate(args)
        args.model = getattr(args, "model_tag", None) or args.model
        engine.arguments.from_cli_args(args).create_engine_config(usage_context=engine.usage)
    except SystemExit as stop:
        text = said.getvalue()
        unknown = re.findall(r"--[\w.-]+", text.partition("unrecognized arguments:")[2])
        near = {flag: difflib.get_close_matches(flag, engine.flags, 1, _ALIKE) for flag in unknown}
        code = stop.code if isinstance(stop.code, int) else 1
        return {"exit": code, "text": text, "near": {flag: found[0] for flag, found in near.items() if found}}
    except BaseException:  # noqa: BLE001 - whatever it is, a launch would end with it as well
        return {"exit": 1, "text": traceback.format_exc()}
    return {"exit": 0, "text": ""}


def apart(engine: Engine, asked: Mapping[str, Any], out: int) -> None:
    """Answer from a fork; one that dies without an answer is answered for."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(asked["limit_s"]))
        tell(out, check(engine, asked))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        tell(out, {"exit": None, "text": f"the check ended with {os.waitstatus_to_exitcode(status)}"})


def tell(out: int, answer: Mapping[str, Any]) -> None:
    os.write(out, json.dumps(answer).encode() + b"\n")


def main() -> None:
    sys.path[:] = [place for place in sys.path if place]  # not what lies where we happen to be
    out = os.dup(1)
    os.dup2(2, 1)  # what the engine prints goes to the log
    with os.fdopen(os.dup(0)) as requests, open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
        try:
            engine = load()
        except BaseException as error:  # noqa: BLE001 - an engine of another making has no such parts
            tell(out, {"exit": None, "text": f"{type(error).__name__}: {error}"})
            return
        tell(out, {"exit": 0})
        for line in requests:
            apart(engine, json.loads(line), out)


if __name__ == "__main__":
    main()
