"""Serve lines as people paste them."""

from __future__ import annotations

import json

import pytest

from orchestrator.serve_line import incumbent_configuration, is_secret, parse_serve_line
from search_spaces.serve_args import serve_args
from search_spaces.space_input import SpaceInput

SPACE = SpaceInput.model_validate(
    {
        "drafter": {"none": {}, "mtp": {"k": [1, 2]}},
        "max_num_seqs": [8, 16],
        "cudagraph_mode": ["default", "FULL"],
        "model_runner_v2": ["default", 1],
    }
).build()


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("vllm serve M --max-num-seqs 8", {"max_num_seqs": 8}),
        ("vllm serve M --max_num_seqs=8", {"max_num_seqs": 8}),
        ("vllm serve M --gpu-memory-utilization 0.9", {"gpu_memory_utilization": 0.9}),
        ("vllm serve M --max-model-len -1", {"max_model_len": -1}),
        ("vllm serve M --max-model-len 32k", {"max_model_len": "32k"}),
        ("vllm serve M --no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("vllm serve M --enforce-eager", {"enforce_eager": True}),
        ("vllm serve --enforce-eager M", {"enforce_eager": True}),
        ("vllm serve --max-num-seqs 8 M", {"max_num_seqs": 8}),
        ("vllm serve M -O3", {"optimization_level": 3}),
        ("vllm serve M -O 2", {"optimization_level": 2}),
        ("vllm serve M -O=1", {"optimization_level": 1}),
        ("vllm serve M -tp 2", {"tensor_parallel_size": 2}),
        ("vllm serve M -cc.mode=3 -cc.pass.x 1", {"compilation_config": {"mode": 3, "pass": {"x": 1}}}),
        ("vllm serve M -cc '{\"mode\": 3}' -cc.y=a", {"compilation_config": {"mode": 3, "y": "a"}}),
        (
            "vllm serve M --lora-modules a=b c=d --dtype half",
            {"lora_modules": ["a=b", "c=d"], "dtype": "half"},
        ),
        ("vllm serve M --max-num-seqs 4 --max-num-seqs 8", {"max_num_seqs": 8}),
        ("vllm serve M \\\n  --max-num-seqs 8 \\\r\n  --dtype half", {"max_num_seqs": 8, "dtype": "half"}),
        ("nohup /x/bin/vllm serve M --dtype half > log 2>&1 &", {"dtype": "half"}),
        ("vllm serve M --max-num-seqs 8 2>&1 | tee log", {"max_num_seqs": 8}),
        ("python3 -m vllm.entrypoints.openai.api_server --model M --dtype half", {"dtype": "half"}),
        (
            "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.26.0 --model M --dtype half",
            {"dtype": "half"},
        ),
        ("docker run registry.example:5000/team/vllm-openai:x M --dtype half", {"dtype": "half"}),
        ("vllm serve M --revision 1234567", {"revision": 1234567}),
        ("vllm serve M", {}),
    ],
)
def test_a_line_is_read(line, args):
    found = parse_serve_line(line)
    assert found.model == "M"
    assert found.args == args


def test_variables_before_the_command_are_its_environment():
    assert parse_serve_line("A=1 VLLM_X='b c' vllm serve M").env == {"A": "1", "VLLM_X": "b c"}
    assert parse_serve_line("docker run -e A=1 --env=B=2 vllm/vllm-openai:latest M").env == {
        "A": "1",
        "B": "2",
    }


def test_secrets_are_left_out_and_named_and_so_is_what_each_launch_sets():
    line = (
        "HF_TOKEN=hf_secret HTTPS_PROXY=http://me:pw_secret@proxy vllm serve M --api-key sk_secret "
        "--hf-token=t_secret --port 8000 --host 0.0.0.0 --served-model-name m --max-num-seqs 8"
    )
    found = parse_serve_line(line)
    assert "secret" not in found.model_dump_json()
    assert found.args == {"max_num_seqs": 8}
    assert set(found.dropped) == {
        "HF_TOKEN", "HTTPS_PROXY", "--api-key", "--hf-token", "--port", "--host", "--served-model-name",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["HF_TOKEN", "api_key", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
def test_a_secret_is_known_by_its_name(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens",
        "tokenizer",
        "long_prefill_token_threshold",
        "skip_tokenizer_init",
        "spec_tokens",
    ],
)
def test_tokens_that_are_counted_are_no_secrets(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no `vllm serve`"),
        ("python train.py", "no `vllm serve`"),
        ("vllm serve M --x 'open", "split into words"),
        ("vllm serve M --config c.yaml", "write them as flags"),
    ],
)
def test_what_is_no_serve_line_is_refused(line, says):
    with pytest.raises(ValueError, match=says):
        parse_serve_line(line)


def test_nothing_in_a_line_is_run(tmp_path):
    target = tmp_path / "made"
    parse_serve_line(f"vllm serve M --x $(touch {target}) --y `touch {target}`; touch {target}")
    assert not target.exists()


def incumbent(text, **fixed):
    return incumbent_configuration(parse_serve_line(text), SPACE, fixed)


def test_an_incumbent_takes_its_knobs_from_the_line_and_leaves_the_others_to_the_engine():
    found, extra = incumbent("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve M --max-num-seqs 8 -cc.cudagraph_mode=FULL")
    assert found.values == {
        "drafter": "none",
        "cudagraph_mode": "FULL",
        "max_num_seqs": 8,
        "model_runner_v2": 1,
    }
    assert extra == {}
    assert incumbent("vllm serve M")[0].values == {"drafter": "none"}


def test_what_the_space_has_no_knob_for_stays_with_the_incumbent_unless_every_launch_has_it():
    line = "VLLM_A=1 VLLM_B=2 vllm serve M --dtype half --max-model-len 2048 -cc.mode=3 -cc.cudagraph_mode=FULL"
    found, extra = incumbent_configuration(parse_serve_line(line), SPACE, {"max_model_len": 2048}, {"VLLM_B": "2"})
    assert extra == {"serve.dtype": "half", "serve.compilation_config": '{"mode": 3}', "env.VLLM_A": "1"}
    argv, env = serve_args(found, serve={"max_model_len": 2048}, space=SPACE)
    assert argv[argv.index("--dtype") + 1] == "half"
    assert json.loads(argv[argv.index("--compilation-config") + 1]) == {"mode": 3, "cudagraph_mode": "FULL"}
    assert env == {"VLLM_A": "1"}


@pytest.mark.parametrize(
    "text",
    [
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2, "moe_backend": "triton"}\'',
        '--speculative_config={"method":"qwen3_next_mtp","num_speculative_tokens":2,"moe_backend":"triton"}',
        "--speculative-config.method mtp -sc.num_speculative_tokens=2 -sc.moe_backend triton",
        "--spec-method mtp --spec-tokens 2 -sc.moe_backend=triton",
    ],
)
def test_every_way_to_write_a_drafter_gives_the_same_configuration(text):
    line = text if "'" in text or "{" not in text else text.replace("{", "'{").replace("}", "}'")
    found, extra = incumbent(f"vllm serve M {line}")
    assert found.values == {"drafter": "mtp", "k": 2, "drafter.moe_backend": "triton"}
    assert extra == {}
