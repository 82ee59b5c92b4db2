"""What engines of several versions say of themselves is read from their real logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engine_log import last_reason, reported

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "v0.19.1_nospec_nobind",
            {
                "version": "0.19.1",
                "kv_cache_tokens": "23296",
                "max_concurrency": "11.38",
                "model_runner": "V1",
                "prefix_caching": "False",
                "speculative_config": "None",
                "init_s": "0.76",
                "effective.dtype": "torch.float32",
            },
        ),
        ("v0.19.1_ok_gpu_mem_util_020", {"kv_cache_gib": "11.77", "kv_cache_tokens": "274176"}),
        (
            "v0.26.0_ngram_k4",
            {
                "version": "0.26.0",
                "kv_cache_tokens": "23296",
                "attention_backend": "CPU_ATTN",
                "async_scheduling": "disabled",
                "speculative_config": "SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)",
                "effective.async_scheduling": "disabled",
                "effective.model_runner": "V1",
                "effective.max_num_scheduled_tokens": "2048",
                "threads": "nobind",
            },
        ),
        (
            "v0.27.1_hybrid_dummy_bf16",
            {
                "version": "0.27.1",
                "kv_cache_tokens": "5368627",
                "max_concurrency": "1310.70",
                "prefix_caching": "False",
                "effective.attention_block_size": "640",
            },
        ),
        (
            "v0.32.0_hybrid_dummy_bf16",
            {
                "kv_cache_tokens": "4129713",
                "max_concurrency": "1008.23",
                "prefix_caching": "True",
                "effective.mamba_cache_mode": "align",
            },
        ),
        ("v0.32.0_ok_gpu_mem_util_020", {"kv_cache_gib": "2.48", "kv_cache_tokens": "57856"}),
        ("v0.32.0_ok_kv_bytes_300M", {"kv_cache_gib": "0.29", "kv_cache_tokens": "6784"}),
        ("v0.32.0_compile_cold", {"init_s": "138.62", "effective.torch_threads": "1"}),
        ("v0.32.0_fail_draft_slots_exceed_budget", {"max_num_batched_tokens": "64"}),
    ],
)
def test_a_real_log_gives_the_facts_its_version_tells(name: str, facts: dict[str, str]) -> None:
    found = reported(log(name))
    assert {key: found.get(key) for key in facts} == facts


def test_a_drafter_that_tells_its_own_limits_does_not_hide_the_target_s() -> None:
    found = reported(log("v0.32.0_draft_model_self"))
    assert found["max_model_len"] == "2048"
    assert found["effective.draft_max_model_len"] == "2048"
    assert reported(log("v0.32.0_mtp_mimo_dummy"))["architecture"] == "MiMoForCausalLM"


def test_two_processes_that_contradict_each_other_are_both_told() -> None:
    assert reported(log("v0.19.1_nospec_nobind"))["async_scheduling"] == "enabled, disabled"


def test_what_was_not_said_is_absent_rather_than_guessed() -> None:
    assert reported("") == {}
    assert "model_runner" not in reported(log("v0.32.0_dspark"))
    assert "async_scheduling" not in reported(log("v0.32.0_nospec_nobind"))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Using V2 Model Runner", "model_runner", "V2"),
        ("Model loading took 30.8021 GiB memory and 9.123456 seconds", "weights_gib", "30.8021"),
        ("Model loading took 30.8 GiB and 9.123456 seconds", "weights_s", "9.123456"),
        ("Available KV cache memory: 77.41 GiB", "kv_cache_gib", "77.41"),
        (
            "reserved 20.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config",
            "kv_cache_gib",
            "20.0",
        ),
        (
            "GPU + host KV cache size: 1,234,567 tokens, Maximum concurrency for 8,192 tokens",
            "kv_cache_tokens",
            "1234567",
        ),
        (
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
            "attention_backend",
            "FLASH_ATTN",
        ),
        ("Using AttentionBackendEnum.FLASHINFER backend.", "attention_backend", "FLASHINFER"),
        ("Graph capturing finished in 18 secs, took 0.96 GiB", "graphs_gib", "0.96"),
        ("Estimated CUDA graph memory: 1.10 GiB total", "graphs_estimated_gib", "1.10"),
        (
            "init engine (profile, create kv cache, warmup model) took 70.62 s (compilation: 42.18 s)",
            "compile_s",
            "42.18",
        ),
        ("torch.compile took 31.50 s in total", "compile_s", "31.50"),
        (
            "within max_num_batched_tokens=2048. Overriding max_num_active_seqs from 1024 to 256.",
            "effective.max_num_active_seqs",
            "256",
        ),
        (
            "Disabling prefix caching: model has non-causal attention layers.",
            "effective.prefix_caching",
            "Disabling",
        ),
        (
            "method `qwen3_next_mtp` is deprecated and replaced with mtp.",
            "effective.speculative_method",
            "mtp",
        ),
        (
            "Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE.",
            "effective.cudagraph_mode",
            "PIECEWISE",
        ),
        (
            "Unknown vLLM environment variable detected: VLLM_NOPE",
            "effective.unknown_environment",
            "VLLM_NOPE",
        ),
        ("Auto-fit max_model_len: reduced from 262144 to 65536 to fit", "effective.max_model_len", "65536"),
    ],
)
def test_lines_of_gpu_engines_and_later_versions_are_read(line: str, name: str, value: str) -> None:
    head = "(EngineCore pid=7) INFO 11-29 12:00:00 [core.py:1] "
    begun = f"{head}Initializing a V1 LLM engine (v0.33.0) with config: model='m', speculative_config=None, x=1"
    assert reported(f"{begun}\n{head}{line}")[name] == value


def test_a_moe_backend_is_not_taken_for_the_attention_backend() -> None:
    line = "INFO 11-29 12:00:00 [a.py:1] Using CPU Unquantized MoE backend out of potential backends: ['CPU']."
    assert "attention_backend" not in reported(line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        (
            "(EngineCore pid=7) INFO 11-29 12:00:00 [a.py:1] Starting to load model m...\n\n",
            "Starting to load model m...",
        ),
        ("shards:   0% Completed | 0/4\rshards:  50% Completed | 2/4\r", "shards: 50% Completed | 2/4"),
        ('Warming up.\nTraceback (most recent call last):\n  File "x"\n    f()\n', "Warming up."),
        ('Ready.\n(APIServer pid=7) INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 200 OK\n', "Ready."),
        ("Using token=hf_AbCdEfGhIjKl now", "Using token=*** now"),
    ],
)
def test_the_last_line_that_means_something_is_the_reason(text: str, reason: str) -> None:
    assert last_reason(text) == reason


def test_a_long_reason_is_cut_to_fit_a_line() -> None:
    assert len(last_reason("word " * 100)) == 100
    assert last_reason("word " * 100).endswith("…")


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_every_real_log_yields_one_short_line(path: Path) -> None:
    reason = last_reason(path.read_text())
    assert 0 < len(reason) <= 100
    assert "\n" not in reason
    assert "pid=" not in reason.split(" from ", maxsplit=1)[0]
