"""Workload: the traffic a trial is judged by; one seed gives the same bytes, and salt opens every prompt."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from trackers.records import Frozen, WorkloadRef

from . import workload_jsonl as jsonl
from . import workload_texts as texts
from .errors import PlanError

__all__ = ["Kind", "Request", "Workload", "load_workload", "parse_goodput"]

Kind = Literal["generate", "edit", "structured", "shared_prefix", "long_context", "mixed", "tool_loop", "jsonl"]
Phase = Literal["warm_up", "measured", "cool_down"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request without its model: path, JSON body, and what is known of the answer.

    `at_s`: when it is due after the window's start, None in a closed loop. `expect`: what the answer holds.
    """

    index: int
    kind: Kind
    phase: Phase
    path: str
    body: dict[str, Any]
    output_tokens: int
    at_s: float | None = None
    expect: str = ""


class Workload(Frozen):
    """What is asked of a server in one window. Lengths are in tokens; `prompt_tokens` is approximate.

    A closed loop keeps `concurrency` requests in flight; an open loop sends `request_rate` a second, its gaps
    spread by `burstiness` (1 Poisson, below 1 burstier, infinite evenly spaced). `requests_per_window` are
    measured; those that fill and drain the server come on top and are dropped. A reference covers all that
    decides the requests, not where they go. `salted` opens every prompt with ten letters of its own, so that no
    run is served from the prefix cache of another.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    kind: Kind
    output_tokens: int = Field(128, ge=2)
    prompt_tokens: int = Field(256, ge=8)
    concurrency: int | None = Field(None, ge=1)
    request_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    burstiness: float = Field(1.0, gt=0)
    requests_per_window: int = Field(4, ge=1)
    seed: int = 0
    endpoint: Literal["completions", "chat"] = "completions"
    temperature: float = Field(0.0, ge=0)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    enable_thinking: bool = False
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    weights: dict[Kind, float] = Field(default_factory=dict)
    path: Path | None = None
    lines: tuple[str, ...] = Field(default=(), repr=False)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    goodput: str = ""
    salted: bool = True
    allow_preemptions: bool = False
    _ref: WorkloadRef | None = PrivateAttr(None)

    @field_validator("goodput")
    @classmethod
    def _goodput(cls, value: str) -> str:
        parse_goodput(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        # The lines travel with the workload: the machine that measures need not have the file.
        if isinstance(data, Mapping) and data.get("path") and not data.get("lines"):
            return {**data, "lines": jsonl.read(Path(data["path"]))}
        return data

    @model_validator(mode="after")
    def _fits(self) -> Workload:
        if self.concurrency is not None and self.request_rate is not None:
            raise ValueError("give concurrency (closed loop) or request_rate (open loop), not both")
        if (self.kind == "mixed") != bool(self.weights):
            raise ValueError("weights belong to kind mixed, and it needs them")
        single = not {"mixed", "tool_loop", "jsonl"} & set(self.weights)
        if not single or any(weight <= 0 for weight in self.weights.values()):
            raise ValueError("weights are positive numbers for single kinds, such as {generate: 3, edit: 1}")
        if (self.kind == "jsonl") != bool(self.lines):
            raise ValueError("path belongs to kind jsonl, and it needs one")
        if self.kind == "tool_loop" and self.endpoint != "chat":
            raise ValueError("tool_loop needs endpoint: chat, since tools are offered there alone")
        if any(not 0 <= depth <= 1 for depth in self.depths) or not self.depths:
            raise ValueError("depths are fractions from 0 (start) to 1 (end)")
        return self

    @property
    def in_flight(self) -> int | None:
        """Requests kept in flight in a closed loop; None in an open loop."""
        if self.request_rate is not None or (self.lines and "arrival_s" in json.loads(self.lines[0])):
            return None
        return self.concurrency or 1

    @property
    def claims(self) -> Literal["cold", "warm", "any"]:
        """What the prompts say of the prefix cache: nothing in it, the shared part in it, or no claim."""
        if self.kind == "shared_prefix":
            return "warm"
        return "cold" if self.salted and "shared_prefix" not in self.weights else "any"

    @property
    def ref(self) -> WorkloadRef:
        """Name, and a hash of the requests of the first window with all that times them; no server in it."""
        if self._ref is None:
            sent = [(each.path, each.body, each.at_s) for each in self.requests(0)]
            text = json.dumps([self._fixed(), sent], sort_keys=True)
            self._ref = WorkloadRef(name=self.name, sha256=hashlib.sha256(text.encode()).hexdigest())
        return self._ref

    def _fixed(self) -> str:
        # Without defaults: a field that is added later leaves the hashes of older workloads alone.
        unsent = {"name", "path", "goodput", "allow_preemptions", "concurrency"}
        fixed = self.model_dump(mode="json", exclude=unsent, exclude_defaults=True)
        return json.dumps({**fixed, "in_flight": self.in_flight}, sort_keys=True)

    def requests(self, window: int) -> list[Request]:
        """All requests of a window: warm-up, measured, cool-down. Equal windows give equal bytes."""
        flight = self.in_flight
        if flight is None:
            edge = math.ceil(self.requests_per_window / 10)
            before, after = edge, edge
        else:
            before, after = (2 * flight, flight) if flight > 1 else (0, 0)
        total = before + self.requests_per_window + after
        arrivals = self._arrivals(window, total)
        # Two workloads of one launch may share their texts (a ladder of concurrencies) but never a prefix.
        own = hashlib.sha256(self._fixed().encode()).hexdigest()[:16]
        last = before + self.requests_per_window
        made = []
        for index in range(total):
            phase: Phase = "warm_up" if index < before else "measured" if index < last else "cool_down"
            at_s = arrivals[index]
            if self.kind == "jsonl":
                line = json.loads(self.lines[(window * total + index) % len(self.lines)])
                made.append(self._recorded(line, self._mark(f"{own}:{window}:{index}"), index, phase, at_s))
            else:
                made.append(self._generated(own, window, index, phase, at_s))
        return made

    def _mark(self, seed: str) -> str:
        return f"[{texts.salt(random.Random(seed))}] " if self.salted else ""  # noqa: S311

    def _arrivals(self, window: int, total: int) -> list[float | None]:
        if self.in_flight is not None:
            return [None] * total
        if self.request_rate is None:
            return jsonl.arrivals(self.lines, window * total, total)
        rng = random.Random(f"{self.seed}:{window}:arrivals")  # noqa: S311
        at, due = 0.0, []
        for _ in range(total):
            due.append(at)
            even = math.isinf(self.burstiness)
            scale = 1 / (self.request_rate * self.burstiness) if not even else 0.0
            at += 1 / self.request_rate if even else rng.gammavariate(self.burstiness, scale)
        return list(due)

    def _generated(self, own: str, window: int, index: int, phase: Phase, at_s: float | None) -> Request:
        rng = random.Random(f"{self.seed}:{window}:{index}")  # noqa: S311
        kind = _weighted(rng, self.weights) if self.kind == "mixed" else self.kind
        mark = self._mark(f"{own}:{window}:{'shared' if kind == 'shared_prefix' else index}")
        begun = expect = ""
        if kind == "edit":
            prompt, begun = texts.edit_prompt(rng, self.prompt_tokens, self.output_tokens)
        elif kind == "structured":
            prompt, begun = texts.records_prompt(rng, self.prompt_tokens)
        elif kind == "long_context":
            depth = self.depths[index % len(self.depths)]
            prompt, begun, expect = texts.needle_prompt(rng, self.prompt_tokens, depth)
        elif kind == "shared_prefix":
            common = random.Random(f"{self.seed}:{window}:prefix")  # noqa: S311
            prompt = " ".join(texts.story(common, self.prompt_tokens)) + texts.shared_tail(rng)
        elif kind == "tool_loop":
            expect = texts.place(rng)
            prompt = f"What is the weather in {expect} today? Look it up with the tool, then answer."
        else:
            prompt, begun = texts.generate_prompt(rng, self.prompt_tokens)
        body = self._body(mark, prompt, begun)
        if kind == "tool_loop":
            # A turn ends by itself: its length is what the model makes of it, `output_tokens` only a bound.
            body = {**body, "ignore_eos": False, "tools": [texts.WEATHER_TOOL], "tool_choice": "auto"}
        return Request(index, kind, phase, self._path, body, self.output_tokens, at_s, expect)

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"

    def _body(self, mark: str, prompt: str, begun: str) -> dict[str, Any]:
        if self.endpoint == "completions":
            return {"prompt": f"{mark}{prompt}{begun}", **self._sampling(self.output_tokens)}
        # The salt opens the system message, so that it stands before all but the template's own first tokens.
        system = {"role": "system", "content": f"{mark}You are a careful assistant."}
        user = {"role": "user", "content": prompt}
        return {"messages": [system, user], **self._sampling(self.output_tokens), **self._reasoning()}

    def _sampling(self, output_tokens: int) -> dict[str, Any]:
        fixed = {"max_tokens": output_tokens, "ignore_eos": True, "temperature": self.temperature}
        return {**fixed, "stream": True, "stream_options": {"include_usage": True}, **self.extra_body}

    def _reasoning(self) -> dict[str, Any]:
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {"chat_template_kwargs": {"enable_thinking": self.enable_thinking}, **effort}

    def _recorded(self, line: dict[str, Any], mark: str, index: int, phase: Phase, at_s: float | None) -> Request:
        body = {name: value for name, value in line.items() if name not in ("arrival_s", "model")}
        asked = body.pop("max_completion_tokens", None) or body.pop("max_tokens", None) or self.output_tokens
        chat = "messages" in body
        if chat:
            body["messages"] = jsonl.salted(body["messages"], mark)
            body |= self._reasoning()
        else:
            body["prompt"] = f"{mark}{body['prompt']}"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return Request(index, "jsonl", phase, path, {**body, **self._sampling(asked)}, asked, at_s)


def load_workload(data: Mapping[str, Any], folder: Path | None = None) -> Workload:
    """A workload from a user's mapping; a relative `path` is taken from `folder`.

    Raises:
        PlanError: Names the field, or the line of the JSONL file, and what is wrong with it.
    """
    if folder is not None and data.get("path"):
        data = {**data, "path": str(folder / Path(str(data["path"])).expanduser())}
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        label = f"workload {data.get('name', '?')!r}" + (f", {where}" if where else "")
        raise PlanError(f"{label}: {first['msg'].removeprefix('Value error, ')}.") from None


def parse_goodput(text: str) -> dict[str, float]:
    """`ttft:200 tpot:50 e2el:5000` as metric -> bound in ms, as `vllm bench serve --goodput` reads it."""
    bounds: dict[str, float] = {}
    for part in text.split():
        name, _, bound = part.partition(":")
        if name not in ("ttft", "tpot", "e2el"):
            raise ValueError(f"goodput names ttft, tpot or e2el, not {name!r}")
        try:
            bounds[name] = float(bound)
        except ValueError:
            raise ValueError(f"goodput needs milliseconds after {name}:, not {bound!r}") from None
    return bounds


def _weighted(rng: random.Random, weights: Mapping[Kind, float]) -> Kind:
    left = rng.random() * sum(weights.values())
    for kind, weight in weights.items():
        left -= weight
        if left < 0:
            return kind
    return next(reversed(list(weights)))
