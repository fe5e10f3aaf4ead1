"""Slowly read responses: buffered up to a limit, and subject to a minimum rate also after their end."""

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.phase import ExchangeOutcome
from tests.unit.net.proxy.wires import Bench

HALF = bytes(100_000)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n"
SETTINGS = HttpSettings(
    rate_grace_s=10.0, read_rate_min=1000, response_buffer_bytes_max=150_000, response_buffers_bytes_max=1_000_000
)


def bench_with_unread_half(settings: HttpSettings = SETTINGS, headers: bytes = b"") -> Bench:
    """A client that has read nothing of the first half of its response."""
    bench = Bench(settings)
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n%b\r\n" % headers)
    bench.upstreams[0].data_received(HEAD)
    receive(bench, HALF[:70_000])
    bench.connection.pause_writing()
    receive(bench, HALF[70_000:])
    return bench


def receive(bench: Bench, piece: bytes) -> None:
    """The app sends a piece, and the client reads nothing of it."""
    bench.client.unread_bytes += len(piece)
    bench.upstreams[0].data_received(piece)


def test_response_is_read_while_its_buffer_has_room() -> None:
    bench = bench_with_unread_half()
    assert (bench.apps[0].is_reading_paused, bench.buffers.byte_count) == (False, 100_000)
    receive(bench, HALF[:60_000])
    assert (bench.apps[0].is_reading_paused, bench.buffers.byte_count) == (True, 160_000)
    bench.client.unread_bytes = 10_000
    bench.connection.resume_writing()
    assert (bench.apps[0].is_reading_paused, bench.buffers.byte_count) == (False, 0)


@pytest.mark.parametrize("bound", ["response_buffer_bytes_max", "response_buffers_bytes_max"])
def test_app_is_paused_by_slow_client_without_buffer(bound: str) -> None:
    bench = Bench(HttpSettings(**{bound: 0}))  # type: ignore[arg-type]  # one of two names
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    bench.upstreams[0].data_received(HEAD)
    bench.connection.pause_writing()
    assert bench.apps[0].is_reading_paused


def test_buffered_response_ends_exchange_and_next_request_waits_for_reader() -> None:
    bench = bench_with_unread_half()
    receive(bench, HALF)
    assert bench.finished[0].outcome is ExchangeOutcome.ANSWERED
    bench.connection.data_received(b"GET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert len(bench.exchanges) == 1
    bench.connection.resume_writing()
    assert len(bench.exchanges) == 2


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"])
def test_unread_response_is_limited_by_minimum_rate_only(headers: bytes) -> None:
    bench = bench_with_unread_half(headers=headers)
    receive(bench, HALF)
    for _ in range(18):
        # In total longer than any fixed limit.
        bench.now_s += 10.0
        bench.client.unread_bytes -= 10_000
        assert bench.connection.check(bench.now_s) > bench.now_s
        assert not bench.client.is_closed
    bench.now_s += 21.0
    bench.connection.check(bench.now_s)
    assert bench.client.is_closed
    bench.connection.connection_lost(None)
    assert bench.buffers.byte_count == 0


def test_connection_closes_1_s_after_last_response_is_read() -> None:
    bench = bench_with_unread_half(headers=b"Connection: close\r\n")
    receive(bench, HALF)
    bench.now_s += 5.0
    bench.client.unread_bytes = 1000
    bench.connection.resume_writing()
    assert bench.connection.check(bench.now_s) == bench.now_s + 1.0
    bench.now_s += 1.0
    bench.connection.check(bench.now_s)
    assert bench.client.is_closed


def test_cutting_unread_response_reports_interruption() -> None:
    bench = bench_with_unread_half()
    receive(bench, HALF)
    assert bench.connection.cut()
