"""Serve line: a `vllm serve ...` command as someone pasted it, read without running anything."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from search_spaces.configuration import Configuration, Scalar
from search_spaces.drafters import DRAFTERS
from search_spaces.knob import normal_flag
from search_spaces.space import SearchSpace

__all__ = ["OWN_FLAGS", "ServeLine", "incumbent_configuration", "is_secret", "parse_serve_line"]

OWN_FLAGS = frozenset({"model", "host", "port", "uds", "served_model_name", "root_path", "ssl_keyfile", "ssl_certfile"})
"""Flags that every launch sets by itself, underscore names."""
_SHORT = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local", "-dcp": "--decode-context-parallel-size", "-q": "--quantization",
    "-ep": "--enable-expert-parallel", "-O": "--optimization-level", "-cc": "--compilation-config",
    "-ac": "--attention-config", "-sc": "--speculative-config", "-asc": "--api-server-count",
}  # fmt: skip
_SPEC = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
_SWITCHES = ("--enable-", "--disable-", "--enforce-", "--no-", "--trust-", "--async-", "--use-")
_SECRETS = {"token", "key", "secret", "password", "passwd", "credential", "credentials", "apikey", "auth"}
_CREDENTIALS = re.compile(r"://[^/\s@]+:[^/\s@]+@")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class ServeLine(BaseModel):
    """What a line asks for: `args` by underscore names, typed; `--a.b` nested; secrets left out.

    `dropped` names what was left out: secrets, and what each launch sets by itself (port, model name).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    dropped: tuple[str, ...] = ()


def is_secret(name: str, value: object = "") -> bool:
    """Whether a flag or variable carries a secret: by its last word (`HF_TOKEN`), or a password in a URL."""
    return re.split(r"[_.-]", name.lower())[-1] in _SECRETS or bool(_CREDENTIALS.search(str(value)))


def parse_serve_line(text: str) -> ServeLine:
    """Read `VAR=x vllm serve MODEL --flag=value --no-flag -O3 ...`, or the module or container form.

    Raises:
        ValueError: It is not such a line, or it asks for a file of settings that cannot be seen here.
    """
    prefix, rest = _split(_words(text))
    pairs = [word.removeprefix("--env=") for word in prefix]
    env = dict(pair.split("=", 1) for pair in pairs if _ASSIGNMENT.match(pair))
    args: dict[str, Any] = {}
    for flag, values in _flags(rest):
        if flag == "--config":
            raise ValueError("--config names a file of settings; write them as flags")
        if flag.startswith("--no-"):
            args[_name(flag[5:])] = False
        else:
            _put(args, _name(flag), [_typed(value) for value in values])
    dropped = [name for name, value in args.items() if name in OWN_FLAGS - {"model"} or is_secret(name, value)]
    hidden = [name for name, value in env.items() if is_secret(name, value)]
    return ServeLine(
        model=str(args.pop("model")) if "model" in args else None,
        args={name: value for name, value in args.items() if name not in dropped},
        env={name: value for name, value in env.items() if name not in hidden},
        dropped=tuple(sorted({*(normal_flag(name) for name in dropped), *hidden})),
    )


