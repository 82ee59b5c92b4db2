"""Verdicts between columns, and reading what engines say."""

from __future__ import annotations

import pytest

from orchestrator.audit_facts import AuditFacts, compare_columns, counters_between, number, row
from orchestrator.metrics_page import parse_metrics


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ((100, 100.5, 99.5), "agrees"),
        ((100, 100, None), "agrees"),
        ((25, 100, 100), "report differs"),
        ((100, 25, 100), "premise differs"),
        ((100, 100, 400), "premise differs"),
        ((25, 50, 100), "report differs"),
        ((25, 100, None), "report differs"),
        ((25, None, 100), "report differs"),
        ((None, 25, 100), "premise differs"),
        ((None, None, 100), "cannot tell"),
        ((None, None, None), "cannot tell"),
        ((0, 0, 0), "agrees"),
    ],
)
def test_the_measurement_outweighs_and_agreement_without_it_is_not_enough(columns, verdict) -> None:
    assert compare_columns(*columns, 0.02) == verdict
    assert row("x", columns, "u", 0.02).finding == (verdict not in ("agrees", "cannot tell"))


def test_numbers_are_read_by_the_first_name_that_has_one() -> None:
    assert number({"a": "None", "b": "1,024"}, "a", "b", "c") == 1024
    assert number({}, "a") is None


def test_versions_are_compared_as_numbers() -> None:
    assert AuditFacts(engine="0.20.2rc1+cpu").version == (0, 20, 2)
    assert AuditFacts(engine="0.9.2").version < AuditFacts(engine="0.20.2").version


def test_the_servers_labels_decide_about_prefix_caching_before_its_log() -> None:
    said = {"prefix_caching": "True"}
    assert AuditFacts(engine="1", reported=said).caching is True
    assert AuditFacts(engine="1", reported=said, cache_config={"enable_prefix_caching": "False"}).caching is False
    assert AuditFacts(engine="1", reported={"effective.prefix_caching": "Disabling"}).caching is False
    assert AuditFacts(engine="1").caching is None


def test_counters_are_differences_by_plain_names() -> None:
    before = parse_metrics('vllm:generation_tokens_total{engine="0"} 5\n')
    after = parse_metrics('vllm:generation_tokens_total{engine="0"} 9\nvllm:e2e_sum 2\nother 3\n')
    assert counters_between(before, after) == {"generation_tokens": 4, "e2e_sum": 2}
