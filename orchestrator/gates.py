"""Capability gates: what a server must still be able to do, whatever its speed, asked once in a launch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from search_spaces.configuration import Configuration
from trackers.records import Check, TrialRecord

from .errors import MeasurementFailed
from .http_stream import StreamClient
from .load_client import repeat_greedy
from .load_window import Traffic, send_window
from .server_view import answer_json, ask, view_server
from .workload import Workload

__all__ = ["GATES", "LAUNCH_PROOFS", "PREFIX", "broken_gates", "check_gates", "is_gate"]

PREFIX = "gate_"
LAUNCH_PROOFS = ("greedy_repeats",)
"""Asked in every launch; what fails one is disproved."""
_NEEDLE_TOKENS = 1500
_SCHEMA = {
    "type": "object",
    "properties": {"indoors": {"type": "boolean"}, "sky": {"enum": ["clear", "overcast"]}},
    "required": ["indoors", "sky"],
    "additionalProperties": False,
}

Verdict = tuple[bool | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The server that is asked; each request is bounded by `timeout_s`."""

    url: str
    model: str
    api_key: str | None
    timeout_s: float
    length: int

    def send(self, **workload: Any) -> Traffic:
        client = StreamClient(self.url, api_key=self.api_key, stall_s=self.timeout_s)
        asked = Workload(name="gate", **workload)
        return send_window(client, asked, -2, model=self.model, timeout_s=2 * self.timeout_s)

    def complete(self, prompt: str, tokens: int, **more: Any) -> tuple[dict[str, Any], str]:
        """The first choice, or why there is none; `refused: ` opens what the server would not do."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        said = ask(self.url, "/v1/completions", body, api_key=self.api_key, timeout_s=self.timeout_s)
        choices = answer_json(said).get("choices")
        if choices and isinstance(choices[0], dict):
            return choices[0], ""
        text = said.detail or said.body[:200].decode(errors="replace")
        return {}, f"refused: {text}" if said.status in (400, 422) else f"{said.error or said.status}: {text}"


def _refused(problem: str) -> Verdict:
    return (False if problem.startswith("refused") else None), problem


def needle(asked: _Asked) -> Verdict:
    """Facts at a tenth, the middle and the end of a long prompt are found."""
    size = min(_NEEDLE_TOKENS, asked.length // 2)
    samples = asked.send(kind="long_context", prompt_tokens=size, output_tokens=16, requests_per_window=3).samples()
    failed = next((each for each in samples if each.error), None)
    if failed is not None:
        return None, f"{failed.error}: {failed.detail}"
    found = sum(each.request.expect in each.text for each in samples)
    return found == len(samples), f"{found} of {len(samples)} found in {samples[0].input_tokens} tokens"


def tools(asked: _Asked) -> Verdict:
    """A tool is called and its result becomes an answer."""
    turns = asked.send(kind="tool_loop", endpoint="chat", output_tokens=256, requests_per_window=1)
    (ending,) = turns.turns or ("failed",)
    detail = next((f", {each.error}: {each.detail}" for each in turns.samples() if each.error), "")
    return None if ending == "failed" else ending == "done", ending + detail


def greedy_repeats(asked: _Asked) -> Verdict:
    """The same greedy prompt twice in one launch gives the same bytes: a proof of every launch, no gate."""
    workload = Workload(name="gate", kind="generate", output_tokens=8, prompt_tokens=min(128, asked.length // 4))
    check = repeat_greedy(asked.url, workload, model=asked.model, api_key=asked.api_key, timeout_s=asked.timeout_s)
    return check.passed, check.detail


def json_schema(asked: _Asked) -> Verdict:
    """An answer that was to follow a JSON schema follows it."""
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": _SCHEMA, "strict": True}}
    choice, problem = asked.complete("Today's weather, as JSON: ", 96, response_format=form)
    if problem:
        return _refused(problem)
    try:
        value = json.loads(choice.get("text") or "")
    except ValueError:
        cut = choice.get("finish_reason") == "length"
        return None if cut else False, f"{'cut off' if cut else 'not JSON'}: {choice.get('text')!r:.80}"
    good = isinstance(value, dict) and value.keys() == {"indoors", "sky"} and type(value["indoors"]) is bool
    return good, json.dumps(value)[:80]


def logit_bias(asked: _Asked) -> Verdict:
    """A token that is biased away does not come; a server may refuse the parameter, or ignore it."""
    prompt, more = "The capital of France is", {"logprobs": 1, "return_tokens_as_token_ids": True}
    usual = _token(asked.complete(prompt, 1, **more)[0])
    bias = {usual.removeprefix("token_id:") or "11": -100}
    choice, problem = asked.complete(prompt, 1, logit_bias=bias, **more)
    if problem:
        return _refused(problem)
    if not usual.startswith("token_id:"):
        return None, "accepted; the server shows no token ids to tell whether it had an effect"
    return _honoured(_token(choice) != usual)


def _token(choice: dict[str, Any]) -> str:
    tokens = (choice.get("logprobs") or {}).get("tokens")
    return str(tokens[0]) if tokens else ""


def min_p(asked: _Asked) -> Verdict:
    """With min_p 1 only the likeliest token is left, at any temperature."""
    texts = set()
    for seed in (1, 2, 3):
        choice, problem = asked.complete("Once upon a time", 12, seed=seed, temperature=1.5, min_p=1.0, ignore_eos=True)
        if problem:
            return _refused(problem)
        texts.add(choice.get("text"))
    # One of the three may differ: two tokens can be exactly as likely.
    return _honoured(len(texts) < 3)


def _honoured(yes: bool) -> Verdict:
    return yes, "honoured" if yes else "accepted and ignored"


GATES: dict[str, Callable[[_Asked], Verdict]] = {
    gate.__name__: gate for gate in (needle, tools, greedy_repeats, json_schema, logit_bias, min_p)
}


def check_gates(
    base_url: str, names: Iterable[str], *, model: str, api_key: str | None = None, timeout_s: float = 60.0
) -> tuple[Check, ...]:
    """Ask a server for each capability, one request at a time.

    Returns:
        One check a name, `gate_<name>` where it is a capability: passed, failed (refused is failed too), or
        None where it could not be asked. Never raises.
    """
    found = []
    for name in names:
        try:
            length = view_server(base_url, model, api_key=api_key).max_model_len or 4096
            asked = _Asked(url=base_url, model=model, api_key=api_key, timeout_s=timeout_s, length=length)
            passed, detail = GATES[name](asked)
        except MeasurementFailed as error:
            passed, detail = None, error.message
        known = name if name in LAUNCH_PROOFS else f"{PREFIX}{name}"
        found.append(Check(name=known, passed=passed, detail=detail[:300]))
    return tuple(found)


def is_gate(check: Check) -> bool:
    return check.name.startswith(PREFIX)


def broken_gates(records: Iterable[TrialRecord], defaults: Configuration) -> dict[Configuration, tuple[str, ...]]:
    """Configuration -> names of the gates it fails though stock passes them; `records` are of one stack.

    Stock is the incumbent, or where none was asked the `defaults`; what it fails too only informs.
    """
    results: dict[Configuration, dict[str, set[bool]]] = {}
    stock: list[Configuration] = []
    for record in records:
        stock += [record.configuration] if record.role == "incumbent" else []
        for check in (check for launch in record.launches for check in launch.checks if is_gate(check)):
            seen = results.setdefault(record.configuration, {}).setdefault(check.name, set())
            seen |= set() if check.passed is None else {check.passed}
    reference = next((results[one] for one in (*stock, defaults) if one in results), {})
    passes = sorted(name for name, seen in reference.items() if seen == {True})
    found = {
        configuration: tuple(name.removeprefix(PREFIX) for name in passes if False in seen.get(name, ()))
        for configuration, seen in results.items()
    }
    return {configuration: names for configuration, names in found.items() if names}
