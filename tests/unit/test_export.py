"""Exports: what is pasted is what was measured, and its reader takes it."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import two_engines as two
import yaml
from two_engines import NEW

from orchestrator.compare import find_studies, peaks_of
from orchestrator.errors import PlanError
from orchestrator.export import Serving, export, k_schedule, serving
from orchestrator.serve_line import parse_serve_line
from search_spaces.configuration import Configuration

HOSTILE = "a \"b\" $HOME `x` %h \\ 'c' é"

# The part of the compose specification that is used here.
COMPOSE = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {
        "services": {
            "additionalProperties": {
                "type": "object",
                "required": ["image", "command"],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string"},
                    "entrypoint": {"type": "array", "items": {"type": "string"}},
                    "command": {"type": "array", "items": {"type": "string"}},
                    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                    "ports": {"type": "array", "items": {"type": "string"}},
                    "ipc": {"type": "string"},
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "healthcheck": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "test": {"type": "array", "items": {"type": "string"}},
                            "interval": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "timeout": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "start_period": {"type": "string", "pattern": r"^\d+[smh]$"},
                            "retries": {"type": "integer"},
                        },
                    },
                    "volumes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "source", "target"],
                            "properties": {"read_only": {"type": "boolean"}},
                        },
                    },
                    "deploy": {"type": "object"},
                },
            }
        }
    },
}


def one(**changes: object) -> Serving:
    held: dict[str, object] = {
        "start": ("/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve"),
        "model": "/models/a b",
        "flags": (
            *("--max-model-len", "2048", "--no-enable-prefix-caching", "--enforce-eager"),
            *("--gpu-memory-utilization", "0.9", "--served-model-name", "x", "y", "--seed=-1"),
            *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'),
        ),
        "env": {"VLLM_X": HOSTILE},
        "stack": {"vllm": "0.32.0", "gpu": "Card", "gpu.count": "2"},
        "title": "ngram k=4: 100 +- 1\nsecond line",
    }
    return Serving.model_validate(held | changes)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    two.write(tmp_path)
    _, new = find_studies("vllm-0.27.1", NEW)
    return new, peaks_of(new)["generate"]


def test_the_line_reads_back_as_the_flags_that_were_launched(tuned) -> None:
    shelf, peak = tuned
    text = export(serving(shelf, peak, two.plan()), "serve")
    line = parse_serve_line("\n".join(row for row in text.splitlines() if not row.startswith("#")))
    assert line.model == "org/model"
    assert line.args["max_num_seqs"] == 8
    assert line.args["enable_prefix_caching"] is False
    assert line.args["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 8}
    assert line.env == {"VLLM_MARLIN_USE_ATOMIC_ADD": "0"}
    assert "ngram k=8" in text.splitlines()[0]
    assert "+-" in text.splitlines()[0]


def test_a_shell_gives_every_word_back_as_it_was(tmp_path: Path) -> None:
    text = export(one(), "serve").replace("vllm serve", "show serve", 1)
    script = f'show() {{ printf "%s\\0" "$VLLM_X" "$@"; }}\n{text}'
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=30).stdout
    assert out.decode().split("\0")[:-1] == [HOSTILE, "serve", "/models/a b", *one().flags]


def test_the_yaml_holds_every_flag_once_and_no_false(tmp_path: Path) -> None:
    text = export(one(), "yaml")
    data = yaml.safe_load(text)
    assert data == {
        "model": "/models/a b",
        "max-model-len": 2048,
        "no-enable-prefix-caching": True,
        "enforce-eager": True,
        "gpu-memory-utilization": 0.9,
        "served-model-name": ["x", "y"],
        "seed": -1,
        "speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}',
    }
    assert f"# export VLLM_X={shlex.quote(HOSTILE)}" in text


@pytest.mark.parametrize("stack", [one().stack, {"vllm": "0.32.0+cpu"}])
def test_the_compose_service_fits_the_schema_and_keeps_its_words(stack: dict[str, str]) -> None:
    data = yaml.safe_load(export(one(stack=stack), "compose"))
    jsonschema.validate(data, COMPOSE)
    service = data["services"]["vllm"]
    assert [word.replace("$$", "$") for word in service["command"]] == ["/models/a b", *one().flags]
    assert service["environment"]["VLLM_X"].replace("$$", "$") == HOSTILE
    assert "$" not in service["environment"]["VLLM_X"].replace("$$", "")
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert ("deploy" in service) == ("gpu" in stack)
    assert service["image"] == ("vllm/vllm-openai:v0.32.0" if "gpu" in stack else "engine:0.32.0")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="Debian's package systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "vllm.service"
    unit.write_text(export(one(start=("/bin/true", "serve")), "systemd"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert not [line for line in done.stderr.splitlines() if "vllm.service" in line], done.stderr


def test_the_unit_protects_what_systemd_would_replace() -> None:
    text = export(one(), "systemd")
    assert r'Environment="VLLM_X=a \"b\" $HOME `x` %%h \\ ' in text
    assert '"{\\"method\\": \\"ngram\\", \\"num_speculative_tokens\\": 4}"' in text


def test_a_title_of_several_lines_stays_a_comment() -> None:
    for kind in ("serve", "yaml", "compose", "systemd"):
        assert export(one(), kind).startswith("# ngram k=4: 100 +- 1\n# second line\n")


def streams(tmp_path: Path, *, version: str = "0.32.0"):
    """A plan of two concurrencies: alone k = 8 is best, with sixteen streams k = 2."""
    loads = [
        {"name": "alone", "kind": "generate", "prompt_tokens": 64, "output_tokens": 64},
        {"name": "many", "kind": "generate", "prompt_tokens": 64, "output_tokens": 64, "concurrency": 16},
    ]
    wanted = two.plan("wide", workloads=loads)
    two.write(tmp_path, wanted=wanted)
    (new,) = find_studies("bwid00000000")
    slow = {0: 100.0, 2: 150.0, 4: 120.0, 8: 90.0}

    def many(record):
        windows = tuple(
            w.model_copy(update={"metrics": {**w.metrics, "decode_tok_s": slow[record.configuration.k]}})
            if w.workload.name == "many"
            else w
            for w in record.windows
        )
        return record.model_copy(update={"windows": windows})

    items = {**new.opened.fingerprint.items, "vllm": version}
    opened = new.opened.model_copy(update={"fingerprint": two.StackFingerprint(items=items)})
    return new.model_copy(update={"records": tuple(map(many, new.records)), "opened": opened}), wanted


def test_k_by_batch_size_follows_what_each_concurrency_liked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    shelf, wanted = streams(tmp_path)
    found = k_schedule(shelf, peaks_of(shelf)["alone"], wanted)
    config = json.loads(found.flags[found.flags.index("--speculative-config") + 1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 8], [2, 16, 2]]
    assert config["num_speculative_tokens"] == 8


def test_a_version_without_the_schedule_and_one_stream_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned
) -> None:
    shelf, wanted = streams(tmp_path, version="0.23.0")
    with pytest.raises(PlanError, match=r"0\.23\.0 has no schedule"):
        k_schedule(shelf, peaks_of(shelf)["alone"], wanted)
    with pytest.raises(PlanError, match="two concurrencies"):
        k_schedule(*tuned, two.plan())


def test_a_peak_that_no_trial_here_measured_is_an_error(tuned) -> None:
    shelf, peak = tuned
    other = peak.model_copy(update={"configuration": Configuration(values={"drafter": "none", "x": 1})})
    with pytest.raises(PlanError, match="never measured"):
        serving(shelf, other, None)
