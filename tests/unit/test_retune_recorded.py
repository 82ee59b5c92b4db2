"""A retune as it ran on a real card, from its journal: a peak that the old study had missed is no peak that moved."""

from __future__ import annotations

import gzip
import json
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from orchestrator.candidates import noise_of
from orchestrator.joint_model import Reading, fit_scales
from orchestrator.objective import targets
from orchestrator.plan import TuningPlan
from orchestrator.retune import next_step
from orchestrator.retune_view import Frame, Step, Verdict, seen
from trackers.records import Measurement, TrialRecord

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
ELSEWHERE = {"model": {"id": "org/model"}, "engines": ["vllm==0.20.2", "vllm==0.26.0"]}  # its paths are that machine's
PLAN = TuningPlan.model_validate(yaml.safe_load((GPU / "plans" / "g-retune.yaml").read_text()) | ELSEWHERE)
TARGET = targets(PLAN.objective, PLAN.workload_names)[0]


@cache
def trials(name: str) -> tuple[TrialRecord, ...]:
    with gzip.open(GPU / "records" / name, "rt") as lines:
        entries = [json.loads(line) for line in lines]
    return tuple(TrialRecord.model_validate(one["body"]) for one in entries if one["kind"] == "trial")


def recorded() -> tuple[list[TrialRecord], list[TrialRecord]]:
    """The old engine's study with what was launched in turn, and the new one's, up to the verdict that it gave."""
    old, new = (list(group) for _, group in groupby(sorted(trials("g2.jsonl.gz"), key=_engine), _engine))
    return old, new


def _engine(record: TrialRecord) -> str:
    return record.fingerprint.items["vllm"]


def widest(speed: float = 1.0, **changes: object) -> TrialRecord:
    """64 seats on the old engine, launched by hand after that verdict; as many times as fast."""
    (found,) = trials("g2-64.jsonl.gz")
    return found.model_copy(update={"role": "in_turn", "windows": _faster(found, speed), "started_at": 2e9} | changes)


def _faster(record: TrialRecord, speed: float) -> tuple[Measurement, ...]:
    return tuple(
        one.model_copy(update={"metrics": {name: speed * value for name, value in one.metrics.items()}})
        for one in record.windows
    )


def beside(speed: float = 1.0) -> TrialRecord:
    """The old peak once more on the old engine, after it."""
    last = [one for one in recorded()[0] if one.role == "in_turn"][-1]
    return last.model_copy(update={"windows": _faster(last, speed), "started_at": 2e9 + 1})


def asked(*later: TrialRecord, alternate: bool = True, launched: int | None = None) -> Step | Verdict:
    rule = PLAN.precision.rule()
    old, new = recorded()
    past, now = seen(old, TARGET, rule), seen(new[:launched], TARGET, rule)
    space, _ = PLAN.space.on("0.26.0")
    readings = [Reading(one, TARGET.score(values), len(values)) for one, values in past.readings]
    frame = Frame(
        space=space,
        old_peak=old[0].configuration,
        target=TARGET,
        delta=PLAN.precision.zone,
        launch_noise=PLAN.precision.launch_noise,
        scales=fit_scales(space, readings, past.rates, noise_of(past.field, PLAN.precision.launch_noise).sd),
        streams=48,
        alternate=alternate,
    )
    return next_step(seen([*old, *later], TARGET, rule, turns_from=now.retune[0].started_at), now, frame)


def test_what_only_the_new_engine_ran_is_launched_on_the_old_one_before_it_is_said_to_have_moved() -> None:
    step = asked()
    assert isinstance(step, Step)
    assert (step.stack, step.role, step.configuration.values["max_num_seqs"]) == ("old", "in_turn", 64)


def test_without_the_old_engine_it_cannot_tell_a_move_from_what_was_missed() -> None:
    found = asked(alternate=False)
    assert isinstance(found, Verdict)
    assert found.shift.said == "other settings are better now; cannot tell whether the peak moved or was missed before"
    assert "max_num_seqs=64" in found.shift.would_decide
    assert found.shift.shape == "not shown", "32 seats of a knob that was hardly turned are no change of its shape"


def test_the_old_peak_is_launched_beside_it_as_the_host_may_have_drifted() -> None:
    step = asked(widest())
    assert isinstance(step, Step)
    assert (step.stack, step.role, step.configuration.values["max_num_seqs"]) == ("old", "in_turn", 32)
    drifted = asked(widest(0.9), beside(0.9))
    assert isinstance(drifted, Verdict)
    assert drifted.shift.verdict == "cannot tell", "its launches there disagree now"


def test_a_lead_that_the_old_engine_has_too_was_missed_there() -> None:
    found = asked(widest(), beside())
    assert isinstance(found, Verdict)
    assert found.shift.said == "other settings are better on both engines: the old study had missed them"
    assert found.shift.decides == ""
    assert found.recommended is not None
    assert found.recommended.values["max_num_seqs"] == 64


@pytest.mark.parametrize("then", [widest(0.8), widest(state="refused", windows=(), launches=())])
def test_a_lead_that_the_old_engine_has_not_is_a_peak_that_moved(then: TrialRecord) -> None:
    found = asked(then, beside())
    assert isinstance(found, Verdict)
    assert found.shift.verdict == "peak moved"


def test_an_old_launch_that_says_nothing_is_not_asked_for_again() -> None:
    found = asked(widest(state="unsettled"))
    assert isinstance(found, Verdict)
    assert found.shift.verdict == "cannot tell"


def test_the_knob_that_matters_is_turned_before_the_others() -> None:
    step = asked(launched=4)
    assert isinstance(step, Step)
    assert step.configuration.values["max_num_seqs"] == 64
