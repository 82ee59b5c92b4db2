"""Proofs about the server, each from staged evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.engine_log import reported
from orchestrator.evidence import Evidence, ServerExpectation
from orchestrator.load_metrics import Sample
from orchestrator.metrics_page import parse_metrics
from orchestrator.server_proofs import SERVER_PROOFS
from orchestrator.workload import Request, Workload
from trackers.records import Acceptance, Check

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
PROOF = {proof.__name__: proof for proof in SERVER_PROOFS}


def evidence(**fields: Any) -> Evidence:
    request = Request(0, "generate", "measured", "/", {"prompt": "p"}, 20)
    samples = fields.pop("samples", [Sample(request, 0, [1, 2], 10, 20, "length")])
    expected = fields.pop("expected", {})
    workload = fields.pop("workload", Workload(name="w", kind="generate"))
    server = None if expected is None else ServerExpectation(**{"model": "m", **expected})
    return Evidence(workload=workload, samples=samples, expected=server, **fields)


def passed(name: str, e: Evidence) -> bool | None:
    verdict = PROOF[name](e)
    assert verdict is not None
    return verdict[0]


LABELS = parse_metrics(
    'vllm:cache_config_info{cache_dtype="fp8",enable_prefix_caching="True",gpu_memory_utilization="0.9"} 1\n'
    "vllm:request_success_total 4\n"
)


@pytest.mark.parametrize(
    ("settings", "good"),
    [
        ({"gpu_memory_utilization": "0.90"}, True),
        ({"gpu_memory_utilization": "0.85"}, False),
        ({"kv_cache_dtype": "fp8", "enable_prefix_caching": "true"}, True),
        ({"kv_cache_dtype": "auto"}, True),
        ({"kv_cache_dtype": "bfloat16"}, False),
        ({"max_model_len": "2048"}, True),
        ({"max_model_len": "4096"}, False),
        ({"max_model_len": "2K"}, True),
        ({"max_model_len": "2k"}, False),
        ({"max_model_len": "-1"}, True),
        ({"max_num_seqs": "8"}, True),
        ({"max_num_seqs": "16"}, False),
        ({"async_scheduling": "True"}, None),
    ],
    ids=str,
)
def test_a_setting_is_held_against_what_the_engine_says(settings: dict[str, str], good: bool | None) -> None:
    expected = {"settings": settings, "reported": {"max_num_seqs": "8"}}
    assert passed("settings_in_effect", evidence(expected=expected, after=LABELS, models={"m": "2048"})) is good


@pytest.mark.parametrize(
    ("name", "said"), [("v0.26.0_ngram_k4", "disabled"), ("v0.19.1_fail_kv_pool_too_small", "enabled")]
)
def test_a_switch_is_held_against_the_word_that_the_log_has_for_it(name: str, said: str) -> None:
    found = reported((LOGS / f"{name}.log").read_text())
    assert found["async_scheduling"] == said
    for asked in ("True", "False"):
        expected = {"settings": {"async_scheduling": asked}, "reported": found}
        good = passed("settings_in_effect", evidence(expected=expected))
        assert good is ((asked == "True") == (said == "enabled"))


@pytest.mark.parametrize(("drafter", "good"), [("none", True), ("ngram", False)])
def test_drafting_series_are_there_when_drafting_was_asked_for_and_not_otherwise(drafter: str, good: bool) -> None:
    e = evidence(expected={"drafter": drafter}, after=LABELS)
    assert passed("settings_in_effect", e) is good
    drafts = parse_metrics("vllm:request_success_total 4\nvllm:spec_decode_num_drafts_total 0\n")
    assert passed("settings_in_effect", evidence(expected={"drafter": drafter}, after=drafts)) is not good


def test_what_the_engine_does_not_show_is_said() -> None:
    verdict = PROOF["settings_in_effect"](evidence(expected={"settings": {"async_scheduling": "True"}}, after=LABELS))
    assert verdict == (None, "0 as asked; the engine does not show async_scheduling")


@pytest.mark.parametrize(("drafter", "drafts", "good"), [("mtp", 0, False), ("ngram", 0, None), ("mtp", 3, True)])
def test_a_drafting_model_that_never_drafts_is_dead_and_a_lookup_may_find_nothing(
    drafter: str, drafts: int, good: bool | None
) -> None:
    counted = Acceptance(drafts=drafts, draft_tokens=drafts, accepted_tokens=0)
    e = evidence(expected={"drafter": drafter}, acceptance=counted, after=LABELS)
    assert passed("drafts_alive", e) is good


@pytest.mark.parametrize(("answers", "good"), [("0.32.0", True), ("0.32.0+cpu", True), ("0.27.1", False), (None, None)])
def test_the_version_is_compared_without_its_build(answers: str | None, good: bool | None) -> None:
    assert passed("served_version", evidence(expected={"version": "0.32.0+cu129"}, version=answers)) is good


def test_the_callers_proof_of_the_listener_is_part_of_the_window() -> None:
    check = Check(name="listener_is_ours", passed=False, detail="pid 7 is not ours")
    assert PROOF["listener_is_ours"](evidence(expected={"listener": check})) == (False, "pid 7 is not ours")
    assert PROOF["listener_is_ours"](evidence()) is None


@pytest.mark.parametrize(
    ("requests", "prompt", "generated", "good"),
    [(1, 10, 20, True), (2, 10, 20, False), (0, 10, 20, False), (1, 11, 20, False), (1, 10, 19, False)],
)
def test_the_servers_counts_have_to_be_ours(requests: int, prompt: int, generated: int, good: bool) -> None:
    names = ("request_success_total", "prompt_tokens_total", "generation_tokens_total")
    before = parse_metrics("\n".join(f"vllm:{name} 100" for name in names))
    counts = zip(names, (requests, prompt, generated), strict=True)
    after = parse_metrics("\n".join(f"vllm:{name} {100 + count}" for name, count in counts))
    assert passed("sole_user", evidence(before=before, after=after)) is good


def test_a_server_whose_counters_went_back_was_replaced() -> None:
    before, after = (parse_metrics(f"vllm:request_success_total {count}") for count in (9, 4))
    assert passed("same_server", evidence(before=before, after=after)) is False
    assert passed("same_server", evidence(before=after, after=before)) is True
    assert passed("same_server", evidence(before=before, after=None)) is False


def test_preemptions_may_be_wanted() -> None:
    before, after = (parse_metrics(f"vllm:num_preemptions_total {count}") for count in (0, 2))
    assert passed("no_preemptions", evidence(before=before, after=after)) is False
    wanted = Workload(name="w", kind="generate", allow_preemptions=True)
    assert PROOF["no_preemptions"](evidence(before=before, after=after, workload=wanted)) is None


@pytest.mark.parametrize(
    ("host", "pids", "good"),
    [
        ({"load1": "9.0", "cores": "2"}, (), None),
        ({"gpu.slowed": "", "gpu.pids": "0:7,0:8"}, (7, 8), True),
        ({"gpu.slowed": "", "gpu.pids": "0:7,1:8"}, (7, 8), True),
        ({"gpu.slowed": "", "gpu.pids": "0:7,0:99"}, (7, 8), False),
        ({"gpu.slowed": "", "gpu.pids": "0:7,1:99"}, (7, 8), True),
        ({"gpu.slowed": "", "gpu.pids": "0:99"}, (7, 8), True),
        ({"gpu.slowed": "0", "gpu.pids": "0:7"}, (7,), False),
        ({"gpu.slowed": "1", "gpu.pids": "0:7,1:99"}, (7,), True),
        ({"gpu.slowed": "1", "gpu.pids": ""}, (7,), False),
    ],
)
def test_the_host_is_quiet_as_far_as_it_can_be_seen(
    host: dict[str, str], pids: tuple[int, ...], good: bool | None
) -> None:
    assert passed("host_quiet", evidence(host=host, expected={"engine_pids": pids})) is good


def test_without_knowing_what_was_launched_nothing_is_claimed_of_it() -> None:
    e = evidence(expected=None, after=LABELS, models={"m": ""}, version="1")
    known = ("listener_is_ours", "served_model", "served_version", "settings_in_effect", "drafts_alive")
    assert [PROOF[name](e) for name in known] == [None] * 5
