"""From a configuration to `vllm serve` arguments and variables: full flag names, in one order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .configuration import Configuration
from .drafters import speculative_config
from .knob import Knob, normal_flag
from .space import SearchSpace

__all__ = ["BARE", "number", "serve_args", "serve_flags"]

# They take no value and have no --no- form: false leaves them out.
BARE = frozenset(
    {"--aggregate-engine-logging", "--data-parallel-multi-port-external-lb", "--disable-log-stats"}
    | {"--grpc", "--headless"}
)
_SPECULATIVE = "--speculative-config"
_UNITS = {
    letter: base**power for base, letters in ((1000, "kmgt"), (1024, "KMGT")) for power, letter in enumerate(letters, 1)
}


def number(value: object) -> float | None:
    """A number as the engine's parser reads it: 32k is 32 000, 32K is 32 768; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip()
    try:
        found = float(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def serve_args(
    configuration: Configuration, *, serve: Mapping[str, object], space: SearchSpace
) -> tuple[list[str], dict[str, str]]:
    """Arguments that follow `vllm serve MODEL`, and environment variables, as `serve_flags` has them."""
    flags, env = serve_flags(configuration, serve=serve, space=space)
    return [argument for flag, value in flags.items() for argument in _argument(flag, value)], env


def serve_flags(
    configuration: Configuration, *, serve: Mapping[str, object], space: SearchSpace
) -> tuple[dict[str, Any], dict[str, str]]:
    """Flag -> value of what is said on the command line, and environment variables; no secret is among them.

    Args:
        configuration: `serve.<flag>` and `env.<NAME>` in it (an incumbent's own) stand beside its knobs.
        serve: Flags fixed for every launch, underscore names -> value (a mapping becomes JSON).
        space: Where the knobs' flags are known from.

    Raises:
        ValueError: The configuration has a value that no knob of the space explains.
    """
    flags: dict[str, Any] = {normal_flag(name): value for name, value in serve.items()}
    env: dict[str, str] = {}
    knobs: dict[str, Knob] = {knob.name: knob for knob in space.knobs}
    for name, value in configuration.values.items():
        kind, dot, rest = name.partition(".")
        knob = knobs.get(name)
        if kind == "drafter" or name == "k" or value == "default":
            continue
        if dot and kind == "serve":
            flags[normal_flag(rest)] = value
        elif dot and kind == "env":
            env[rest] = str(value)
        elif knob is None:
            raise ValueError(f"{name}={value} belongs to no knob of this space")
        elif knob.env:
            env[knob.env] = _text(int(value) if isinstance(value, bool) else value)
        elif knob.flag:
            flags[knob.flag] = value
    drafting = speculative_config(configuration.values)
    if drafting:
        flags[_SPECULATIVE] = drafting
    said = {flag: value for flag, value in _nested(flags).items() if value is not None and value != "default"}
    return dict(sorted(said.items())), dict(sorted(env.items()))


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`--a.b` put into the JSON of `--a`, so that the engine's parser sees each flag once."""
    whole: dict[str, Any] = {flag: value for flag, value in flags.items() if "." not in flag}
    for flag in sorted(flags.keys() - whole.keys()):
        head, *keys = flag.split(".")
        found = whole.get(head) or {}
        place = whole[head] = json.loads(found) if isinstance(found, str) else dict(found)
        for key in keys[:-1]:
            place[key] = place = dict(place.get(key) or {})
        place[keys[-1]] = flags[flag]
    return whole


def _argument(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        negative = [] if flag in BARE else [f"--no-{flag[2:]}"]
        return [flag] if value else negative
    if isinstance(value, list | tuple):
        return [flag, *(_text(one) for one in value)]
    text = _text(value)
    # A value that opens with a dash would be read as the next flag.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
