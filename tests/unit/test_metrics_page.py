"""Metrics pages: sums over labels, differences, drafts by position; a line out of form is no series."""

from __future__ import annotations

from orchestrator.metrics_page import acceptance_between, grown, parse_metrics

PAGE = r"""# HELP vllm:request_success_total Count of requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 9.0
vllm:request_success_created{engine="0"} 1.7959e+09
vllm:e2e_request_latency_seconds_bucket{le="1.0"} 3.0
vllm:e2e_request_latency_seconds_count 3.0
vllm:cache_config_info{enable_prefix_caching="False",note="a \"b\", {c}\\d\n",block_size="16"} 1.0
vllm:spec_decode_num_drafts_total{engine="0"} 64.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 256.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 218.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 58.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 56.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="10"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 52.0
not a line
vllm:broken{engine="0"} soon
vllm:gauge NaN
"""


def test_a_counter_is_summed_over_its_labels_with_or_without_the_suffix() -> None:
    page = parse_metrics(PAGE)
    assert page.total("vllm:request_success") == 11
    assert page.total("vllm:e2e_request_latency_seconds_count") == 3
    assert page.by_label("vllm:request_success", "finished_reason") == {"stop": 2, "length": 9}


def test_what_the_server_does_not_count_is_none_and_not_zero() -> None:
    page = parse_metrics(PAGE)
    assert page.total("vllm:num_preemptions") is None
    assert not page.has("vllm:broken")
    assert not any(name.endswith(("_bucket", "_created")) for name in page.series)


def test_labels_are_read_with_quotes_braces_and_escapes() -> None:
    labels = parse_metrics(PAGE).labels("vllm:cache_config_info")
    assert labels == {"enable_prefix_caching": "False", "note": 'a "b", {c}\\d\n', "block_size": "16"}


def test_a_difference_needs_both_pages() -> None:
    before, after = parse_metrics("x_total 3"), parse_metrics("x_total 8")
    assert grown(before, after, "x") == 5
    assert grown(None, after, "x") is None
    assert grown(before, parse_metrics(""), "x") is None


def test_drafts_are_differences_with_positions_in_order() -> None:
    assert acceptance_between(parse_metrics(PAGE), parse_metrics(PAGE)) == (0, 0, 0, (0, 0, 0, 0))
    zero = "\n".join(line.rsplit(" ", 1)[0] + " 0" for line in PAGE.splitlines() if "spec_decode" in line)
    assert acceptance_between(parse_metrics(zero), parse_metrics(PAGE)) == (64, 256, 218, (58, 56, 52, 1))


def test_a_server_that_does_not_draft_has_no_acceptance() -> None:
    assert acceptance_between(parse_metrics("x 1"), parse_metrics("x 2")) is None
