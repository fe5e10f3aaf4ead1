"""Connections to apps that do not speak HTTP."""

import time

import msgspec
import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.relay import RelayPool, RelayUpstream, relay_head, relay_port
from serving.net.proxy.http1.lines import HeaderLine
from tests.unit.net.proxy.wires import Wire


def connected() -> tuple[RelayPool, RelayUpstream, Wire]:
    pool, wire = RelayPool(HttpSettings(), clock=time.monotonic), Wire()
    upstream = RelayUpstream(pool, ("127.0.0.1", 1))
    upstream.connection_made(wire)
    return pool, upstream, wire


def test_a_connection_whose_client_has_left_is_closed() -> None:
    pool, upstream, wire = connected()
    pool.release(upstream)
    assert wire.is_closed
    assert pool.idle_count == 0


def test_an_app_that_speaks_first_is_heard_later() -> None:
    _, upstream, wire = connected()
    upstream.data_received(b"220 ready\r\n")
    assert wire.is_reading_paused
    assert not wire.is_closed


def test_a_head_of_a_client_is_no_relay() -> None:
    # Its marker is written on the wire only; the queue-proxy reads it from the lines of a head that it believes.
    head = relay_head(b"h", 5432)
    assert relay_port(head) is None
    assert head.wire == b"k-tcp-relay: 5432\r\n"


@pytest.mark.parametrize(("text", "port"), [(b"5432", 5432), (b"x", 0), (b"123456", 0)])
def test_a_head_names_the_port_that_the_client_connected_to(text: bytes, port: int) -> None:
    line = HeaderLine(name=b"k-tcp-relay", value=text, wire=b"", plain=False, matters=True)
    head = msgspec.structs.replace(relay_head(b"h", 1), lines=[line])
    assert relay_port(head) == port
