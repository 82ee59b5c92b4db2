"""The facts of an audit from a server that tells little, and from one in development mode."""

from __future__ import annotations

import json

import pytest
from hybrid_trial import TINY
from truth_server import serving

from orchestrator import audit_live
from orchestrator.audit import audit
from orchestrator.audit_live import facts_from_url
from orchestrator.errors import MeasurementFailed
from orchestrator.http_stream import Exchange

QUIET = {"ttft_ms": 5, "itl_ms": 2}
CONFIG = {
    "model_config": {"dtype": "torch.bfloat16", "max_model_len": 2048, "hf_token": "s3cret", "seed": 0},
    "parallel_config": {"tensor_parallel_size": 2},
    "scheduler_config": {"max_num_batched_tokens": 4096},
    "speculative_config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 2, "model": "x"},
}


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch) -> None:
    def busy(*args, **kwargs):
        raise MeasurementFailed("The server has 1 running and 0 waiting requests of others.")

    monkeypatch.setattr(audit_live, "probe_capacity", busy)


def test_a_server_that_tells_little_is_audited_as_far_as_it_goes_and_the_rest_is_said() -> None:
    with serving(**QUIET) as url:
        facts, notes = facts_from_url(url)
    rows = {row.name: row for row in audit(facts)}
    assert rows["output tokens"].verdict == "agrees"
    assert rows["KV pool"].verdict == "cannot tell"
    assert facts.resolved["max_model_len"] == "2048"
    said = " ".join(notes)
    assert "--model-files" in said
    assert "log is not at hand" in said
    assert "The pool was not measured. The server has 1 running" in said


def test_prompts_fit_the_server_whatever_its_tokenizer_makes_of_a_word() -> None:
    with serving(**QUIET, lies={"letters": True}) as url:
        facts, _ = facts_from_url(url)
    assert [window.failed for window in facts.windows] == [0, 0]
    assert 128 < facts.prompt_tokens < 1024


def test_where_there_are_no_counters_nothing_is_compared_with_them() -> None:
    with serving(**QUIET, lies={"no_metrics": True}) as url:
        facts, notes = facts_from_url(url)
    assert (facts.counters, facts.cache_config) == ({}, {})
    assert "The server shows no counters (/metrics)." in notes
    assert not [row for row in audit(facts) if row.finding]


def test_somebody_elses_requests_are_named_as_what_spoils_the_audit() -> None:
    with serving(**QUIET, lies={"stranger": True}) as url:
        _, notes = facts_from_url(url)
    assert any(note.startswith("A proof of the windows failed: sole_user") for note in notes)


def test_a_server_in_development_mode_tells_what_took_effect_and_its_secrets_are_left_out(
    monkeypatch,
) -> None:
    real = audit_live.ask

    def ask(url, path, *args, **kwargs):
        if not path.startswith("/server_info"):
            return real(url, path, *args, **kwargs)
        return Exchange(status=200, reads=[(0, json.dumps({"vllm_config": CONFIG}).encode())])

    monkeypatch.setattr(audit_live, "ask", ask)
    with serving(**QUIET) as url:
        facts, _ = facts_from_url(url, model_files=str(TINY))
    assert (facts.model_dtype, facts.cards, facts.method, facts.k) == ("bfloat16", 2, "mtp", 2)
    assert facts.resolved["max_num_batched_tokens"] == "4096"
    assert facts.drafter is not None
    assert "s3cret" not in facts.model_dump_json()


def test_how_many_are_drafted_is_seen_in_the_counters_where_nobody_says_how() -> None:
    with serving(**QUIET, k=3, chunks=[2]) as url:
        facts, _ = facts_from_url(url, model_files=str(TINY))
    assert (facts.method, facts.k) == ("unknown", 3)
    assert "KV pool" in {row.name for row in audit(facts)}, "a drafter of its own adds layers nobody knows"


def test_what_cannot_be_asked_is_an_error() -> None:
    with pytest.raises(MeasurementFailed, match="unreachable"):
        facts_from_url("http://127.0.0.1:9")
