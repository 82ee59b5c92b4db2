"""Texts for workloads, generated from a seed: sentences, records, prompts; the same on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = [
    "WEATHER_TOOL",
    "edit_prompt",
    "generate_prompt",
    "needle_prompt",
    "records_prompt",
    "salt",
    "shared_tail",
    "story",
]

_TOKENS_PER_WORD = 1.35


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in text.split(";")]


_NAMES = _words("""
    Ada Bruno Clara Dmitri Elena Farid Greta Hugo Ines Jonas Keiko Lars Mina Nadia Oskar Petra Quentin Rosa
    Samir Tilda Ugo Vera Wanda Xenia Yusuf Zora Anton Bela Carmen Edith Felix Hanna Igor Judith Leon Marta""")
_SURNAMES = _words("""
    Abbott Bergman Castell Dorn Eklund Ferrara Grimaldi Hale Ivarsson Jessup Kowal Lindqvist Moreau
    Novak Okafor Pereira Quist Rasmussen Sandoval Thorne Ulrich Vasquez Whitlock Yamada Zeller""")
_PLACES = _words("""
    Ashford Brindale Corvo Dunmere Eastwick Fallbrook Glenmoor Harrow Islington Jarrow Kestrel Lowen
    Marlow Northam Orrin Pinehurst Quarry Redcliff Stavely Tarn Upton Vance Westerly Yarrow""")
_THINGS = _words("""
    lantern ledger violin kettle map barometer bicycle telescope loom anchor compass clock letter saddle
    barrel mirror ladder engine typewriter garden bridge orchard mill ferry quarry library harbour chapel""")
_KINDS = _words("""
    brass wooden broken heavy painted forgotten narrow silver crooked patient expensive quiet blue rusted
    borrowed curious enormous fragile green hollow""")
_TOPICS = _phrases("""
    how a town rebuilt its harbour after a storm; why two neighbours stopped speaking to each other;
    what a lighthouse keeper does on an ordinary day; how an apprentice learned to repair clocks;
    a journey by train across a country in winter; the first week of a new teacher in a mountain school;
    how bread was made for a ship's crew; what was found when the old theatre was opened again""")


def _pick(rng: random.Random, items: Sequence[str]) -> str:
    # rng.random() is the one method whose sequence is promised to stay the same across Python releases.
    return items[int(rng.random() * len(items))]


def salt(rng: random.Random) -> str:
    """Ten letters that stand first in a prompt, so that no two prompts share a prefix."""
    return "".join(chr(97 + int(rng.random() * 26)) for _ in range(10))


@cache
def _passages() -> tuple[str, ...]:
    lines = Path(__file__).with_name("public_domain.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


def story(rng: random.Random, tokens: int) -> list[str]:
    """Sentences in order from a drawn one on, of about so many tokens (the server's count is the truth)."""
    passages = _passages()
    at = int(rng.random() * len(passages))
    sentences: list[str] = []
    words = 0
    while words * _TOKENS_PER_WORD < tokens:
        sentences.append(passages[(at + len(sentences)) % len(passages)])
        words += len(sentences[-1].split())
    return sentences


def generate_prompt(rng: random.Random, tokens: int) -> tuple[str, str]:
    """Something to read, then open writing: (prompt, how the answer begins)."""
    background = " ".join(story(rng, tokens - 30))
    return f"{background}\n\nUser: Write a lively story about {_pick(rng, _TOPICS)}.\n\nAssistant: ", "In the"


def edit_prompt(rng: random.Random, tokens: int, output_tokens: int) -> tuple[str, str]:
    """A text to return with its first word changed: (prompt, how the answer begins); outlasts the answer."""
    # One word is at least one token, so a text of this many words outlasts the answer under any tokenizer.
    wanted = max(float(tokens), (output_tokens + 30) * _TOKENS_PER_WORD)
    text = " ".join(story(rng, int(wanted)))
    new = _pick(rng, _NAMES)
    # Small models follow a frame better than an order, and need a sentence to fall into step.
    ask = f'Original:\n"""\n{text}\n"""\n\nThe same text, with {new} for its first word:\n"""\n'
    return ask, " ".join([new, *text.split()[1:21]])


def records_prompt(rng: random.Random, tokens: int) -> tuple[str, str]:
    """Continuing a list of JSON records: (prompt, how the answer begins)."""
    records: list[str] = []
    number = 100 + int(rng.random() * 900)
    while sum(map(len, records)) < tokens * 2.4:
        number += 1
        record = {
            "id": number,
            "name": f"{_pick(rng, _NAMES)} {_pick(rng, _SURNAMES)}",
            "city": _pick(rng, _PLACES),
            "item": f"{_pick(rng, _KINDS)} {_pick(rng, _THINGS)}",
            "amount": round(5 + rng.random() * 90, 2),
        }
        records.append(json.dumps(record))
    begun = '{"id": ' + str(number + 1) + ', "name": "'
    return "Continue the list of records, one to a line.\n" + "\n".join(records) + "\n", begun


def needle_prompt(rng: random.Random, tokens: int, depth: float) -> tuple[str, str, str]:
    """A long text with one fact at a depth of 0 to 1, and its question: (prompt, begun, the answer)."""
    sentences = story(rng, tokens - 60)
    place = _pick(rng, _PLACES)
    code = str(100_000 + int(rng.random() * 900_000))
    sentences.insert(round(depth * len(sentences)), f"The code of the vault in {place} is {code}.")
    ask = f"\n\nWhat is the code of the vault in {place}?\n"
    return " ".join(sentences) + ask, f"The code of the vault in {place} is", code


def shared_tail(rng: random.Random) -> str:
    """A short question after a shared prefix."""
    return f"\n\nCase {salt(rng)}: {_pick(rng, _TOPICS)}.\n\n"


WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Today's weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "description": "The name of the town."}},
            "required": ["town"],
        },
    },
}


def place(rng: random.Random) -> str:
    return _pick(rng, _PLACES)
