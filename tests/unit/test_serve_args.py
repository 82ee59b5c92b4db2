"""Serve arguments."""

from __future__ import annotations

import json

import pytest

from search_spaces.configuration import Configuration
from search_spaces.serve_args import number, serve_args, serve_flags
from search_spaces.space_input import SpaceInput

SPACE = SpaceInput.model_validate(
    {
        "drafter": {
            "none": {},
            "ngram": {"k": [2, 8], "prompt_lookup_min": 2},
            "dspark": {"k": [4], "model": "a/b"},
        },
        "max_num_seqs": [8, 16],
        "cudagraph_mode": ["default", "FULL"],
        "adaptive_verification": [False, True],
        "enable_prefix_caching": [False, True],
        "model_runner_v2": ["default", 0, 1],
        "watermark": [0, 0.05],
    }
).build()


def args(chosen=None, serve=None, **outside):
    configuration = SPACE.complete(chosen or {})
    whole = Configuration(values={**configuration.values, **outside})
    return serve_args(whole, serve=serve or {}, space=SPACE)


def after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_arguments_are_full_flags_in_one_order():
    argv, env = args({"watermark": 0.05}, {"max_model_len": 2048})
    assert argv == [
        "--no-enable-prefix-caching", "--max-model-len", "2048", "--max-num-seqs", "8", "--watermark", "0.05",
    ]  # fmt: skip
    assert env == {}


def test_the_order_of_a_configurations_values_changes_nothing():
    values = {"max_num_seqs": 16, "drafter": "ngram", "k": 8, "watermark": 0}
    backwards = dict(reversed(values.items()))
    assert serve_args(Configuration(values=values), serve={}, space=SPACE) == serve_args(
        Configuration(values=backwards), serve={}, space=SPACE
    )


def test_a_drafter_becomes_the_speculative_configuration():
    argv, _ = args({"drafter": "ngram", "k": 8})
    assert json.loads(after(argv, "--speculative-config")) == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
    }
    assert "--speculative-config" not in args()[0]


def test_a_knob_within_the_speculative_configuration_is_put_into_it():
    argv, _ = args({"drafter": "dspark", "adaptive_verification": True})
    config = json.loads(after(argv, "--speculative-config"))
    assert config["enable_adaptive_verification"] is True
    assert config["method"] == "dspark"
    assert argv.count("--speculative-config") == 1


def test_a_key_of_a_flag_is_merged_with_what_the_plan_fixes():
    argv, _ = args({"cudagraph_mode": "FULL"}, {"compilation_config": {"mode": 3}})
    assert json.loads(after(argv, "--compilation-config")) == {"mode": 3, "cudagraph_mode": "FULL"}


def test_the_choice_default_leaves_the_engine_to_decide():
    argv, env = args({"model_runner_v2": "default", "cudagraph_mode": "default"})
    assert "--compilation-config" not in argv
    assert env == {}


def test_a_variable_is_set_in_the_environment_and_not_in_the_arguments():
    argv, env = args({"model_runner_v2": 1}, None, **{"env.OTHER": "x"})
    assert env == {"OTHER": "x", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert not any("VLLM" in one for one in argv)


def test_an_incumbents_own_flags_stand_beside_its_knobs():
    argv, _ = args({}, {"dtype": "auto"}, **{"serve.dtype": "half", "serve.compilation_config": '{"mode": 3}'})
    assert after(argv, "--dtype") == "half"
    assert json.loads(after(argv, "--compilation-config")) == {"mode": 3}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["--x-y"]),
        (False, ["--no-x-y"]),
        (None, []),
        ("default", []),
        (3.0, ["--x-y", "3"]),
        (0.9, ["--x-y", "0.9"]),
        (-1, ["--x-y=-1"]),
        ("-O2", ["--x-y=-O2"]),
        (["a", "b"], ["--x-y", "a", "b"]),
        ({"b": 1, "a": [2]}, ["--x-y", '{"a": [2], "b": 1}']),
    ],
)
def test_each_kind_of_value_has_its_form(value, expected):
    assert serve_args(Configuration(values={}), serve={"x_y": value}, space=SPACE)[0] == expected


def test_a_flag_without_a_negative_form_is_left_out_when_false():
    assert serve_args(Configuration(values={}), serve={"disable_log_stats": False}, space=SPACE)[0] == []


def test_a_value_that_no_knob_explains_is_refused():
    with pytest.raises(ValueError, match="mystery=3"):
        args({}, None, mystery=3)


def test_only_what_is_said_is_a_flag() -> None:
    flags, env = serve_flags(SPACE.complete({}), serve={"max_model_len": "32k", "seed": None}, space=SPACE)
    assert flags == {
        "--enable-prefix-caching": False, "--max-model-len": "32k", "--max-num-seqs": 8, "--watermark": 0,
    }  # fmt: skip
    assert env == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("2G", 2**31), ("1g", 10**9), (0.9, 0.9), (8, 8), ("8", 8)]
    + [(text, None) for text in ("auto", "", "k", "fp8", "inf", "nan", "1e999", True, None, [1])],
)
def test_a_number_is_read_as_the_engine_s_parser_reads_it(text: object, value: float | None) -> None:
    assert number(text) == value
