"""Connections to apps that do not speak HTTP."""

import time

from serving.proxy.forwarding.relay import RelayPool, RelayUpstream, is_relay, relay_head
from serving.settings.http import HttpSettings
from tests.unit.proxy.wires import Wire


def connected() -> tuple[RelayPool, RelayUpstream, Wire]:
    pool, wire = RelayPool(HttpSettings(), clock=time.monotonic), Wire()
    upstream = RelayUpstream(pool, ("127.0.0.1", 1))
    upstream.connection_made(wire)
    return pool, upstream, wire


def test_a_connection_whose_client_has_left_is_closed() -> None:
    pool, upstream, wire = connected()
    pool.give(upstream)
    assert wire.is_closed
    assert pool.idle_count == 0


def test_an_app_that_speaks_first_is_heard_later() -> None:
    _, upstream, wire = connected()
    upstream.data_received(b"220 ready\r\n")
    assert wire.is_reading_paused
    assert not wire.is_closed


def test_a_head_of_a_client_is_no_relay() -> None:
    # Its marker is written on the wire only; the queue-proxy reads it from the lines of a head that it believes.
    assert not is_relay(relay_head(b"h"))
    assert relay_head(b"h").wire == b"k-tcp-relay: 1\r\n"
