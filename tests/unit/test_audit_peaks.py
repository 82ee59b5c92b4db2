"""Each peak is audited from its trial: a file of rows, tags of findings, gates that are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hybrid_trial import ARGV, LABELLED, LOG, STACK
from trial_records import trial

from orchestrator.audit_peaks import audit_peaks, log_of, trial_of
from orchestrator.candidates import Target
from orchestrator.engine_environment import EngineEnvironment
from orchestrator.launch_noise import LaunchNoise
from orchestrator.orders import Launchpad
from orchestrator.peak import Peak
from orchestrator.study import Study
from search_spaces.configuration import Configuration
from search_spaces.drafters import drafter_knobs
from search_spaces.feasibility import KnownFacts
from search_spaces.space import SearchSpace
from search_spaces.values import Values
from trackers.records import Check, Estimate, Failure, Launch, StackFingerprint

OLD = Configuration(values={"drafter": "none"})
NEW = Configuration(values={"drafter": "ngram", "k": 4})
SPACE = SearchSpace(knobs=tuple(drafter_knobs({"none": None, "ngram": Values(choices=(4,))})))


def estimate(value: float, half: float = 0.5) -> Estimate:
    return Estimate(value=value, half_width=half, launches=3, windows=9, ending="stable")


def measured(configuration: Configuration, tmp_path: Path, prefill: float = 500.0, **changes):
    log = tmp_path / "engine.log"
    log.write_text(LOG)
    checks = changes.pop("checks", ())
    argv = (*ARGV, *changes.pop("flags", ()))
    launch = Launch(launch=0, started_at=0, ready_s=1, argv=argv, reported=LABELLED, log_path=str(log), checks=checks)
    held = {
        "launches": (launch,),
        "fingerprint": StackFingerprint(items=STACK),
        "configuration": configuration,
        "windows": (),
        "estimates": {"edit/prefill_tok_s": estimate(prefill), "edit/decode_tok_s": estimate(50)},
    }
    return trial(**(held | changes))


def study(incumbent: Configuration | None = OLD) -> Study:
    environment = EngineEnvironment(
        key="k", requirement="vllm==1", version="1", python=Path("python"), directory=None, flavour="other",
        lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    pad = Launchpad(
        environment=environment, space=SPACE, model="m", serve={}, env={}, bfloat16=False, logs=Path("x"),
        run_id="r", start_timeout_s=lambda: 1.0,
    )  # fmt: skip
    return Study(
        engine="new", key="s", stack=StackFingerprint(items=STACK), space=SPACE, pad=pad, facts=KnownFacts(),
        incumbent=incumbent,
    )  # fmt: skip


def peak(configuration: Configuration) -> Peak:
    return Peak(
        target=Target(name="edit", metric="decode_tok_s", workloads=("edit",)), configuration=configuration,
        estimate=estimate(50), verdict="unconfirmed", confirmed=False, noise=LaunchNoise(sd=0.02, dof=4),
        delta=0.01,
    )  # fmt: skip


def test_a_sound_peak_leaves_a_file_of_rows_and_no_tag(tmp_path) -> None:
    records = [measured(OLD, tmp_path), measured(NEW, tmp_path)]
    facts, files = audit_peaks(study(), {"edit": peak(NEW)}, records, tmp_path / "audits")
    assert facts == {}
    rows = json.loads(Path(files["audit.json"]).read_text())["edit"]
    found = {row["name"]: row for row in rows}
    assert found["pool report"]["verdict"] == "agrees"
    assert found["untouched edit/prefill_tok_s"]["verdict"] == "agrees", "a drafter cannot touch prefill"


def test_what_does_not_agree_becomes_a_tag(tmp_path) -> None:
    flags = ("--gpu-memory-utilization", "0.5")
    records = [measured(OLD, tmp_path), measured(NEW, tmp_path, prefill=900.0, flags=flags)]
    facts, _ = audit_peaks(study(), {"edit": peak(NEW)}, records, tmp_path)
    assert facts == {
        "audit.requested_gpu_memory_utilization": "report differs",
        "audit.untouched_edit/prefill_tok_s": "premise differs",
    }


def test_the_peak_that_is_the_incumbent_has_nothing_untouched_to_show(tmp_path) -> None:
    _, files = audit_peaks(study(), {"edit": peak(OLD)}, [measured(OLD, tmp_path)], tmp_path)
    rows = json.loads(Path(files["audit.json"]).read_text())["edit"]
    assert not [row for row in rows if row["name"].startswith("untouched")]


def test_a_peak_that_breaks_a_gate_of_the_incumbent_is_flagged(tmp_path) -> None:
    passes, fails = Check(name="gate_min_p", passed=True), Check(name="gate_min_p", passed=False)
    records = [
        measured(OLD, tmp_path, role="incumbent", checks=(passes,)),
        measured(NEW, tmp_path, checks=(fails,)),
    ]
    facts, _ = audit_peaks(study(), {"edit": peak(NEW)}, records, tmp_path)
    assert facts["gates.edit"] == "breaks min_p"


def test_broken_model_files_are_told_and_do_not_end_the_study(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{")
    argv = (*ARGV[:4], str(tmp_path))
    launch = Launch(launch=0, started_at=0, ready_s=1, argv=argv)
    record = measured(NEW, tmp_path, launches=(launch,))
    facts, files = audit_peaks(study(None), {"edit": peak(NEW)}, [record], tmp_path)
    assert "not usable JSON" in facts["audit"]
    assert files == {}


def test_the_last_measured_trial_and_the_log_of_its_last_good_launch_are_taken(tmp_path) -> None:
    early, late = measured(NEW, tmp_path, trial_id="a"), measured(NEW, tmp_path, trial_id="b")
    lost = measured(NEW, tmp_path, trial_id="c", state="engine_failed")
    elsewhere = measured(NEW, tmp_path, trial_id="d", role="in_turn")
    assert trial_of(NEW, [early, late, lost, elsewhere]) is late
    assert trial_of(OLD, [early]) is None
    failure = Failure(cause="x", kind="transient", message="m")
    broken = Launch(launch=1, started_at=0, ready_s=None, failure=failure, log_path=str(tmp_path / "no.log"))
    assert log_of(early.model_copy(update={"launches": (*early.launches, broken)})) == LOG
    gone = early.launches[0].model_copy(update={"log_path": str(tmp_path / "gone.log")})
    assert log_of(early.model_copy(update={"launches": (gone,)})) == ""


@pytest.mark.parametrize("incumbent", [None, OLD])
def test_without_a_trial_of_the_peak_there_is_nothing_to_audit(tmp_path, incumbent) -> None:
    assert audit_peaks(study(incumbent), {"edit": peak(NEW)}, [], tmp_path) == ({}, {})
