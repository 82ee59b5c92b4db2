"""Secrets out of text: an address's user part, a token by its shape, a flag or a variable by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["redactor"]

_NAME = r"(?:[A-Z0-9]+_)*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)(?:_ID)?"
_RULES = (
    (re.compile(r"://[^/\s'\"\\]+@"), "://***@"),
    (re.compile(r"\b(hf_|sk-|gh[a-z]_|github_pat_|glpat-|AKIA)[\w-]{16,}"), r"\1***"),
    (re.compile(r"(\bauthorization[\"']?\s*[:=]\s*[\"']?\w+\s+)[^\s\"',]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE), r"\1***"),
    (
        re.compile(r"(--(?:[a-z]+-)*(?:api-key|token|password|secret)[\"']?[\s=,:]+[\"']?)[^\s\"',]+"),
        r"\1***",
    ),
    (re.compile(rf"(\b{_NAME}[\"']?\s*[=:]\s*[\"']?)[^\s\"',}}]+"), r"\1***"),
)


def redactor(environ: Mapping[str, str]) -> Callable[[str], str]:
    """A function that blots secrets out of a text, the values of `environ`'s secret variables among them."""
    values = {value for name, value in environ.items() if len(value) >= 8 and re.fullmatch(_NAME, name)}

    def redact(text: str) -> str:
        for value in values:
            text = text.replace(value, "***")
        for rule, instead in _RULES:
            text = rule.sub(instead, text)
        return text

    return redact
