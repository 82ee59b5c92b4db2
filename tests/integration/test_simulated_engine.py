"""The simulated engine behaves as a real one, at the speeds of its surface, with the faults it is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from orchestrator.audit_probe import probe_capacity
from orchestrator.engine_environment import EngineEnvironment, probe_interpreter, serve_command
from orchestrator.engine_log import reported
from orchestrator.failures import classify
from orchestrator.http_stream import StreamClient
from orchestrator.metrics_page import MetricsPage, parse_metrics
from orchestrator.simulated_environment import simulated_environment
from orchestrator.simulated_moves import GH200, SPARK
from orchestrator.simulated_spec import Simulation
from orchestrator.simulated_surface import Surface, Traffic

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
DENSE = replace(GH200, state_groups=0, block_size=16, max_model_len=8192)
SPEED = 10.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    waiter, deadline = threading.Event(), time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        waiter.wait(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


class Engine:
    """One started engine and its log."""

    def __init__(self, environment: EngineEnvironment, log: Path, *flags: str) -> None:
        self.port, self.log_path = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        where = ("m", "--host", "127.0.0.1", "--port", str(self.port))
        with log.open("wb") as file:
            command = [*serve_command(environment), *where, *flags]
            env = {"PATH": os.environ["PATH"]}
            self.process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        self.client = httpx.Client(base_url=self.url, timeout=10)

    def answers(self) -> bool:
        try:
            return self.client.get("/v1/models").status_code == 200
        except httpx.TransportError:
            return False

    def ready(self) -> Engine:
        assert eventually(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, self.log
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def ended(self) -> int:
        return self.process.wait(20)

    def page(self) -> MetricsPage:
        return parse_metrics(self.client.get("/metrics").text)

    def total(self, name: str) -> float:
        return self.page().total(f"vllm:{name}") or 0

    def say(self, prompt: object = "one two", tokens: int = 32, **more: object) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
        return self.client.post("/v1/completions", json=body)


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory, self.engines = directory, list[Engine]()

    def environment(self, surface: Surface = DENSE, **more: object) -> EngineEnvironment:
        simulation = Simulation(surface=surface, **{"speed": SPEED, **more})
        return simulated_environment(simulation, self.directory / "env")

    def start(self, *flags: str, surface: Surface = DENSE, **more: object) -> Engine:
        return self.again(self.environment(surface, **more), *flags)

    def again(self, environment: EngineEnvironment, *flags: str) -> Engine:
        engine = Engine(environment, self.directory / f"log-{len(self.engines)}", *flags)
        self.engines.append(engine)
        return engine


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for engine in bench.engines:
        engine.client.close()
        if engine.process.poll() is None:
            for pid in descendants(engine.process.pid):
                os.kill(pid, signal.SIGKILL)
            engine.process.kill()
            engine.process.wait(20)


def drafting(k: int, method: str = "mtp") -> tuple[str, str]:
    return "--speculative-config", json.dumps({"method": method, "num_speculative_tokens": k})


async def decode_tok_s(url: str, tokens: int) -> float:
    """As the client sees it: the median of a few, since other processes delay some."""
    client, speeds = StreamClient(url), []
    for serial in range(5):
        body = {"prompt": f"{serial} says", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        exchange = await client.send(client.encode("/v1/completions", json.dumps(body).encode()))
        times = [at for at, data in exchange.events() if data.startswith(b"{")]
        speeds.append((tokens - 1) / (times[-1] - times[0]) * 1e9)
    client.close()
    return statistics.median(speeds)


@pytest.mark.parametrize("k", [0, 4])
def test_a_client_sees_the_speed_of_the_surface(bench: Bench, k: int) -> None:
    engine = bench.start("--no-enable-prefix-caching", *(drafting(k) if k else ()), speed=2.0).ready()
    values = {"enable_prefix_caching": False, **({"drafter": "mtp", "k": k} if k else {})}
    found = asyncio.run(decode_tok_s(engine.url, 300))
    assert found == pytest.approx(2 * DENSE.decode_tok_s(values, Traffic()), rel=0.05)


def test_an_edit_is_accepted_more_often_than_free_writing(bench: Bench) -> None:
    engine = bench.start(*drafting(15), surface=replace(SPARK, max_model_len=4096), speed=100.0).ready()
    found = []
    for prompt in ("an essay", "a text\n\nChanged text:\n"):
        before = engine.page()
        engine.say(prompt, 200)
        after = engine.page()
        names = ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_drafts")
        accepted, drafts = ((after.total(name) or 0) - (before.total(name) or 0) for name in names)
        found.append(accepted / drafts / 15)
    assert found == pytest.approx([0.289, 0.988], abs=0.03)


@pytest.mark.parametrize("version", ["0.19.1", "0.27.1", "0.30.0"])
def test_the_pool_is_reported_in_the_form_and_by_the_formula_of_the_version(bench: Bench, version: str) -> None:
    engine = bench.start("--no-enable-prefix-caching", surface=replace(GH200, version=version)).ready()
    facts, labels = reported(engine.log), engine.page().labels("vllm:cache_config_info")
    blocks, tokens = int(labels["num_gpu_blocks"]), int(facts["kv_cache_tokens"])
    assert facts["version"] == f"{version}+simulated"
    assert float(facts["max_concurrency"]) == pytest.approx(blocks / (410 + 3), rel=0.002)
    assert (f"KV cache size: {tokens:,} tokens, Maximum concurrency" in engine.log) == (version == "0.30.0")
    if version == "0.19.1":
        assert tokens == blocks // 4 * 640
        assert "kv_cache_size_tokens" not in labels
    else:
        assert tokens == int(labels["kv_cache_size_tokens"]) == pytest.approx(blocks / 413 * 262144, abs=1)


STARTS = {
    "unsupported_drafter": (drafting(2, "eagle3"), 0.9),
    "unknown_drafter": (drafting(2, "nonsense"), 0.9),
    "missing_package": (drafting(2, "suffix"), 0.9),
    "batch_below_seqs": (("--max-num-batched-tokens", "64", "--max-num-seqs", "128"), 0.9),
    "draft_slots_over_budget": ((*drafting(7, "dspark"), "--max-num-batched-tokens", "1024"), 0.9),
    "out_of_memory_weights": ((), 0.9),
    "out_of_memory_activation": (("--max-num-batched-tokens", "256k"), 0.9),
    "out_of_memory_kv": ((), 0.2),
    "kv_below_max_model_len": ((), 0.45),
    "out_of_memory_graphs": ((), 0.99),
    "bad_value": ((), 1.5),
    "unknown_flag": (("--no-such-flag", "1"), 0.9),
}


@pytest.mark.parametrize("cause", STARTS)
def test_a_failed_start_says_why_in_the_words_of_the_real_one(bench: Bench, cause: str) -> None:
    flags, utilisation = STARTS[cause]
    weights = 120.0 if cause == "out_of_memory_weights" else GH200.weights_gib
    drafters = {**GH200.drafters, "dspark": SPARK.drafters["dspark"]}
    surface = replace(GH200, weights_gib=weights, drafters=drafters)
    engine = bench.start(*flags, "--gpu-memory-utilization", str(utilisation), surface=surface)
    code = engine.ended()
    assert code == (2 if cause == "unknown_flag" else 1)
    failure = classify(engine.log, code, phase="start")
    assert failure.cause == cause, engine.log
    if cause == "kv_below_max_model_len":
        assert failure.needed_gib is not None
        assert failure.available_gib is not None
        assert failure.available_gib < failure.needed_gib


def test_a_taken_port_is_refused_as_such(bench: Bench) -> None:
    first = bench.start().ready()
    second = bench.again(bench.environment(), "--port", str(first.port))
    assert classify(second.log if second.ended() else "", 1, phase="start").cause == "port_taken"


def test_a_flag_of_another_version_is_unknown(bench: Bench) -> None:
    old = replace(DENSE, version="0.26.0")
    bench.start("--max-num-partial-prefills", "2", surface=old).ready()
    new = bench.start("--max-num-partial-prefills", "2", surface=replace(DENSE, version="0.28.0"))
    assert new.ended() == 2
    assert "unrecognized arguments: --max-num-partial-prefills" in new.log


def test_connections_are_refused_until_it_is_ready(bench: Bench) -> None:
    engine = bench.start(start_s=10.0, speed=10.0)
    assert eventually(lambda: "Model loading took" in engine.log)
    assert not engine.answers()
    engine.ready()


def test_it_is_labelled_wherever_a_version_is_shown(bench: Bench) -> None:
    environment = bench.environment()
    engine = bench.again(environment).ready()
    assert engine.client.get("/version").json() == {"version": "0.26.0+simulated"}
    probe = probe_interpreter(environment.python)
    assert probe["engine"] == {"distribution": "vllm", "version": environment.version}


def test_the_same_prompt_gets_the_same_answer(bench: Bench) -> None:
    engine = bench.start(*drafting(3)).ready()
    texts = {engine.say("a fixed prompt").json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 1
    assert texts != {engine.say("another prompt").json()["choices"][0]["text"]}


def test_a_stream_ends_with_usage_and_done_and_has_several_tokens_a_chunk(bench: Bench) -> None:
    engine = bench.start(*drafting(6), speed=2.0).ready()
    answer = engine.say("count", 64, stream=True, stream_options={"include_usage": True})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 64
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    sizes = [len(chunk["choices"][0]["text"].split()) for chunk in chunks[:-1]]
    assert sum(sizes) == 64
    assert max(sizes) > 1


def test_an_answer_ends_by_itself_unless_eos_is_ignored(bench: Bench) -> None:
    engine = bench.start().ready()
    choice = engine.say("hello", 1000, ignore_eos=False).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert engine.say("hello", 300).json()["usage"]["completion_tokens"] == 300


def test_a_tool_is_called_with_what_the_question_asks(bench: Bench) -> None:
    engine = bench.start().ready()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    messages = [{"role": "user", "content": "What is the weather in Ashford today?"}]
    body = {"messages": messages, "tools": [tool], "max_tokens": 64}
    choice = engine.client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Ashford"})


def test_what_vllm_refuses_is_refused(bench: Bench) -> None:
    engine = bench.start(*drafting(2)).ready()
    assert engine.say("x", min_p=0.1).status_code == 400
    assert engine.say("x", 9000).status_code == 400
    assert engine.say("x", model="other").status_code == 404
    assert engine.client.get("/nowhere").status_code == 404


def test_usage_of_the_pool_is_the_blocks_that_requests_hold(bench: Bench) -> None:
    surface = replace(GH200, max_model_len=16384, block_size=640, prefill_max_tok_s=1e5)
    engine = bench.start("--no-enable-prefix-caching", surface=surface, speed=2.0).ready()
    probe = probe_capacity(engine.url, "m", 16384)
    truth = surface.kv_tokens({"enable_prefix_caching": False})
    assert probe.tokens is not None
    assert probe.tokens[0] * 0.97 <= truth <= probe.tokens[1] * 1.03
    assert probe.fixed_blocks == (3, 3)
    assert engine.total("kv_cache_usage_perc") == 0


def test_a_client_that_leaves_gives_its_blocks_back(bench: Bench) -> None:
    engine = bench.start(speed=0.5).ready()
    body = {"prompt": "stay", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with engine.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        assert engine.total("kv_cache_usage_perc") > 0
        lines.close()
    assert eventually(lambda: engine.total("kv_cache_usage_perc") == 0)
    assert engine.page().by_label("vllm:request_success", "finished_reason")["abort"] == 1


def test_faults_hold_only_where_they_are_meant_to(bench: Bench) -> None:
    faults = {"die_at_start": "out_of_memory_graphs", "only_launches": [0], "when": {"k": 2}}
    environment = bench.environment(faults=faults)
    assert bench.again(environment, *drafting(2)).ended() == 1
    bench.again(environment, *drafting(2)).ready()
    other = bench.environment(faults=faults)
    bench.again(other, *drafting(3)).ready()


def test_a_real_log_can_be_replayed(bench: Bench) -> None:
    log = next(LOGS.glob("**/*0.32.0*fail*kv_pool*"))
    engine = bench.start(faults={"replay": str(log), "exit_code": 1})
    assert engine.ended() == 1
    assert classify(engine.log, 1, phase="start").cause == "kv_below_max_model_len"


def test_it_can_die_by_a_signal_at_start(bench: Bench) -> None:
    assert bench.start(faults={"die_at_start": int(signal.SIGILL)}).ended() == -signal.SIGILL


def test_it_can_die_under_load(bench: Bench) -> None:
    engine = bench.start(faults={"die_after_requests": 2}).ready()
    engine.say("one")
    assert engine.process.poll() is None
    engine.say("two")
    assert engine.ended() == 1
    assert classify(engine.log, 1, phase="load").cause == "crashed_under_load"


def test_it_can_hang_on_health(bench: Bench) -> None:
    engine = bench.start(faults={"hang_health": True}).ready()
    with pytest.raises(httpx.ReadTimeout):
        engine.client.get("/health", timeout=0.3)
    assert engine.say().status_code == 200


def test_it_can_be_healthy_and_never_generate(bench: Bench) -> None:
    engine = bench.start(faults={"never_generates": True}).ready()
    assert engine.client.get("/health").status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        engine.client.post("/v1/completions", json={"prompt": "x"}, timeout=0.3)


def test_it_can_stall_in_the_middle_of_a_stream(bench: Bench) -> None:
    engine = bench.start(faults={"stall_after_tokens": 20}).ready()
    body = {"prompt": "x", "max_tokens": 64, "ignore_eos": True, "stream": True}
    lines: list[str] = []
    with (
        engine.client.stream("POST", "/v1/completions", json=body, timeout=1) as answer,
        pytest.raises(httpx.ReadTimeout),
    ):
        lines.extend(answer.iter_lines())
    assert engine.total("num_requests_running") == 1
    assert engine.total("generation_tokens") == 20


def test_it_can_ignore_term_and_leave_children_behind(bench: Bench) -> None:
    engine = bench.start(faults={"ignore_term": True, "grandchild": True}, children=1).ready()
    children = descendants(engine.process.pid)
    assert len(children) == 2
    engine.process.terminate()
    for pid in children:
        os.kill(pid, signal.SIGTERM)
    assert eventually(lambda: sum(alive(pid) for pid in children) == 1)
    deaf = next(pid for pid in children if alive(pid))
    assert os.getsid(deaf) != os.getsid(engine.process.pid)
    engine.process.kill()
    engine.ended()
    assert alive(deaf)
    os.kill(deaf, signal.SIGKILL)


def test_it_ends_with_its_children_on_term(bench: Bench) -> None:
    engine = bench.start(children=2).ready()
    children = descendants(engine.process.pid)
    engine.process.terminate()
    assert engine.ended() == 0
    assert not any(alive(pid) for pid in children)


def test_it_answers_503_and_ends_when_its_engine_core_is_killed(bench: Bench) -> None:
    engine = bench.start(children=1).ready()
    os.kill(descendants(engine.process.pid)[0], signal.SIGKILL)
    assert engine.ended() == 1
    assert "died unexpectedly" in engine.log


def test_it_can_fill_its_log(bench: Bench) -> None:
    engine = bench.start(faults={"spam_lines_s": 5000}).ready()
    assert eventually(lambda: len(engine.log) > 1_000_000)


def test_a_wrong_block_size_is_told(bench: Bench) -> None:
    assert bench.start(lies=("wrong_block_size",)).ready().page().labels("vllm:cache_config_info")["block_size"] == "32"


def test_a_pool_counted_for_all_layers_is_told(bench: Bench) -> None:
    told = []
    for lies in ((), ("state_counted_as_attention",)):
        engine = bench.start(surface=GH200, lies=lies).ready()
        told.append(float(engine.page().labels("vllm:cache_config_info")["kv_cache_size_tokens"]))
    assert told[0] / told[1] == pytest.approx(4, rel=0.001)
