"""A client connection: bounds on the cost of one read."""

import itertools

import pytest

from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.body import CHUNKS_AT_ONCE, LAST_CHUNK, chunk
from tests.eventually import next_turn
from tests.unit.net.proxy.wires import OK, Bench

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNT = 20 * CHUNKS_AT_ONCE


def payload_bytes(bench: Bench) -> int:
    """Bytes of the body that the app has received."""
    return sum(app.written.count(b"x") for app in bench.apps)


async def test_body_of_tiny_chunks_is_read_in_pieces_with_paused_connection() -> None:
    bench = Bench()
    bench.connection.data_received(HEAD)
    bench.connection.data_received(chunk(b"x") * COUNT)
    assert (payload_bytes(bench), bench.client.is_reading_paused) == (CHUNKS_AT_ONCE, True)
    turns = 0
    while bench.client.is_reading_paused:
        before = payload_bytes(bench)
        await next_turn()
        assert payload_bytes(bench) - before <= CHUNKS_AT_ONCE
        turns += 1
    assert (payload_bytes(bench), turns >= COUNT // CHUNKS_AT_ONCE - 1) == (COUNT, True)
    bench.connection.data_received(LAST_CHUNK)
    bench.respond_to_all()
    assert [exchange.response.status for exchange in bench.finished] == [200]


async def test_connections_with_tiny_chunks_share_one_piece_per_loop_iteration() -> None:
    benches = [Bench() for _ in range(8)]
    for bench in benches:
        bench.turns = benches[0].turns
        bench.connection.data_received(HEAD + chunk(b"x") * COUNT)
    seen = [sum(map(payload_bytes, benches))]
    while any(bench.client.is_reading_paused for bench in benches):
        await next_turn()
        seen.append(sum(map(payload_bytes, benches)))
    assert seen[-1] == len(benches) * COUNT
    assert max(after - before for before, after in itertools.pairwise(seen)) <= CHUNKS_AT_ONCE


async def test_disconnected_client_ends_exchange_amid_tiny_chunks() -> None:
    bench = Bench()
    bench.connection.data_received(HEAD + chunk(b"x") * COUNT)
    bench.connection.connection_lost(None)
    for _ in range(3):
        await next_turn()
    assert (len(bench.finished), payload_bytes(bench)) == (1, CHUNKS_AT_ONCE)


def test_chunks_of_normal_size_are_read_immediately() -> None:
    bench = Bench()
    bench.connection.data_received(HEAD + chunk(b"x" * 8192) * 32)
    assert (payload_bytes(bench), bench.client.is_reading_paused) == (32 * 8192, False)


async def test_data_after_response_is_read_in_pieces() -> None:
    bench = Bench()
    bench.connection.data_received(HEAD)
    bench.upstreams[0].data_received(OK)
    assert bench.client.is_ended
    for _ in range(3):
        bench.connection.data_received(bytes(2**18))
        assert bench.client.is_reading_paused
        await next_turn()
        assert not bench.client.is_reading_paused


async def test_pipelined_requests_start_at_most_16_per_loop_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    count = 100

    def respond_at_once(exchange: Exchange) -> None:
        bench.exchanges.append(exchange)
        exchange.respond(404, b"")

    monkeypatch.setattr(bench, "begin", respond_at_once)
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * count)
    seen = [len(bench.exchanges)]
    while bench.client.is_reading_paused:
        await next_turn()
        seen.append(len(bench.exchanges))
    assert (seen[-1], max(after - before for before, after in itertools.pairwise([0, *seen]))) == (count, 16)
