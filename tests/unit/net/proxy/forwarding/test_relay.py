"""Connections to apps that do not speak HTTP."""

import time

import msgspec
import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.relay import RelayPool, RelayUpstream, relay_head, relay_port
from serving.net.proxy.http1.lines import HeaderLine
from tests.unit.net.proxy.wires import APP, Bench, Wire

GREETING = b"220 ready\r\n"


def connected() -> tuple[RelayPool, RelayUpstream, Wire]:
    pool, wire = RelayPool(HttpSettings(), clock=time.monotonic), Wire()
    upstream = RelayUpstream(pool, ("127.0.0.1", 1))
    upstream.connection_made(wire)
    return pool, upstream, wire


def test_released_relay_connection_is_closed() -> None:
    pool, upstream, wire = connected()
    pool.release(upstream)
    assert wire.is_closed
    assert pool.idle_count == 0


class RelayBench(Bench):
    """Every app sends ``GREETING`` before its connection gets a request."""

    def begin(self, exchange: Exchange) -> None:
        upstream, app = RelayUpstream(self.pool, APP), Wire()
        upstream.connection_made(app)
        self.pool.release(upstream)
        upstream.data_received(GREETING)
        assert (app.is_reading_paused, app.is_closed) == (True, False)
        self.upstreams.append(upstream)
        self.apps.append(app)
        exchange.forward(APP)


def test_app_that_sends_first_is_paused_until_tunnel_is_open() -> None:
    bench = RelayBench()
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: serving-tcp\r\n\r\n")
    ((upstream, app),) = zip(bench.upstreams, bench.apps, strict=True)
    assert bench.client.written.startswith(b"HTTP/1.1 101 ")
    assert bench.client.written.endswith(b"\r\n\r\n" + GREETING)
    assert not app.is_reading_paused
    upstream.data_received(b"more")
    assert bench.client.written.endswith(GREETING + b"more")
    assert app.written == b""


def test_relay_marker_is_written_to_wire_only() -> None:
    # The marker is in the wire bytes only; the queue-proxy reads it from the lines of a trusted head.
    head = relay_head(b"h", 5432)
    assert relay_port(head) is None
    assert head.wire == b"k-tcp-relay: 5432\r\n"


@pytest.mark.parametrize(("text", "port"), [(b"5432", 5432), (b"x", 0), (b"123456", 0)])
def test_relay_port_is_read_from_header_line(text: bytes, port: int) -> None:
    line = HeaderLine(name=b"k-tcp-relay", value=text, wire=b"", plain=False, matters=True)
    head = msgspec.structs.replace(relay_head(b"h", 1), lines=[line])
    assert relay_port(head) == port
