"""A server whose truth is known: set times, chunks, acceptance, lies; send times are stamped into the chunks.

Run as a process of its own with one JSON argument (see `Truth`). Prints its port, and ends when its standard
input closes, so that it cannot outlive who started it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BLOCK = 4
STAMP = b"s" * 20


@dataclass
class Truth:
    """What the server is, in ms and tokens, and how it lies.

    `chunks`: tokens in each chunk after the first, in a cycle. `lies`: see the places where they are read.
    """

    ttft_ms: float = 5.0
    itl_ms: float = 1.0
    chunks: list[int] = field(default_factory=lambda: [1])
    k: int = 0
    model: str = "m"
    version: str = "0.32.0"
    prefix_caching: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    api_key: str = ""
    tools: str = "parsed"
    lies: dict[str, object] = field(default_factory=dict)


class Counters:
    def __init__(self) -> None:
        self.started = time.time()
        self.requests = self.prompt = self.generated = self.steps = self.preempted = 0
        self.drafts = self.drafted = self.accepted = self.hits = self.queries = self.running = 0
        self.positions: dict[int, int] = {}
        self.decode_s = 0.0
        self.blocks: set[str] = set()


class Connection(asyncio.Protocol):
    def __init__(self, truth: Truth, counters: Counters) -> None:
        self.truth, self.counts, self.buffer = truth, counters, b""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.buffer[:1] == b"\x16":
            self.whole(400, "this is not a TLS port")
            self.transport.close()
            return
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].decode("latin-1")
            lower = head.lower()
            size = int(lower.split("content-length:")[1].split("\r\n")[0]) if "content-length:" in lower else 0
            if len(self.buffer) < end + 4 + size:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + size], self.buffer[end + 4 + size :]
            self.answer(head, body)

    def answer(self, head: str, body: bytes) -> None:
        method, path, _ = head.split("\r\n", maxsplit=1)[0].split(" ", 2)
        truth, lies = self.truth, self.truth.lies
        if truth.api_key and f"authorization: bearer {truth.api_key}" not in head.lower() and path != "/metrics":
            self.whole(401, {"error": {"message": "invalid api key"}})
        elif path == "/v1/models":
            self.whole(200, {"data": [{"id": truth.model, "max_model_len": 2048}]})
        elif path.strip("/") == "health":
            self.whole(200, "")
        elif path == "/version":
            self.whole(200, {"version": truth.version})
        elif path == "/metrics" and not lies.get("no_metrics"):
            self.whole(200, self.metrics())
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            asked = json.loads(body)
            if asked["model"] != truth.model and not lies.get("any_model"):
                self.whole(404, {"error": {"message": f"The model `{asked['model']}` does not exist."}})
            elif lies.get("status"):
                self.whole(int(lies["status"]), {"error": {"message": "refused, as told"}})
            elif asked.get("tools") and truth.tools == "refuse":
                message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
                self.whole(400, {"error": {"message": message}})
            elif lies.get("letters") and len(asked["prompt"]) + asked["max_tokens"] > 2048:
                self.whole(400, {"error": {"message": "maximum context length is 2048 tokens"}})
            else:
                Stream(self, asked, chat="chat" in path).start()
        else:
            self.whole(404, {"error": {"message": "no such path"}})

    def whole(self, status: int, body: object) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.transport.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)

    def metrics(self) -> str:
        c, lies = self.counts, self.truth.lies
        lines = [f"process_start_time_seconds {c.started if not lies.get('restarted') else time.time()}"]
        labels = {"enable_prefix_caching": str(self.truth.prefix_caching), **self.truth.labels}
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines.append(f"vllm:cache_config_info{{{text}}} 1.0")
        # A stranger: on every look the server has served somebody else too.
        c.requests += 1 if lies.get("stranger") else 0
        c.preempted += 1 if lies.get("preempts") else 0
        series = {
            "request_success_total": c.requests, "prompt_tokens_total": c.prompt,
            "generation_tokens_total": c.generated, "num_preemptions_total": c.preempted,
            "prefix_cache_hits_total": c.hits, "prefix_cache_queries_total": c.queries,
            "iteration_tokens_total_count": c.steps, "num_requests_running": c.running,
            "request_decode_time_seconds_sum": c.decode_s,
        }  # fmt: skip
        if self.truth.k:
            series |= {
                "spec_decode_num_drafts_total": c.drafts, "spec_decode_num_draft_tokens_total": c.drafted,
                "spec_decode_num_accepted_tokens_total": c.accepted,
            }  # fmt: skip
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{position="{i}"}} {c.positions.get(i, 0)}' for i in range(self.truth.k)]
        return "\n".join(lines + [f'vllm:{name}{{engine="0"}} {value}' for name, value in series.items()]) + "\n"


class Stream:
    """One answer, sent on its schedule."""

    def __init__(self, connection: Connection, asked: dict, chat: bool) -> None:
        self.to, self.asked, self.chat = connection, asked, chat
        self.truth, self.counts, self.lies = connection.truth, connection.counts, connection.truth.lies
        prompt = json.dumps(asked["messages"]) if chat else asked["prompt"]
        self.prompt = prompt[0] if isinstance(prompt, list) else prompt
        # A tokenizer of single letters makes several tokens of a word.
        self.words = list(self.prompt) if self.lies.get("letters") else self.prompt.split()
        self.sent = self.index = 0
        length = int(asked.get("max_tokens", 16))
        self.length = min(length, int(self.lies.get("cap", length)))
        if self.lies.get("uneven"):
            self.length = max(2, self.length - self.counts.requests % 3)
        self.seed = hashlib.sha256(
            self.prompt.encode() + (os.urandom(4) if self.lies.get("fickle") else b"")
        ).hexdigest()
        self.loop = asyncio.get_running_loop()

    def start(self) -> None:
        self.counts.running += 1
        hit = self.cached()
        self.due = self.loop.time() + self.truth.ttft_ms / 1e3 * (1 - hit)
        self.to.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if not self.truth.ttft_ms and not self.truth.itl_ms:
            while self.step():
                pass
        else:
            self.loop.call_at(self.due, self.next)

    def cached(self) -> float:
        blocks = [" ".join(self.words[: at + BLOCK]) for at in range(0, len(self.words) - BLOCK + 1, BLOCK)]
        hits = 0
        if self.truth.prefix_caching:
            for block in blocks:
                if block not in self.counts.blocks:
                    break
                hits += BLOCK
            self.counts.blocks.update(blocks)
            self.counts.queries += len(self.words)
            self.counts.hits += hits
        return hits / max(1, len(self.words))

    def next(self) -> None:
        while self.loop.time() >= self.due - 2e-5:
            if not self.step():
                return
        self.loop.call_at(self.due, self.next)

    def step(self) -> bool:
        """Sends the next chunk; False when nothing is left to send."""
        c = self.counts
        if self.lies.get("dies_after") and c.requests >= self.lies["dies_after"] and self.sent:
            os._exit(1)
        if self.lies.get("stalls_after") and c.requests >= self.lies["stalls_after"] and self.sent:
            return False
        wanted = 1 if not self.index else self.truth.chunks[(self.index - 1) % len(self.truth.chunks)]
        count = min(wanted, self.length - self.sent)
        if not self.index and self.chat:
            self.event({"delta": {"role": "assistant", "content": ""}})
        self.index += 1
        self.sent += count
        c.steps += 1
        if self.index > 1 and self.truth.k:
            c.drafts, c.drafted, c.accepted = c.drafts + 1, c.drafted + self.truth.k, c.accepted + wanted - 1
            for position in range(wanted - 1):
                c.positions[position] = c.positions.get(position, 0) + 1
        last = self.sent >= self.length
        tools = self.asked.get("tools") and self.asked["messages"][-1]["role"] != "tool"
        if tools:
            last = self.call()
        else:
            self.event(self.choice(f"{self.seed[self.sent % 60 :][:3]} " * count), "length" if last else None)
        now = self.loop.time()
        self.first = now if self.index == 1 else self.first
        if last:
            c.decode_s += now - self.first
            self.finish()
            return False
        following = self.truth.chunks[(self.index - 1) % len(self.truth.chunks)]
        self.due += self.truth.itl_ms / 1e3 * min(following, self.length - self.sent)
        return True

    def choice(self, text: str) -> dict:
        if not self.chat:
            return {"text": text}
        return {"delta": {"reasoning_content" if self.lies.get("reasons") else "content": text}}

    def call(self) -> bool:
        arguments = '{"town": "Ashford"}'
        if self.truth.tools == "text":
            self.event(self.choice(f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}'), "stop")
        elif self.truth.tools == "none":
            self.event(self.choice("It is probably fine."), "stop")
        else:
            for piece in (
                {"name": "get_weather", "arguments": ""},
                {"arguments": arguments[:9]},
                {"arguments": arguments[9:]},
            ):
                self.event({"delta": {"tool_calls": [{"index": 0, "id": "call_1", "function": piece}]}})
            self.event({"delta": {}}, "tool_calls")
        self.length = self.sent
        return True

    def event(self, choice: dict, finish: str | None = None) -> None:
        if self.asked.get("tools") and finish == "length" and not self.lies.get("answer_cut"):
            finish = "stop"
        if self.lies.get("malformed") and self.sent > 2:
            self.chunk(b'data: {"choices": [{"text": "oh\n\n')
            return
        if self.lies.get("stream_error") and self.sent > 2:
            self.chunk(b'data: {"error": {"message": "EngineDeadError", "code": 500}}\n\n')
            return
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        choices = [{"index": 0, **choice, "finish_reason": finish}]
        body = {"object": kind, "choices": choices, "stamp": STAMP.decode()}
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        if self.lies.get("split"):
            data = data.replace(STAMP, b"%020d" % time.monotonic_ns())
            for at in range(0, len(data), 7):
                part = data[at : at + 7]
                self.to.transport.write(b"%x;ext=1\r\n%s\r\n" % (len(part), part))
        else:
            whole = b"%x\r\n%s\r\n" % (len(data), data)
            # Stamped last: the time is that of handing the bytes over, not of making them.
            self.to.transport.write(whole.replace(STAMP, b"%020d" % time.monotonic_ns()))

    def finish(self) -> None:
        c = self.counts
        usage = {"prompt_tokens": len(self.words), "completion_tokens": self.sent}
        if not self.lies.get("no_usage"):
            self.chunk(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        self.chunk(b"data: [DONE]\n\n")
        self.to.transport.write(b"0\r\n\r\n")
        c.requests, c.prompt, c.generated = (
            c.requests + 1,
            c.prompt + len(self.words),
            c.generated + self.sent,
        )
        c.running -= 1
        if self.lies.get("closes"):
            self.to.transport.close()


@contextmanager
def serving(**truth: object) -> Iterator[str]:
    """A truth server in a process of its own, for as long as the block lasts; gives its URL."""
    command = [sys.executable, "-S", __file__, json.dumps(truth)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.stdin.close()
            process.wait(timeout=30)


async def main() -> None:
    truth = Truth(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    counters = Counters()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(truth, counters), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: os.read(0, 4096) or ended.set())
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
