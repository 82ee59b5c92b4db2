"""Workloads: the same bytes for the same window, salt in front, a hash over what decides the requests."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import PlanError
from orchestrator.workload import Workload, load_workload, parse_goodput

KINDS = ["generate", "edit", "structured", "shared_prefix", "long_context", "mixed"]


def made(kind: str, **fields: Any) -> Workload:
    extra = {"weights": {"generate": 2, "edit": 1}} if kind == "mixed" else {}
    extra |= {"endpoint": "chat"} if kind == "tool_loop" else {}
    return Workload(name="w", kind=kind, **{"prompt_tokens": 80, "output_tokens": 16, **extra, **fields})


def common(texts: list[str]) -> int:
    """Characters that all texts begin with."""
    return next((at for at, column in enumerate(zip(*texts, strict=False)) if len(set(column)) > 1), len(texts[0]))


def prompts(workload: Workload, window: int = 0) -> list[str]:
    return [each.body["prompt"] for each in workload.requests(window)]


@pytest.mark.parametrize("kind", [*KINDS, "tool_loop"])
def test_a_second_run_sends_the_same_bytes(kind: str) -> None:
    assert made(kind).requests(3) == made(kind).requests(3)
    assert made(kind).ref == made(kind).ref


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shared_prefix"])
def test_no_two_prompts_of_a_launch_share_a_prefix(kind: str) -> None:
    ladder = [made(kind, concurrency=flight) for flight in (1, 4)]
    sent = [text for each in ladder for window in range(3) for text in prompts(each, window)]
    assert max(common(list(pair)) for pair in pairwise(sorted(sent))) < 8


def test_a_shared_prefix_is_shared_within_a_window_and_not_between_windows() -> None:
    workload = made("shared_prefix")
    first, second = prompts(workload, 0), prompts(workload, 1)
    assert common(first) > 200
    assert len(set(first)) == len(first)
    assert common([first[0], second[0]]) < 8
    assert workload.claims == "warm"


def test_in_a_chat_the_salt_opens_the_first_message() -> None:
    messages = made("generate", endpoint="chat").requests(0)[0].body["messages"]
    assert re.match(r"\[[a-z]{10}\] ", messages[0]["content"])


def test_output_length_is_fixed_and_counts_are_asked_for() -> None:
    body = made("generate", extra_body={"top_k": 1}).requests(0)[0].body
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"], body["top_k"]) == (16, True, 0.0, 1)
    assert body["stream_options"] == {"include_usage": True}


def test_reasoning_is_fixed_explicitly_in_a_chat() -> None:
    body = made("generate", endpoint="chat", reasoning_effort="low").requests(0)[0].body
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["reasoning_effort"] == "low"


def test_a_window_fills_the_server_measures_and_drains_it() -> None:
    phases = [each.phase for each in made("generate", concurrency=3, requests_per_window=5).requests(0)]
    assert phases == ["warm_up"] * 6 + ["measured"] * 5 + ["cool_down"] * 3
    assert [each.phase for each in made("generate").requests(0)] == ["measured"] * 4


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0, math.inf])
def test_open_loop_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    workload = made("generate", request_rate=20, burstiness=burstiness, requests_per_window=1500)
    due = [each.at_s or 0.0 for each in workload.requests(0)]
    gaps = [b - a for a, b in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
    assert mean == pytest.approx(1 / 20, rel=0.1)
    assert spread == pytest.approx(1 / math.sqrt(burstiness), abs=0.12)
    assert due == [each.at_s for each in workload.requests(0)]


def test_mixed_traffic_has_its_weights() -> None:
    kinds = [each.kind for each in made("mixed", requests_per_window=600).requests(0)]
    assert kinds.count("edit") / 600 == pytest.approx(1 / 3, abs=0.06)


def test_needles_lie_at_the_depths_asked_for() -> None:
    workload = made("long_context", prompt_tokens=900, depths=(0.0, 1.0), requests_per_window=2)
    first, last = workload.requests(0)
    at = [each.body["prompt"].index(f"is {each.expect}") / len(each.body["prompt"]) for each in (first, last)]
    assert at[0] < 0.1
    assert at[1] > 0.8


def test_an_edit_outlasts_its_answer_and_begins_it() -> None:
    text = prompts(made("edit", output_tokens=200))[0]
    _, original, _, copy = text.split('"""')
    words, begun = original.split(), copy.split()
    assert begun[1:] == words[1 : len(begun)]
    assert len(words) - len(begun) > 200


