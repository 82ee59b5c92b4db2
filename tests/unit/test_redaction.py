"""Secrets do not reach a log or a store; the rest of a text does."""

from __future__ import annotations

import pytest

from trackers.redaction import redactor


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://user:pw@host/simple", "https://***@host/simple"),
        ("postgresql://u:p@ss@db:5432/x", "postgresql://***@db:5432/x"),
        ("token hf_abcdefghijklmnopqrstuv ends", "token hf_*** ends"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("bearer abcdefghijklmnop123", "bearer ***"),
        ("--api-key s3cret --port 1", "--api-key *** --port 1"),
        ('"--hf-token","s3cret","--port"', '"--hf-token","***","--port"'),
        ("HF_TOKEN=abc VLLM_API_KEY: 'x'", "HF_TOKEN=*** VLLM_API_KEY: '***'"),
        ('{"AWS_SECRET_ACCESS_KEY":"a/b+c"}', '{"AWS_SECRET_ACCESS_KEY":"***"}'),
    ],
)
def test_a_secret_is_blotted_out(text: str, clean: str) -> None:
    assert redactor({})(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "--tokenizer x --max-num-batched-tokens 4096",
        '"kv_bytes_per_token": 1234, "max_tokens":16',
        "TOKENIZERS_PARALLELISM=false VLLM_MAX_TOKENS_PER_EXPERT=1",
        "http://127.0.0.1:8000/v1?x=1",
        "basic authentication is off; the token is wrong",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redactor({})(text) == text


def test_the_values_of_secret_variables_are_blotted_out_wherever_they_stand() -> None:
    redact = redactor({"MY_API_KEY": "swordfish", "SHORT_TOKEN": "abc", "PATH": "/usr/bin"})
    assert redact("it said swordfish abc /usr/bin") == "it said *** abc /usr/bin"