def incumbent_configuration(
    line: ServeLine, space: SearchSpace, serve: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> tuple[Configuration, dict[str, Scalar]]:
    """The line as a configuration: its knobs' values, absent where it sets none (the engine decides).

    Args:
        line: What they run today.
        space: The plan's.
        serve: Flags fixed for every launch; one that the line sets alike is left out.
        env: Variables fixed for every launch, likewise.

    Returns:
        The configuration, and what in it stands outside the space: `serve.<flag>` and `env.<NAME>`.
    """
    args = dict(line.args)
    values: dict[str, Scalar] = _drafting(args)
    for knob in space.knobs:
        value = _taken(args, knob.flag) if knob.flag else line.env.get(knob.env or "")
        if value is not None and knob.name != "k":
            values[knob.name] = _scalar(_typed(value) if isinstance(value, str) else value)
    bound = {knob.env for knob in space.knobs}
    fixed = env or {}
    extra: dict[str, Scalar] = {f"serve.{n}": _scalar(v) for n, v in args.items() if v != {} and serve.get(n) != v}
    own = {name: value for name, value in line.env.items() if name not in bound and fixed.get(name) != value}
    extra |= {f"env.{name}": value for name, value in own.items()}
    return Configuration(values={**values, **extra}), extra


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(re.sub(r"\\\r?\n", " ", text), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise ValueError(f"the serve line cannot be split into words: {error}") from error
    for index, word in enumerate(words):
        if word and set(word) <= set("();<>|&"):
            redirected = word.startswith((">", "&>")) and index and words[index - 1] in ("1", "2")
            return words[: index - 1 if redirected else index]
    return words


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Words before the engine's own arguments, and those arguments."""
    for index, word in enumerate(words):
        if word == "serve" and index and words[index - 1].endswith("vllm"):
            return words[: index - 1], words[index + 1 :]
        if word.endswith("openai.api_server") or (index and "/vllm-" in f"/{word}" and not word.startswith("-")):
            return words[:index], words[index + 1 :]
    raise ValueError("no `vllm serve` in this line; paste the whole command that starts the engine")


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(flag, values); a model that stands alone comes as `--model`."""
    rest = list(words)
    seen = any(word.startswith("--model") for word in words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if not seen:
                yield "--model", [word]
            seen = True
            continue
        flag, equals, value = _long(word).partition("=")
        values = [value] if equals else []
        switch = equals or flag.startswith(_SWITCHES)
        # Until the model is seen a flag takes one value: what follows that may be the model.
        while not switch and rest and not _opens_flag(rest[0]) and (seen or not values):
            values.append(rest.pop(0))
        yield flag, values


def _long(word: str) -> str:
    """Full form of a flag: `-O3`, `-tp=2`, `-cc.mode=3` and underscores are spelled out."""
    if not word.startswith("--"):
        if re.fullmatch(r"-O\d", word):
            word = f"-O={word[2:]}"
        short = re.match(r"-[A-Za-z]+", word)
        if short and short[0] in _SHORT:
            word = _SHORT[short[0]] + word[short.end() :]
    name, equals, value = word.partition("=")
    return normal_flag(name) + equals + value


def _opens_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _name(flag: str) -> str:
    head, dot, keys = flag.removeprefix("--").partition(".")
    return head.replace("-", "_") + dot + keys


def _put(found: dict[str, Any], name: str, values: list[Any]) -> None:
    value = True if not values else values[0] if len(values) == 1 else values
    head, *keys = name.split(".")
    for key in [head, *keys][: len(keys)]:
        inner = found.get(key)
        found[key] = found = dict(inner) if isinstance(inner, dict) else {}
    found[[head, *keys][-1]] = value


def _typed(text: str) -> Any:
    """Numbers, booleans, objects and lists as what they are; everything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if value is None or isinstance(value, str) else value


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)


def _taken(args: dict[str, Any], flag: str) -> Any:
    """Remove and return what `args` says of a flag; for `--a.b` the key within."""
    head, *keys = _name(flag).split(".")
    if not keys:
        return args.pop(head, None)
    place = args.get(head)
    if not isinstance(place, dict) or len(keys) > 1 or keys[0] not in place:
        return None
    args[head] = {key: one for key, one in place.items() if key != keys[0]}
    return place[keys[0]]


def _drafting(args: dict[str, Any]) -> dict[str, Scalar]:
    config = args.pop("speculative_config", None) or {}
    config = dict(config) if isinstance(config, dict) else {}
    config |= {key: args.pop(name) for name, key in _SPEC.items() if name in args}
    if not config:
        return {"drafter": "none"}
    method = str(config.pop("method", "draft_model"))
    # The engine itself reads the models' own names for these heads as mtp.
    drafter = "mtp" if method.endswith("_mtp") and method not in DRAFTERS else method
    values: dict[str, Scalar] = {"drafter": drafter}
    if "num_speculative_tokens" in config:
        values["k"] = int(config.pop("num_speculative_tokens"))
    return values | {f"drafter.{key}": _scalar(value) for key, value in config.items()}