CHANGES = [
    {"seed": 1}, {"output_tokens": 17}, {"concurrency": 2}, {"prompt_tokens": 81}, {"endpoint": "chat"},
    {"temperature": 0.5}, {"extra_body": {"top_k": 1}}, {"requests_per_window": 5}, {"salted": False},
    {"request_rate": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_hash_moves_with_all_that_decides_the_requests(change: dict[str, Any]) -> None:
    assert made("generate").ref.sha256 != made("generate", **change).ref.sha256


def test_the_hash_stays_when_only_its_name_or_its_judgement_changes() -> None:
    same = made("generate", goodput="ttft:200", allow_preemptions=True, concurrency=1)
    assert same.model_copy(update={"name": "other"}).ref.sha256 == made("generate").ref.sha256


def test_the_hash_is_the_same_on_every_machine() -> None:
    # Recorded once: a change of any generator shows here, and makes old numbers another workload's.
    assert made("edit").ref.sha256[:12] == EDIT_HASH


EDIT_HASH = "72ad50dc3a11"


def test_a_file_travels_with_the_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}\n{"prompt": "a b"}\n')
    workload = load_workload({"name": "mine", "kind": "jsonl", "path": "mine.jsonl"}, tmp_path)
    path.unlink()
    again = Workload.model_validate_json(workload.model_dump_json())
    assert again.ref == workload.ref
    chat, plain = again.requests(0)[:2]
    assert (chat.path, chat.output_tokens, chat.body["max_tokens"]) == ("/v1/chat/completions", 7, 7)
    assert chat.body["messages"][0]["content"].endswith("] hello")
    assert (plain.path, plain.output_tokens) == ("/v1/completions", 128)


def test_recorded_arrivals_make_an_open_loop(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    path.write_text("".join(f'{{"prompt": "p", "arrival_s": {at}}}\n' for at in (5, 6, 8)))
    workload = load_workload({"name": "t", "kind": "jsonl", "path": str(path), "requests_per_window": 3})
    assert workload.in_flight is None
    assert [each.at_s for each in workload.requests(0)] == [0, 1, 3, 4.5, 5.5]


BAD = [
    ({"kind": "poem"}, "kind: Input should be"),
    ({"output_tokens": 0}, "output_tokens: "),
    ({"concurrency": 2, "request_rate": 1}, "not both"),
    ({"kind": "mixed"}, "weights belong to kind mixed"),
    ({"kind": "mixed", "weights": {"tool_loop": 1}}, "single kinds"),
    ({"kind": "mixed", "weights": {"edit": -1}}, "positive"),
    ({"kind": "jsonl"}, "needs one"),
    ({"kind": "tool_loop"}, "endpoint: chat"),
    ({"depths": [2]}, "fractions"),
    ({"goodput": "itl:5"}, "goodput: .*not 'itl'"),
    ({"goodput": "ttft:soon"}, "goodput: .*milliseconds"),
    ({"burstiness": 0}, "burstiness: "),
    ({"request_rate": math.inf}, "request_rate: "),
    ({"colour": "red"}, "colour: "),
    ({"name": "a/b"}, "name: "),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_names_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load_workload({"name": "w", "kind": "generate", **fields})


def test_goodput_is_read_as_the_field_writes_it() -> None:
    assert parse_goodput("ttft:200 tpot:50.5 e2el:5000") == {"ttft": 200, "tpot": 50.5, "e2el": 5000}
    assert parse_goodput("") == {}
