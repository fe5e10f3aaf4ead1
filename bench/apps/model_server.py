"""A stand-in for a model server after vLLM's documented behaviour: no model, real queues, limits, latencies and reports.

    PORT=8000 LOAD_S=5 python bench/apps/model_server.py

``Engine`` batches continuously: each step has one token of each sequence that decodes, and parts of prompts up to ``batch_tokens_max``. A
sequence waits, first come, first served, until ``seqs_max`` and the KV cache have room; when the cache is full, the youngest is
preempted and computed again. The duration of a step follows from its tokens and from the cache that it reads. The same engine runs in the
simulation of ``bench/model_server.py``; the server here sleeps for each step. It answers /v1/completions and /v1/chat/completions, streamed
or whole, with an ORCA report for who asks; /health, which is 503 while it loads; and /metrics with vLLM's names.
"""

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import Callable

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The speed and the limits of one server. Times are in seconds.

    The defaults are of the order that is published for 8 billion parameters on one A100 with 80 GB.
    """

    base_s: float = 0.008
    """A step without tokens: the weights are read once."""
    prefill_token_s: float = 1 / 12_000
    decode_seq_s: float = 0.00005
    cache_token_s: float = 6e-8
    cache_tokens_max: int = 400_000
    seqs_max: int = 256
    batch_tokens_max: int = 2048

    def alone_s(self, prompt: int) -> float:
        """The time to the first token of a prompt that is alone."""
        return prompt * self.prefill_token_s + self.base_s * -(-prompt // self.batch_tokens_max)


class Sequence:
    """One request: the tokens of its prompt and of its answer, and when they came."""

    __slots__ = (
        "arrived_s",
        "ended_s",
        "first_s",
        "generated",
        "on_token",
        "output",
        "prefill_left",
        "prompt",
        "signalled",
    )

    def __init__(self, prompt: int, output: int, arrived_s: float, on_token: Callable[[], None] | None = None) -> None:
        self.prompt, self.output, self.arrived_s = max(prompt, 1), max(output, 1), arrived_s
        self.prefill_left = self.prompt
        self.generated = self.signalled = 0
        self.first_s = self.ended_s = 0.0
        self.on_token = on_token


class Engine:
    """One server's queue, batch and cache."""

    def __init__(self, model: Model, now_s: float) -> None:
        self.model = model
        self.now_s = now_s
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cache_used = 0
        self.ended: list[Sequence] = []
        """Sequences that have ended; the owner takes them away."""

    def add(self, sequence: Sequence) -> None:
        """Queue a request. One that never fits ends at once without an answer."""
        if sequence.prompt + sequence.output > self.model.cache_tokens_max:
            sequence.ended_s = sequence.arrived_s
            self.ended.append(sequence)
        else:
            self.waiting.append(sequence)

    def advance(self, until_s: float) -> None:
        """Run all steps that begin before a time."""
        while (self.running or self.waiting) and self.now_s < until_s:
            self.step(until_s)
        self.now_s = max(self.now_s, until_s if not (self.running or self.waiting) else 0.0)

    def step(self, until_s: float) -> None:
        """Run one step; several at once while all sequences decode and nothing changes before ``until_s``."""
        model = self.model
        decoding = [one for one in self.running if not one.prefill_left]
        while self.cache_used + len(decoding) > model.cache_tokens_max:
            self._preempt(decoding)
        prefilled = self._prefill(model.batch_tokens_max - len(decoding))
        steps = 1 if prefilled else self._steps_alike(decoding, until_s)
        each_s = model.base_s + prefilled * model.prefill_token_s + len(decoding) * model.decode_seq_s
        cache = self.cache_used + len(decoding) * (steps - 1) / 2
        self.now_s += steps * (each_s + cache * model.cache_token_s)
        self.cache_used += steps * len(decoding)
        for one in decoding:
            one.generated += steps
        for one in self.running:
            if not one.prefill_left and not one.generated:
                one.generated, self.cache_used = 1, self.cache_used + 1
                one.first_s = one.first_s or self.now_s
        self._end()

    def _steps_alike(self, decoding: list[Sequence], until_s: float) -> int:
        model, count = self.model, len(decoding)
        least = min(one.output - one.generated for one in decoding)
        room = (model.cache_tokens_max - self.cache_used) // count
        each_s = model.base_s + count * model.decode_seq_s + self.cache_used * model.cache_token_s
        return max(1, min(least, room, int((until_s - self.now_s) / each_s) + 1))

    def _prefill(self, budget: int) -> int:
        used = 0
        for one in self.running:
            if one.prefill_left and used < budget:
                part = min(one.prefill_left, budget - used)
                one.prefill_left -= part
                used += part
        while self.waiting and used < budget and len(self.running) < self.model.seqs_max:
            one = self.waiting[0]
            if self.cache_used + one.prefill_left > self.model.cache_tokens_max:
                break
            self.running.append(self.waiting.popleft())
            self.cache_used += one.prefill_left
            part = min(one.prefill_left, budget - used)
            one.prefill_left -= part
            used += part
        return used

    def _preempt(self, decoding: list[Sequence]) -> None:
        one = self.running.pop()
        self.cache_used -= one.prompt + one.generated
        if one in decoding:
            decoding.remove(one)
        # What it has generated is computed again with its prompt.
        one.prefill_left = one.prompt + one.generated
        self.waiting.appendleft(one)

    def _end(self) -> None:
        for one in self.running:
            if one.on_token is not None and one.generated > one.signalled:
                one.signalled = one.generated
                one.on_token()
        done = [one for one in self.running if one.generated >= one.output]
        if done:
            self.running = [one for one in self.running if one.generated < one.output]
            for one in done:
                one.ended_s = self.now_s
                self.cache_used -= one.prompt + one.generated
            self.ended += done


