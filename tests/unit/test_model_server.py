"""The stand-in for a model server: its engine on a virtual clock, and its answers over real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from bench.apps.model_server import Engine, Model, Sequence, Server
from tests.eventually import until

SMALL = Model(
    base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.0, cache_token_s=0.0, cache_tokens_max=1000, seqs_max=2
)


def ended(engine: Engine, *sequences: Sequence) -> list[Sequence]:
    for one in sequences:
        engine.add(one)
    engine.advance(1000.0)
    assert engine.cache_used == 0
    return engine.ended


def test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    (one,) = ended(Engine(SMALL, 0.0), Sequence(100, 11, 0.0))
    assert one.first_s == pytest.approx(0.11)
    assert one.ended_s == pytest.approx(0.21)
    assert SMALL.alone_s(100) == pytest.approx(0.11)


def test_requests_wait_in_order_for_a_place_in_the_batch() -> None:
    first, second, third = ended(Engine(SMALL, 0.0), *(Sequence(100, 10, 0.0) for _ in range(3)))
    assert first.ended_s == second.ended_s
    assert third.first_s > first.ended_s


def test_requests_wait_for_room_in_the_cache() -> None:
    first, second = ended(Engine(SMALL, 0.0), Sequence(600, 10, 0.0), Sequence(600, 10, 0.0))
    assert second.first_s > first.ended_s


def test_the_youngest_is_computed_again_when_the_cache_is_full() -> None:
    first, second = ended(Engine(SMALL, 0.0), Sequence(400, 300, 0.0), Sequence(400, 300, 0.0))
    alone = ended(Engine(SMALL, 0.0), Sequence(400, 300, 0.0))[0]
    # The prompt of the second, then that prompt with 100 tokens of its answer a second time.
    assert first.ended_s == pytest.approx(alone.ended_s + 0.4 + 0.5)
    assert second.ended_s > first.ended_s + 2.0


def test_a_request_that_never_fits_gets_no_answer() -> None:
    (one,) = ended(Engine(SMALL, 0.0), Sequence(900, 200, 5.0))
    assert (one.first_s, one.ended_s) == (0.0, 5.0)


@contextlib.asynccontextmanager
async def served(load_s: float = 0.0) -> AsyncIterator[httpx.AsyncClient]:
    server = Server(Engine(Model(base_s=0.001), asyncio.get_running_loop().time()), load_s)
    running = asyncio.create_task(server.run())
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
        await until(lambda: not server.connections)
    running.cancel()
    await asyncio.wait([running])


async def test_it_answers_whole_or_as_a_stream_and_reports_who_asks() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 3}
    async with served() as client:
        assert (await client.get("/health")).status_code == 200
        whole = await client.post("/v1/chat/completions", json=body)
        assert whole.json()["usage"] == {"prompt_tokens": 11, "completion_tokens": 3}
        assert "endpoint-load-metrics" not in whole.headers
        asked = await client.post("/v1/chat/completions", json=body, headers={"endpoint-load-metrics-format": "json"})
        kind, _, report = asked.headers["endpoint-load-metrics"].partition(" ")
        assert kind == "JSON"
        assert set(json.loads(report)["named_metrics"]) >= {"num_requests_waiting", "kv_cache_usage_perc"}
        stream = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "stream": True})
        assert stream.text.count('"content": " token"') == 3
        assert stream.text.endswith("data: [DONE]\n\n")
        page = (await client.get("/metrics")).text
        assert 'vllm:num_requests_waiting{engine="0",model_name="stand-in"} 0\n' in page
        assert 'vllm:request_success_total{engine="0"} 3\n' in page


async def test_it_refuses_what_it_cannot_do() -> None:
    async with served() as client:
        assert (await client.get("/none")).status_code == 404
        for body in ({"max_tokens": 3}, {"prompt": "a", "max_tokens": 10**9}):
            refused = await client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)


async def test_it_is_not_ready_while_it_loads() -> None:
    async with served(load_s=600.0) as client:
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/metrics")).status_code == 200
