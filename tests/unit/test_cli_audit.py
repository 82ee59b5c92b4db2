"""`repeak audit` and `repeak measure`: what people type, see and get as an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner, Result
from hybrid_trial import ARGV, LABELLED, LOG, STACK
from trial_records import study, trial
from truth_server import serving

from orchestrator import cli_audit
from orchestrator.audit_facts import AuditRow
from orchestrator.candidates import Target
from orchestrator.card import Card, find_card
from orchestrator.cli import cli
from orchestrator.cli_audit import audit_table, card_rows
from orchestrator.errors import MeasurementFailed, PlanError
from orchestrator.launch_noise import LaunchNoise
from orchestrator.peak import Peak
from search_spaces.configuration import Configuration
from trackers.entries import StudyClosed
from trackers.journal import Journal
from trackers.records import Launch, StackFingerprint

NONE = Configuration(values={"drafter": "none"})
# Two at once: a single stream of milliseconds has proofs of time that a busy machine fails.
QUICK = ("-c", "2", "--requests", "2", "--output-tokens", "12", "--prompt-tokens", "40", "--precision", "50")
QUIET = {"ttft_ms": 20, "itl_ms": 4}


def run(*arguments: str) -> Result:
    """As `main` runs it: errors come out as they are, an exit code as the return value."""
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False)


def code(*done: Result) -> list[int]:
    return [one.return_value or 0 for one in done]


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def journal(tmp_path: Path, *engines: tuple[str, dict[str, str]]) -> None:
    """A plan `tuned` whose studies each have one measured trial and its peak."""
    log = tmp_path / "engine.log"
    log.write_text(LOG)
    with Journal(tmp_path / "home" / "journals" / "tuned") as kept:
        for number, (name, labels) in enumerate(engines):
            stack = StackFingerprint(items=STACK)
            launch = Launch(launch=0, started_at=0, ready_s=1, argv=ARGV, reported=LABELLED | labels, log_path=str(log))
            record = trial(
                f"{name}-0001", configuration=NONE, study=name, launches=(launch,), windows=(),
                fingerprint=stack,
            )  # fmt: skip
            opened = study(name, facts={"engine": name}, fingerprint=stack, started_at=float(number))
            kept.study(opened)
            kept.trial(record)
            target = Target(name="edit", metric="decode_tok_s", workloads=("edit",))
            peak = Peak(
                target=target, configuration=NONE, estimate=record.estimates["edit/decode_tok_s"],
                verdict="unconfirmed", confirmed=False, noise=LaunchNoise(sd=0.02, dof=4), delta=0.01,
            )  # fmt: skip
            held = {"edit": peak.model_dump(mode="json")}
            kept.peak(StudyClosed(study=name, at=1.0, verdict="", peak=held))


def test_a_plan_shows_each_peaks_audit_and_what_moved_between_its_engines(tmp_path) -> None:
    less = {"cache.num_gpu_blocks": "12000", "cache.kv_cache_memory_bytes": str(12000 * 81920)}
    journal(tmp_path, ("first", {}), ("second", less))
    done = run("audit", "tuned")
    assert done.exit_code == 0, done.output
    assert done.stdout.index("first  edit  none") < done.stdout.index("second  edit  none")
    assert "13,107        13,107" in done.stdout
    assert "blocks: reported fell 8.4%" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    shown = json.loads(run("audit", "tuned", "--json").stdout)
    assert [one["name"].split()[0] for one in shown["audits"]] == ["first", "second"]
    assert "blocks" in {one["name"] for one in shown["moves"]}


def test_a_trial_is_audited_by_enough_of_its_name(tmp_path) -> None:
    journal(tmp_path, ("first", {}))
    done = run("audit", "first-00")
    assert done.stdout.startswith("first-0001")
    assert "4,129,713" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), PlanError),
        (("first-00", "--load"), UsageError),
        (("http://127.0.0.1:9",), MeasurementFailed),
    ],
)
def test_what_is_not_there_and_what_makes_no_sense_is_an_error(tmp_path, arguments, says) -> None:
    journal(tmp_path, ("first", {}))
    assert isinstance(run("audit", *arguments).exception, says)


def test_a_card_is_measured_with_the_trials_own_python_and_held_against_its_sheet(tmp_path, monkeypatch) -> None:
    journal(tmp_path, ("first", {}))
    asked = []

    def measured(python):
        asked.append(str(python))
        return Card(name="cpu", bandwidth_bytes_s=2e10, flops_16bit=1e12, source="measured")

    monkeypatch.setattr(cli_audit, "measure_card", measured)
    shown = json.loads(run("audit", "first", "--measure-card", "--json").stdout)
    rows = {row["name"]: row for row in shown["audits"][0]["rows"]}
    assert asked == ["/env/bin/python"]
    assert (rows["card bandwidth"]["measured"], rows["card bandwidth"]["verdict"]) == (20, "cannot tell")


@pytest.mark.parametrize(("share", "verdict"), [(0.93, "agrees"), (0.5, "slow path?"), (1.2, "premise differs")])
def test_a_card_cannot_beat_its_sheet_and_should_come_near_it(share, verdict) -> None:
    sheet = find_card("NVIDIA H200")
    card = Card(name="NVIDIA H200", bandwidth_bytes_s=share * 4.8e12, flops_16bit=share * 990e12)
    assert [row.verdict for row in card_rows(sheet, card)] == [verdict, verdict]


def test_the_table_keeps_to_eighty_columns_and_explains_what_does_not_agree() -> None:
    rows = (
        AuditRow(name="blocks", reported=1.0, verdict="agrees", sentence="unsaid"),
        AuditRow(
            name="requested max_num_batched_tokens", reported="a" * 40, expected=1.5e12,
            verdict="premise differs", sentence="It is so. " * 20,
        ),
    )  # fmt: skip
    text = audit_table(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "unsaid" not in text
    assert "requested max_num_batched_tokens\n" in text
    assert " ".join(text.split()).count("It is so.") == 20


def test_measure_prints_numbers_with_intervals_and_proofs() -> None:
    with serving(**QUIET) as url:
        done = run("measure", url, *QUICK)
    assert code(done) == [0], done.output
    assert "decode_tok_s" in done.stdout
    assert " ± " in done.stdout
    assert "sole_user              ok" in done.stdout
    assert ": decode_tok_s" in done.stderr


def test_measure_gives_one_line_of_json_a_workload_and_sends_no_prompt_twice() -> None:
    with serving(**QUIET, prefix_caching=True) as url:
        done = run("measure", url, *QUICK, "-w", "generate", "-w", "structured", "--json")
        again = run("measure", url, *QUICK, "--json", "--seed", "7")
        stale = run("measure", url, *QUICK, "--json", "--seed", "7")
    assert [json.loads(line)["label"] for line in done.stdout.splitlines()] == ["generate", "structured"]
    assert code(done, again, stale) == [0, 0, 4]
    assert "cold_prefix" in json.loads(stale.stdout)["reason"]


@pytest.mark.parametrize(
    ("truth", "options", "says"),
    [
        ({"api_key": "k"}, (), "http_401"),
        ({}, ("--model", "other"), "it has m"),
        ({"lies": {"status": 429}}, (), "http_429"),
        ({"lies": {"malformed": True}}, (), "malformed_sse"),
    ],
)
def test_what_keeps_a_server_from_being_measured_is_told_and_ends_with_4(truth, options, says) -> None:
    with serving(**QUIET | truth) as url:
        done = run("measure", url, *QUICK, *options)
    assert isinstance(done.exception, MeasurementFailed)
    assert says in str(done.exception)
    assert done.exception.exit_code == 4


@pytest.mark.parametrize(
    ("lies", "options", "proof"),
    [
        ({"cap": 6}, (), "output_length"),
        ({"stalls_after": 1}, ("-c", "1", "--timeout", "1"), "streams_finished"),
        ({"dies_after": 1}, ("-c", "1"), "streams_finished"),
    ],
)
def test_a_disproved_measurement_is_shown_with_what_there_is_and_ends_with_4(lies, options, proof) -> None:
    with serving(**QUIET, lies=lies) as url:
        done = run("measure", url, *QUICK, *options)
    assert code(done) == [4], done.output
    assert f"{proof:22} FAILED" in done.stdout
    assert "decode_tok_s" in done.stdout


def test_a_key_comes_from_the_environment_and_goes_nowhere_else(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret-key")
    with serving(**QUIET, api_key="s3cret-key") as url:
        done = run("measure", url, *QUICK)
    assert done.exit_code == 0, done.output
    assert "s3cret-key" not in done.output


def workload_file(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_workloads_come_from_yaml_plans_and_recorded_requests(tmp_path) -> None:
    plan = workload_file(
        tmp_path, "plan.yaml", "name: x\nworkloads: [{name: a, kind: edit}, {name: b, kind: generate}]"
    )
    lines = workload_file(tmp_path, "chat log.jsonl", '{"prompt": "hello there", "max_tokens": 12}\n')
    with serving(**QUIET) as url:
        done = run("measure", url, *QUICK, "-w", plan, "-w", lines, "--json")
    assert [json.loads(line)["label"] for line in done.stdout.splitlines()] == ["a", "b", "chat-log"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', "line 2"),
        ("a.jsonl", "", "is empty"),
        ("a.yaml", "[1]", "a workload is a mapping"),
        ("a.yaml", "{name: a, kind: nonsense}", "kind"),
        ("a.yaml", "a: [", "is no workload"),
    ],
)
def test_a_broken_file_is_told_before_anything_is_sent(tmp_path, name, text, says) -> None:
    done = run("measure", "http://127.0.0.1:9", "-w", workload_file(tmp_path, name, text))
    assert isinstance(done.exception, PlanError)
    assert says in str(done.exception)


def test_an_unknown_kind_is_told_with_those_there_are() -> None:
    done = run("measure", "http://127.0.0.1:9", "-w", "generat")
    assert "long_context" in str(done.exception)
