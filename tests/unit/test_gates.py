"""Gates against a small completion server that honours, refuses or ignores what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from scripted_slot import ScriptedSlot
from trial_records import trial, window

from orchestrator.clock import SystemClock
from orchestrator.engine_environment import EngineEnvironment
from orchestrator.gates import GATES, LAUNCH_PROOFS, broken_gates, check_gates
from orchestrator.launch_noise import LaunchNoise
from orchestrator.plan import Gates, TuningPlan
from orchestrator.slot import LaunchOrder
from orchestrator.stability import StabilityRule
from orchestrator.trial import TrialPlan, run_trial
from orchestrator.tune import conclude
from orchestrator.workload import Workload
from search_spaces.configuration import Configuration
from trackers.records import Check, Launch, Measurement, StackFingerprint

STOCK = Configuration(values={"drafter": "none"})
TUNED = Configuration(values={"drafter": "mtp", "k": 2})


class Handler(BaseHTTPRequestHandler):
    """`mode`: honours, ignores, refuses, cut, dead."""

    mode = "honours"

    def do_GET(self) -> None:
        models = {"data": [{"id": "m", "max_model_len": 2048}]}
        self.answer(200 if self.path == "/v1/models" else 404, models)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        special = {"logit_bias", "min_p", "response_format"} & asked.keys()
        if self.mode == "dead":
            self.answer(503, {"error": {"message": "the engine is dead"}})
        elif self.mode == "refuses" and special:
            self.answer(400, {"error": {"message": "not supported with speculative decoding"}})
        else:
            self.answer(200, {"choices": [self.choice(asked)]})

    def choice(self, asked: dict) -> dict:
        honours = self.mode == "honours"
        if "response_format" in asked:
            text = '{"indoors": true, "sky": "clear"}' if honours else '{"indoors": tr'
            return {"text": text, "finish_reason": "length" if self.mode == "cut" else "stop"}
        if "min_p" in asked:
            return {"text": "there" if honours else f"seed {asked['seed']}"}
        biased = honours and "345" in asked.get("logit_bias", {})
        return {"text": "x", "logprobs": {"tokens": ["token_id:7" if biased else "token_id:345"]}}

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def server(mode: str) -> Iterator[str]:
    handler = type("Handler", (Handler,), {"mode": mode, "protocol_version": "HTTP/1.1"})
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(10)


def checked(mode: str, *names: str) -> dict[str, Check]:
    with server(mode) as url:
        return {check.name: check for check in check_gates(url, names, model="m", timeout_s=10)}


PARAMETERS = ("logit_bias", "min_p", "json_schema")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_that_has_its_effect_passes(name) -> None:
    assert checked("honours", name)[f"gate_{name}"].passed is True


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_refused_parameter_fails_and_the_refusal_is_quoted(name) -> None:
    check = checked("refuses", name)[f"gate_{name}"]
    assert check.passed is False
    assert check.detail.startswith("refused: ")
    assert "speculative" in check.detail


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_that_is_accepted_and_ignored_fails(name) -> None:
    assert checked("ignores", name)[f"gate_{name}"].passed is False


def test_an_answer_cut_off_by_its_limit_is_no_broken_schema() -> None:
    check = checked("cut", "json_schema")["gate_json_schema"]
    assert check.passed is None
    assert check.detail.startswith("cut off")


def test_a_server_that_cannot_be_asked_says_nothing_of_its_capabilities() -> None:
    for check in checked("dead", *GATES).values():
        assert check.passed is None, check
    unreachable = check_gates("http://127.0.0.1:9", ["min_p"], model="m", timeout_s=2)
    assert [(check.name, check.passed) for check in unreachable] == [("gate_min_p", None)]
    assert "unreachable" in unreachable[0].detail


def test_a_plan_may_name_exactly_the_gates_there_are() -> None:
    literal = get_args(Gates.model_fields["names"].annotation)[0]
    assert {*get_args(literal), *LAUNCH_PROOFS} == set(GATES)


def measured(configuration: Configuration, role: str = "search", **results: bool | None):
    checks = tuple(Check(name=f"gate_{name}", passed=passed) for name, passed in results.items())
    launches = (Launch(launch=0, started_at=0.0, ready_s=1.0, checks=checks),)
    return trial(configuration=configuration, role=role, launches=launches)


def test_a_gate_that_the_incumbent_passes_and_another_fails_is_broken() -> None:
    records = [
        measured(STOCK, "incumbent", min_p=True, tools=False),
        measured(TUNED, min_p=False, tools=False, needle=False),
    ]
    assert broken_gates(records, Configuration(values={})) == {TUNED: ("min_p",)}


def test_without_an_incumbent_the_defaults_decide() -> None:
    records = [measured(TUNED, min_p=False), measured(STOCK, min_p=True)]
    assert broken_gates(records, STOCK) == {TUNED: ("min_p",)}
    assert broken_gates(records[:1], STOCK) == {}


def test_a_gate_that_stock_passes_only_sometimes_or_that_could_not_be_asked_breaks_nothing() -> None:
    flickers = [measured(STOCK, "incumbent", needle=True), measured(STOCK, "finalist", needle=False)]
    assert broken_gates([*flickers, measured(TUNED, needle=False)], STOCK) == {}
    unseen = [measured(STOCK, "incumbent", needle=True), measured(TUNED, needle=None)]
    assert broken_gates(unseen, STOCK) == {}


def test_one_launch_that_fails_a_gate_is_enough() -> None:
    records = [
        measured(STOCK, "incumbent", tools=True),
        measured(TUNED, tools=True),
        measured(TUNED, "finalist", tools=False),
    ]
    assert broken_gates(records, STOCK) == {TUNED: ("tools",)}


class GatedSlot(ScriptedSlot):
    """A slot whose engine fails the gates named; the checks stand in the launch it closes."""

    def __init__(self, fails: set[str]) -> None:
        super().__init__(lambda order, workload, window: 100.0)
        self.fails, self.asked, self.checks = fails, [], ()

    def check_gates(self, names):
        self.asked.append(tuple(names))
        named = {name: name if name in LAUNCH_PROOFS else f"gate_{name}" for name in names}
        self.checks = tuple(Check(name=check, passed=name not in self.fails) for name, check in named.items())
        return self.checks

    def stop(self) -> Launch | None:
        closed = super().stop()
        return closed and closed.model_copy(update={"checks": self.checks})


def run(slot: GatedSlot, gates: tuple[str, ...]):
    workload = Workload(name="edit", kind="edit", output_tokens=16)
    plan = TrialPlan(
        trial_id="t", study="s", number=0, role="search", configuration=TUNED, workloads=(workload,),
        fingerprint=StackFingerprint(items={"vllm": "1"}), metric="decode_tok_s", gates=gates,
        rule=StabilityRule(precision=0.05, min_windows=2, max_windows=3, min_launches=2, max_launches=2),
        noise=lambda workload, metric: LaunchNoise(sd=0.02, dof=4), order=an_order,
    )  # fmt: skip
    return run_trial(plan, slot, Kept(), clock=SystemClock())


def an_order(launch: int) -> LaunchOrder:
    environment = EngineEnvironment(
        key="k", requirement="vllm==1", version="1", python=Path("python"), directory=None, flavour="other",
        lock_sha256="", packages={}, adopted=True,
    )  # fmt: skip
    return LaunchOrder(
        environment=environment, model="m", args=(), run_dir=Path("x"), run_id="r", trial_id="t",
        launch=launch, start_timeout_s=1.0,
    )  # fmt: skip


class Kept:
    def launch(self, trial_id: str, launch: Launch) -> None: ...

    def window(self, trial_id: str, window: Measurement) -> None: ...


def test_a_trial_asks_once_a_launch_and_a_failed_gate_flags_but_does_not_disprove() -> None:
    slot = GatedSlot({"min_p"})
    record = run(slot, ("tools", "min_p"))
    assert slot.asked == [("greedy_repeats", "tools", "min_p")] * 2
    assert record.state == "measured"
    assert record.reason.endswith("; gate_min_p fails")
    assert broken_gates([measured(STOCK, "incumbent", min_p=True), record], STOCK) == {TUNED: ("min_p",)}


def test_each_launch_must_repeat_its_greedy_answers() -> None:
    slot = GatedSlot({"min_p"})
    assert "gate" not in run(slot, ()).reason
    assert slot.asked == [("greedy_repeats",)] * 2
    record = run(GatedSlot({"greedy_repeats"}), ())
    assert (record.state, record.reason.split(":")[0]) == ("disproved", "greedy_repeats")


@pytest.mark.parametrize(("exclude", "winner"), [(False, TUNED), (True, STOCK)])
def test_a_plan_can_keep_what_breaks_a_gate_from_being_the_peak(exclude, winner) -> None:
    plan = TuningPlan.model_validate(
        {
            "name": "p", "model": "org/m", "engines": ["vllm==0.32.0"], "space": {"drafter": ["none", "mtp"]},
            "workloads": [{"name": "edit", "kind": "edit"}],
            "gates": {"names": ["min_p"], "exclude": exclude},
        }
    )  # fmt: skip
    slow = replace_speed(measured(STOCK, "incumbent", min_p=True), 50.0)
    fast = replace_speed(measured(TUNED, min_p=False), 90.0)

    class Remembered:
        def of(self, study: str):
            return [slow, fast]

    outcome = conclude([SimpleNamespace(engine="e", key="s", incumbent=STOCK, space=plan.space)], plan, Remembered())
    assert outcome.peaks["e"]["edit"].configuration == winner
    assert bool(outcome.peaks["e"]["edit"].set_aside) is exclude


def replace_speed(record, speed: float):
    windows = tuple(window(0, number, metrics={"decode_tok_s": speed + number / 100}) for number in range(5))
    return record.model_copy(update={"windows": windows})
