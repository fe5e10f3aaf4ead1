"""Hands connections over to HTTP/2, after its preface or ALPN (RFC 9113, section 3.4).

The strict reader of HTTP/1.1 refuses the preface's first line, so that looking for it costs other requests nothing. The
library is imported by the first such connection: most sidecars never see one, and it takes memory.
"""

import asyncio

from serving.proxy.forwarding.exchange import Wiring
from serving.proxy.forwarding.registry import Registry
from serving.proxy.http1.rendering import ClientPeer

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


def hand_over(
    data: bytes, registry: Registry, wiring: Wiring, *, transport: asyncio.Transport, peer: ClientPeer
) -> None:
    """Pass a connection to a session, with the bytes received so far."""
    start_session(registry, wiring, transport=transport, peer=peer).data_received(data)


def start_session(
    registry: Registry, wiring: Wiring, *, transport: asyncio.Transport, peer: ClientPeer
) -> asyncio.Protocol:
    """Start an HTTP/2 session on an unread connection, as negotiated by ALPN."""
    from serving.proxy.http2.session import Session  # noqa: PLC0415 - see the module

    session = Session(registry, wiring, transport, peer=peer, address=peer.address.decode())
    transport.set_protocol(session)
    return session
