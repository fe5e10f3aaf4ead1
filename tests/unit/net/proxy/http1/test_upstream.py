"""A connection to an app: bounds on the cost of one read of its response."""

import itertools

from serving.net.proxy.http1.body import CHUNKS_AT_ONCE, LAST_CHUNK, chunk
from tests.eventually import next_turn
from tests.unit.net.proxy.wires import Bench, Wire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"
COUNT = 10 * CHUNKS_AT_ONCE


def bench_with_request() -> Bench:
    """A bench with a request whose response is awaited."""
    bench = Bench()
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    return bench


async def read_all(bench: Bench, app: Wire) -> list[int]:
    """The bytes of the body that the client had after each turn, until reading continues."""
    seen = [bench.client.written.count(b"x")]
    while app.is_reading_paused:
        await next_turn()
        seen.append(bench.client.written.count(b"x"))
    return seen


async def test_response_of_tiny_chunks_is_read_in_pieces_with_paused_connection() -> None:
    bench = bench_with_request()
    bench.upstreams[0].data_received(HEAD)
    before = bench.client.written.count(b"x")
    bench.upstreams[0].data_received(chunk(b"x") * COUNT)
    assert bench.apps[0].is_reading_paused
    seen = await read_all(bench, bench.apps[0])
    pieces = [after - before for before, after in itertools.pairwise([before, *seen])]
    assert (seen[-1] - before, max(pieces)) == (COUNT, CHUNKS_AT_ONCE)
    bench.upstreams[0].data_received(LAST_CHUNK)
    assert ([exchange.response.status for exchange in bench.finished], bench.apps[0].is_closed) == ([200], False)


async def test_response_of_tiny_chunks_in_one_read_is_complete() -> None:
    bench = bench_with_request()
    bench.upstreams[0].data_received(HEAD + chunk(b"x") * COUNT + LAST_CHUNK)
    await read_all(bench, bench.apps[0])
    assert ([exchange.response.status for exchange in bench.finished], bench.apps[0].is_closed) == ([200], False)
    assert bench.client.written.endswith(LAST_CHUNK)


async def test_full_client_keeps_response_of_tiny_chunks_paused() -> None:
    bench = bench_with_request()
    bench.upstreams[0].data_received(HEAD + chunk(b"x") * COUNT)
    bench.upstreams[0].pause_reading(full=True)
    for _ in range(COUNT // CHUNKS_AT_ONCE + 2):
        await next_turn()
    assert bench.apps[0].is_reading_paused
    bench.upstreams[0].pause_reading(full=False)
    assert not bench.apps[0].is_reading_paused


def test_endless_interim_responses_end_with_502_and_close() -> None:
    bench = bench_with_request()
    bench.upstreams[0].data_received(INTERIM * 2_000)
    assert ([exchange.response.status for exchange in bench.finished], bench.apps[0].is_closed) == ([502], True)
    assert bench.client.written.count(b" 103 ") < 1_000