class Server:
    """The engine in real time, behind HTTP/1.1. Requests have an own connection or share one, in turn."""

    def __init__(self, engine: Engine, load_s: float) -> None:
        self.engine = engine
        self._wake = asyncio.Event()
        self._ready_s = asyncio.get_running_loop().time() + load_s
        self.served_count = 0
        self.connections: set[asyncio.Task[None] | None] = set()

    @property
    def is_loading(self) -> bool:
        """Whether the model is not there yet."""
        return asyncio.get_running_loop().time() < self._ready_s

    async def run(self) -> None:
        """Sleep for each step of the engine, while there is work."""
        loop, engine = asyncio.get_running_loop(), self.engine
        while True:
            if not (engine.running or engine.waiting):
                self._wake.clear()
                await self._wake.wait()
                engine.now_s = loop.time()
            begun_s = engine.now_s
            engine.step(begun_s)
            engine.ended.clear()
            await asyncio.sleep(max(0.0, engine.now_s - loop.time()))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        self.connections.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                start, *lines = head.split("\r\n")
                headers = {
                    name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = start.split(" ")
                await self._respond(writer, method, path.partition("?")[0], headers, body)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.connections.discard(task)

    async def _respond(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        if path == "/metrics":
            _write(writer, 200, "text/plain; version=0.0.4", self._page().encode())
        elif self.is_loading:
            _write(writer, 503, "application/json", b'{"error": {"message": "Loading model", "code": 503}}')
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            await self._complete(writer, headers, body)
        elif path in ("/health", "/v1/models"):
            _write(writer, 200, "application/json", b"{}")
        else:
            _write(writer, 404, "application/json", b'{"error": {"message": "Not Found", "code": 404}}')

    async def _complete(self, writer: asyncio.StreamWriter, headers: dict[str, str], body: bytes) -> None:
        try:
            given = json.loads(body)
            texts = [given["prompt"]] if "prompt" in given else [str(one["content"]) for one in given["messages"]]
            prompt, output = sum(len(text) for text in texts) // 4 + 1, int(given.get("max_tokens") or 16)
        except (ValueError, TypeError, KeyError) as error:
            _refuse(writer, f"malformed request: {error}")
            return
        if prompt + output > self.engine.model.cache_tokens_max:
            _refuse(writer, f"{prompt + output} tokens are more than the maximum context length")
            return
        news: asyncio.Queue[None] = asyncio.Queue()
        sequence = Sequence(prompt, output, asyncio.get_running_loop().time(), on_token=lambda: news.put_nowait(None))
        self.engine.add(sequence)
        self._wake.set()
        is_stream = given.get("stream") is True
        if is_stream:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(sequence.output):
            await news.get()
            if is_stream:
                event = b'data: {"choices": [{"index": 0, "delta": {"content": " token"}}]}\n\n'
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.served_count += 1
        if is_stream:
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        usage = {"prompt_tokens": sequence.prompt, "completion_tokens": sequence.output}
        text = json.dumps({"choices": [{"message": {"content": " token" * output}}], "usage": usage})
        report = ""
        if headers.get("endpoint-load-metrics-format", "").lower() == "json":
            report = f"endpoint-load-metrics: JSON {json.dumps({'named_metrics': self._gauges()})}\r\n"
        _write(writer, 200, "application/json", text.encode(), report)

    def _gauges(self) -> dict[str, float]:
        engine = self.engine
        return {
            "num_requests_running": len(engine.running),
            "num_requests_waiting": len(engine.waiting),
            "kv_cache_usage_perc": engine.cache_used / engine.model.cache_tokens_max,
        }

    def _page(self) -> str:
        lines = [f'vllm:{name}{{engine="0",model_name="stand-in"}} {value}' for name, value in self._gauges().items()]
        return "\n".join([*lines, f'vllm:request_success_total{{engine="0"}} {self.served_count}', ""])


def _refuse(writer: asyncio.StreamWriter, message: str) -> None:
    error = {"error": {"message": message, "type": "BadRequestError", "code": 400}}
    _write(writer, 400, "application/json", json.dumps(error).encode())


def _write(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, lines: str = "") -> None:
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    """Serve at $PORT, after $LOAD_S seconds of loading."""
    server = Server(Engine(Model(), asyncio.get_running_loop().time()), float(os.environ.get("LOAD_S", "0")))
    running = asyncio.create_task(server.run())
    listening = await asyncio.start_server(server.serve, "127.0.0.1", int(os.environ["PORT"]))
    async with listening:
        await running


if __name__ == "__main__":
    asyncio.run(main())
