"""Texts for workloads, generated from a seed: sentences, records, prompts; the same on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

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
_DEEDS = _words("""
    repaired measured sold described carried painted found hid borrowed inspected restored weighed moved
    auctioned dismantled photographed catalogued buried returned exchanged""")
_TIMES = _phrases("""
    before dawn; after the flood; during the long winter; on the first market day;
    in the last week of harvest; while the ferry waited;
    once the rain had stopped; long after midnight; between two storms;
    in the spring""")
_REASONS = _phrases("""
    the road to the coast was closed; nobody else had kept the key; the price of copper had doubled;
    an old promise had to be kept; the mayor wanted an inventory; the roof was about to fall in;
    a visitor from the north had asked for it; the insurance would not pay; the river was rising again;
    the children needed somewhere to sleep; the museum had offered a reward; a clerk had lost the receipt""")
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


def _sentence(rng: random.Random) -> str:
    who = f"{_pick(rng, _NAMES)} {_pick(rng, _SURNAMES)}"
    what = f"{_pick(rng, _KINDS)} {_pick(rng, _THINGS)}"
    number = 2 + int(rng.random() * 97)
    forms = (
        f"{_pick(rng, _TIMES).capitalize()}, {who} {_pick(rng, _DEEDS)} the {what} of {_pick(rng, _PLACES)}.",
        f"{who} of {_pick(rng, _PLACES)} {_pick(rng, _DEEDS)} {number} parts since {_pick(rng, _REASONS)}.",
        f"The {what} near {_pick(rng, _PLACES)} was {_pick(rng, _DEEDS)} by {who} {_pick(rng, _TIMES)}.",
        f"Since {_pick(rng, _REASONS)}, the {what} stayed with {who} for {number} days.",
    )
    return forms[int(rng.random() * len(forms))]


def story(rng: random.Random, tokens: int) -> list[str]:
    """Sentences of roughly so many tokens together (no tokenizer here: the server's count is the truth)."""
    sentences: list[str] = []
    words = 0
    while words * _TOKENS_PER_WORD < tokens:
        sentences.append(_sentence(rng))
        words += len(sentences[-1].split())
    return sentences


def generate_prompt(rng: random.Random, tokens: int) -> str:
    """Something to read, then open writing."""
    topic = _pick(rng, _TOPICS)
    background = " ".join(story(rng, tokens - 40))
    return f"Notes from the archive. {background}\n\nAn essay about {topic}, by {_pick(rng, _NAMES)}.\n\n"


def edit_prompt(rng: random.Random, tokens: int, output_tokens: int) -> tuple[str, str]:
    """Returning a text with one name changed: (prompt, how the answer begins); it outlasts the answer."""
    # One word is at least one token, so a text of this many words outlasts the answer under any tokenizer.
    wanted = max(float(tokens), (output_tokens + 24) * _TOKENS_PER_WORD)
    old, new = _pick(rng, _NAMES), "Rowan"
    sentences = [f"{old} {_pick(rng, _SURNAMES)} kept these notes.", *story(rng, int(wanted))]
    text = " ".join(sentences)
    begun = " ".join([new, *text.split()[1:14]])
    ask = f"Return the text below unchanged, except that its first word, {old}, becomes {new}.\n\n"
    return f"{ask}Text:\n{text}\n\nChanged text:\n", begun


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
    return f"\n\nCase {salt(rng)}: {_sentence(rng)} Continue the account.\n\n"


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
