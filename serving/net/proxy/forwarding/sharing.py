"""Functions with which shared slots read an exchange: its client, and how much the client has read.

The peer of a queue-proxy is an activator, so the client must be named in headers. A verified activator appends its own
peer to X-Forwarded-For. Behind a trusted proxy the client differs from that peer, and the activator names the client in
a separate header. This header is ignored from other senders.
"""

from collections.abc import Callable, Hashable

from serving.core.traffic.clients import client_address, network_of
from serving.core.traffic.openrequests import RequestView
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.requesthead import is_grpc_call

_CLIENT = b"k-client-address"
_CLIENT_LINE = b"K-Client-Address: %b\r\n"


def view_of(client_of: Callable[[Exchange], Hashable]) -> RequestView[Exchange]:
    """The functions by which admission reads an exchange. ``client_of`` returns its client, None if unlimited."""
    return RequestView[Exchange](
        is_open=lambda exchange: not exchange.body.is_complete or exchange.response.is_held,
        client_of=client_of,
        read_bytes_of=_read_bytes_of,
    )


def client_line(address: str) -> bytes:
    """Encode the header by which an activator names a client behind a trusted proxy."""
    return _CLIENT_LINE % address.encode()


def client_behind(exchange: Exchange, *, is_of_activator: bool, trusts: Callable[[str], bool]) -> str:
    """A pod's view of a request's client: the address named by a verified activator or trusted proxy, else the peer."""
    head, peer = exchange.head, exchange.peer.address.decode()
    if is_of_activator:
        named = head.get(_CLIENT)
        if named is not None:
            return named.decode("latin-1")
        way = [*head.values(b"x-forwarded-for")]
        return network_of(way[-1].rpartition(b",")[2].strip().decode("latin-1") if way else peer)
    return network_of(client_address(peer, [*head.values(b"x-forwarded-for")], trusts=trusts))


def _read_bytes_of(exchange: Exchange) -> int | None:
    """The response bytes that the client has read; None if the client need not read.

    Only differences of two results are exact, because the head is not counted as written.
    """
    if exchange.response.tunnel is not None or is_grpc_call(exchange.head):
        return None
    return exchange.response.body_bytes - exchange.client.unread_bytes()
