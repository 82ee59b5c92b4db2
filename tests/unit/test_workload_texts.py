"""Generated texts: long enough, seldom repeating, continued the way a small model can follow."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from orchestrator import workload_texts as texts


@pytest.mark.parametrize("tokens", [20, 200, 4000])
def test_a_story_is_about_as_long_as_asked(tokens: int) -> None:
    words = len(" ".join(texts.story(random.Random(1), tokens)).split())
    assert tokens <= words * 1.35 < tokens + 100


def test_a_text_to_be_copied_seldom_says_the_same_four_words() -> None:
    words = " ".join(texts.story(random.Random(2), 600)).split()
    seen = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    assert sum(count > 1 for count in seen.values()) < 0.03 * len(seen)


def test_open_writing_needs_no_text_to_copy() -> None:
    prompt, begun = texts.generate_prompt(random.Random(5), 100)
    assert prompt.endswith("Assistant: ")
    assert begun


def test_records_are_json_and_the_next_one_is_begun() -> None:
    prompt, begun = texts.records_prompt(random.Random(3), 200)
    lines = prompt.splitlines()[1:]
    records = [json.loads(line) for line in lines]
    assert len(records) > 3
    assert begun == f'{{"id": {records[-1]["id"] + 1}, "name": "'


def test_salts_differ_and_are_reproducible() -> None:
    rng = random.Random(4)
    salts = [texts.salt(rng) for _ in range(1000)]
    assert len(set(salts)) == 1000
    assert texts.salt(random.Random(4)) == salts[0]
