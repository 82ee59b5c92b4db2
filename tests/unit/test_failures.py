"""Each way an engine fails is told by its root cause, on the logs of real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.failure_causes import CAUSES, TABLE, WHY
from orchestrator.failures import classify, clean, redact

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"

FAILED = {
    "v0.19.1_fail_batched_lt_seqs": ("batch_below_seqs", "max_num_batched_tokens (32) must be"),
    "v0.19.1_fail_draft_slots2": ("unsupported_drafter", "`pard_token`"),
    "v0.19.1_fail_draft_slots_exceed_budget": ("unsupported_drafter", "spec decode is not supported."),
    "v0.19.1_fail_eagle_no_model": ("bad_value", "without speculative model"),
    "v0.19.1_fail_gpu_mem_util_range": ("bad_value", "gpu_memory_utilization: Input should be less than"),
    "v0.19.1_fail_kv_pool_too_small": ("kv_below_max_model_len", "To serve at least one request"),
    "v0.19.1_fail_kv_space_exceeds_ram": ("out_of_memory_host", "no process of it left an error"),
    "v0.19.1_fail_max_model_len": ("bad_value", "User-specified max_model_len (100000)"),
    "v0.19.1_fail_missing_model": ("model_not_found", "Repo id must be in the form"),
    "v0.19.1_fail_mtp_no_head": ("unsupported_drafter", "Unsupported speculative method: 'mtp'"),
    "v0.19.1_fail_ngram_spec": ("unsupported_drafter", "spec decode is not supported."),
    "v0.19.1_fail_port_in_use": ("port_taken", "Address already in use"),
    "v0.19.1_fail_reasoning_parser": ("bad_value", "Reasoning parser 'bogus' not found"),
    "v0.19.1_fail_suffix_no_arctic": ("missing_package", "Arctic Inference is required"),
    "v0.19.1_fail_tool_parser": ("bad_value", "invalid tool call parser: bogus"),
    "v0.19.1_fail_unknown_flag": ("unknown_flag", "unrecognized arguments: --no-such-flag 1"),
    "v0.19.1_fail_unknown_spec_method": ("unknown_drafter", "SpeculativeConfig.method: Input should be"),
    "v0.32.0_dspark": ("unsupported_drafter", "does not support: dspark"),
    "v0.32.0_fail_batched_lt_seqs": ("batch_below_seqs", "max_num_batched_tokens (32) must be"),
    "v0.32.0_fail_draft_slots2": ("draft_slots_over_budget", "does not have enough slots"),
    "v0.32.0_fail_eagle_no_model": ("bad_value", "without speculative model"),
    "v0.32.0_fail_gpu_mem_util_range": ("bad_value", "gpu_memory_utilization: Input should be less than"),
    "v0.32.0_fail_kv_cache_dtype_fp8": ("bad_value", "FP8 KV cache on CPU requires"),
    "v0.32.0_fail_kv_pool_too_small": ("kv_below_max_model_len", "To serve at least one request"),
    "v0.32.0_fail_kv_space_exceeds_ram": ("out_of_memory_kv", "Available memory on node 0"),
    "v0.32.0_fail_max_model_len": ("bad_value", "User-specified max_model_len (100000)"),
    "v0.32.0_fail_missing_model": ("model_not_found", "Repo id must be in the form"),
    "v0.32.0_fail_mtp_no_head": ("unsupported_drafter", "Unsupported speculative method: 'mtp'"),
    "v0.32.0_fail_port_in_use": ("port_taken", "Address already in use"),
    "v0.32.0_fail_reasoning_parser": ("bad_value", "Reasoning parser 'bogus' not found"),
    "v0.32.0_fail_suffix_no_arctic": ("missing_package", "Arctic Inference is required"),
    "v0.32.0_fail_tool_parser": ("bad_value", "invalid tool call parser: bogus"),
    "v0.32.0_fail_unknown_flag": ("unknown_flag", "unrecognized arguments: --no-such-flag 1"),
    "v0.32.0_fail_unknown_spec_method": ("unknown_drafter", "SpeculativeConfig.method: Input should be"),
    "v0.32.0_mtp_qwen35_dummy": ("missing_package", "No module named 'torchvision'"),
    "v0.32.0_qwen35_dummy_nospec": ("missing_package", "No module named 'torchvision'"),
}
STARTED = sorted(path.stem for path in LOGS.glob("*.log") if path.stem not in FAILED)


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


@pytest.mark.parametrize("name", sorted(FAILED))
def test_a_real_failing_log_is_told_by_its_root_cause(name: str) -> None:
    cause, evidence = FAILED[name]
    found = classify(log(name), 1, phase="start")
    assert found.cause == cause
    assert evidence in found.evidence
    assert "pid=" not in found.evidence
    assert len(found.evidence) <= 300
    assert found.kind == CAUSES[cause].kind
    assert found.exit_code == 1


@pytest.mark.parametrize("name", [name for name in STARTED if name != "v0.32.0_qwen3next_dummy"])
def test_a_log_of_an_engine_that_served_has_no_cause_in_it(name: str) -> None:
    assert classify(log(name), 0, phase="start").cause == "unknown"
    assert classify(log(name), 0, phase="load").cause == "crashed_under_load"


def test_every_failing_fixture_is_expected_by_name() -> None:
    served_after_all = {"v0.32.0_fail_draft_slots_exceed_budget"}
    on_disk = {path.stem for path in LOGS.glob("*_fail_*.log")} - served_after_all
    assert on_disk <= FAILED.keys()


@pytest.mark.parametrize(
    ("name", "available"), [("v0.19.1_fail_kv_pool_too_small", 1.0), ("v0.32.0_fail_kv_pool_too_small", 0.99)]
)
def test_a_kv_shortage_is_told_in_numbers(name: str, available: float) -> None:
    found = classify(log(name), 1, phase="start")
    assert (found.needed_gib, found.available_gib) == (2.81, available)
    assert f"needed 2.81 GiB, available {available:g} GiB" in found.message


def test_a_refused_kv_size_on_a_cpu_is_told_in_numbers() -> None:
    found = classify(log("v0.32.0_fail_kv_space_exceeds_ram"), 1, phase="start")
    assert (found.needed_gib, found.available_gib) == (200.0, 15.88)


def test_an_engine_that_dies_at_its_first_request_is_told_by_what_killed_it() -> None:
    found = classify(log("v0.32.0_qwen3next_dummy"), 0, phase="load")
    assert found.cause == "crashed_under_load"
    assert found.evidence == "AssertionError: CPU GDN attention requires BF16."


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    " 139.8 GiB of which 512.00 MiB is free."
)
BUSY = (
    "ValueError: Free memory on device cuda:0 (30.1/139.8 GiB) on startup is less than desired GPU memory"
    " utilization (0.92, 128.6 GiB). Decrease it."
)
CORE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'core': %d}"


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("load_model", "out_of_memory_weights"),
        ("initialize_kv_cache", "out_of_memory_kv"),
        ("profile_run", "out_of_memory_activation"),
        ("capture_model", "out_of_memory_graphs"),
    ],
)
def test_device_memory_that_ran_out_is_told_by_the_stage_of_its_traceback(function: str, cause: str) -> None:
    prefix = "(EngineCore pid=7) ERROR 11-29 12:00:00 [core.py:1] "
    frames = [
        "Traceback (most recent call last):",
        f'  File "SITE/vllm/x.py", line 1, in {function}',
        "    f()",
    ]
    inner = ['  File "SITE/torch/y.py", line 2, in _dummy_run', "    g()", OOM]
    end = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    text = "\n".join([prefix + line for line in frames + inner] + [end])
    found = classify(text, 1, phase="start")
    assert found.cause == cause
    assert (found.needed_gib, found.available_gib) == (2.0, 0.5)
    assert classify(text, 1, phase="load").cause == "out_of_memory_load"


@pytest.mark.parametrize(
    ("reached", "cause"),
    [
        ("", "out_of_memory_weights"),
        ("Model loading took 30.8 GiB memory and 9.0 seconds", "out_of_memory_activation"),
        ("GPU KV cache size: 448,448 tokens", "out_of_memory_graphs"),
    ],
)
def test_without_a_traceback_the_stage_is_what_the_log_had_reached(reached: str, cause: str) -> None:
    text = f"INFO 11-29 12:00:00 [a.py:1] {reached}\n{OOM}"
    assert classify(text, 1, phase="start").cause == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing it.", "out_of_memory_kv"),
        ("ValueError: Cannot auto-fit max_model_len: not even one block fits", "kv_below_max_model_len"),
        ("ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (128)", "out_of_memory_kv"),
        (BUSY, "device_busy"),
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
            "out_of_memory_activation",
        ),
        ("ValueError: -1024, which does not allow any tokens to be scheduled", "draft_slots_over_budget"),
        ("  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1]", "unknown_flag"),
        ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp5'", "bad_value"),
        (
            "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.",
            "architecture_unsupported",
        ),
        ("TimeoutError: Timed out waiting for engine core processes to start.", "start_timed_out"),
        ("OSError: [Errno 28] No space left on device: '/models/x'", "disk_full_log"),
        ("VENV/bin/python: No module named vllm.entrypoints", "missing_package"),
        ("ImportError: libcudart.so.13: cannot open shared object file: No such file", "missing_package"),
        (CORE % -9, "out_of_memory_host"),
        (CORE % -4, "illegal_instruction"),
        ("repeak: the log grew past 268435456 bytes", "disk_full_log"),
        ("repeak: the kernel ended a process of this machine for lack of memory", "out_of_memory_host"),
        ("repeak: cannot start No such file or directory: VENV/bin/vllm", "missing_package"),
    ],
)
def test_the_words_of_other_versions_and_devices_are_known(line: str, cause: str) -> None:
    assert classify(line, 1, phase="start").cause == cause


def test_a_busy_device_is_told_in_numbers() -> None:
    found = classify(BUSY, 1, phase="start")
    assert (found.needed_gib, found.available_gib) == (128.6, 30.1)


def test_a_message_that_merely_informs_is_no_error() -> None:
    line = "(EngineCore pid=3) INFO 11-29 12:00:00 [w.py:1] ValueError: No available memory for the cache blocks"
    assert classify(line, 1, phase="start").cause == "unknown"


def test_an_empty_log_is_told_by_its_exit_code() -> None:
    assert classify("", -4, phase="start").cause == "illegal_instruction"
    assert classify("", -9, phase="start").cause == "out_of_memory_host"
    killed = classify("", -9, phase="load")
    assert (killed.cause, killed.evidence) == ("crashed_under_load", "ended by SIGKILL")
    assert classify("", 3, phase="start").evidence == "exit code 3"


@pytest.mark.parametrize("phase", ["start", "load"])
def test_a_kill_that_was_not_the_kernels_says_nothing_of_the_configuration(phase: str) -> None:
    found = classify("", -9, phase=phase, kernel_killed=False)
    assert (found.cause, found.kind) == ("killed", "transient")
    assert classify("", -9, phase="start", kernel_killed=True).cause == "out_of_memory_host"
    core = classify(CORE % -9, 1, phase="start", kernel_killed=False)
    assert (core.cause, core.kind) == ("killed", "transient")
    # As vLLM 0.26.0 on a GPU tells of a core that was killed while it captured graphs.
    untold = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    for kernel_killed, cause in ((False, "killed"), (True, "out_of_memory_host"), (None, "out_of_memory_host")):
        assert classify(untold, 1, phase="start", kernel_killed=kernel_killed).cause == cause


def test_time_that_ran_out_yields_to_a_cause_the_log_names() -> None:
    note = "repeak: not ready after 600 s; last: Auto-fit max_model_len is at work"
    slow = classify(note, None, phase="start", timed_out=True)
    assert (slow.cause, slow.evidence) == ("start_timed_out", note)
    known = classify(f"{OOM}\n{note}", None, phase="start", timed_out=True)
    assert known.cause == "out_of_memory_weights"


def test_a_silent_host_memory_note_yields_to_a_cause_the_log_names() -> None:
    text = "repeak: the kernel ended a process of this machine for lack of memory\n" + log("v0.32.0_fail_port_in_use")
    assert classify(text, 1, phase="start").cause == "port_taken"


def test_every_cause_says_whose_property_it_is_and_every_pattern_has_a_cause() -> None:
    assert {entry.kind for entry in CAUSES.values()} == WHY.keys()
    assert {cause for cause, _ in TABLE} - CAUSES.keys() == {"out_of_memory"}
    assert CAUSES["kv_below_max_model_len"].kind == "infeasible"
    assert CAUSES["port_taken"].kind == CAUSES["device_busy"].kind == "transient"
    assert CAUSES["missing_package"].kind == CAUSES["illegal_instruction"].kind == "environment"


@pytest.mark.parametrize(
    "secret",
    [
        "token hf_AbCdEfGhIjKlMnOp was refused",
        "--api-key s3cretvalue --port 1",
        "'api_key': ['s3cretvalue']",
        "Authorization: Bearer s3cretvalue",
        "HF_TOKEN=s3cretvalue",
        "https://user:s3cretvalue@registry.example/simple",
        "password = s3cretvalue",
    ],
)
def test_secrets_do_not_get_into_evidence(secret: str) -> None:
    found = classify(f"RuntimeError: {secret}", 1, phase="start").evidence
    assert "s3cretvalue" not in found
    assert "AbCdEfGhIjKlMnOp" not in found
    assert "***" in found


def test_redaction_leaves_ordinary_words_alone() -> None:
    for text in (
        "max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64).",
        "GPU KV cache size: 23,296 tokens",
        "http://127.0.0.1:8000/health",
        "'api_key': None",
    ):
        assert redact(text) == text


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("(APIServer pid=9) INFO 11-29 12:32:22 [utils.py:233] non-default args", "INFO", "non-default args"),
        ("(Worker_TP0 pid=9) ERROR 11-29 12:32:22 [a.py:1] ValueError: x", "ERROR", "ValueError: x"),
        ("INFO:     Started server process [9]", "INFO", "Started server process [9]"),
        ("\x1b[0;36m(EngineCore pid=9)\x1b[0;0m ValueError: x", "", "ValueError: x"),
        ("(EngineCore pid=9) ", "", ""),
        ("plain", "", "plain"),
    ],
)
def test_a_log_line_is_cleaned_of_its_prefix(line: str, level: str, text: str) -> None:
    assert clean(line) == (level, text)
