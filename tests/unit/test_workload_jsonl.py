"""The user's own traffic: each broken line is named by its number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.workload_jsonl import arrivals, read, salted

GOOD = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, "{broken"], "line 2: not JSON"),
        ([GOOD, "", GOOD], "line 2: empty"),
        ([GOOD, GOOD, "[1]"], "line 3: not a JSON object"),
        (["{}"], "line 1: neither messages"),
        (['{"messages": []}'], "line 1: neither messages"),
        (['{"messages": ["hi"]}'], "line 1: neither messages"),
        (['{"messages": [{"role": "user", "content": ""}]}'], "line 1: neither messages"),
        (['{"prompt": [1, 2]}'], "line 1: neither messages"),
        ([GOOD, '{"prompt": "x", "arrival_s": 1}'], "line 2: arrival_s"),
        (['{"prompt": "x", "arrival_s": "noon"}'], "line 1: arrival_s is not a number"),
        (
            ['{"prompt": "x", "arrival_s": 2}', '{"prompt": "x", "arrival_s": 1}'],
            "line 2: arrival_s goes back",
        ),
        ([], "is empty"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(PlanError, match=message):
        read(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent\.jsonl cannot be read"):
        read(tmp_path / "absent.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"binary\.jsonl cannot be read"):
        read(tmp_path / "binary.jsonl")


def test_salt_goes_before_text_and_before_parts() -> None:
    assert salted([{"role": "user", "content": "hi"}], "[x] ")[0]["content"] == "[x] hi"
    parts = [{"type": "text", "text": "hi"}]
    assert salted([{"role": "user", "content": parts}], "[x] ")[0]["content"] == [
        {"type": "text", "text": "[x] "},
        *parts,
    ]


def test_arrivals_go_on_after_the_file_ends() -> None:
    lines = [json.dumps({"prompt": "p", "arrival_s": at}) for at in (10.0, 11.0, 14.0)]
    assert arrivals(lines, 0, 5) == [0, 1, 4, 6, 7]
    assert arrivals(lines, 2, 3) == [0, 2, 3]
