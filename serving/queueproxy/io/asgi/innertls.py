"""Inner TLS in front of an ASGI server's protocol, invisible to the server.

A connection uses TLS with a certificate of the installation's authority, or plain HTTP. ``AsgiPod`` decides which
requests are allowed on each. The server's protocol gets the peer's identity in the state of its scopes.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from serving.net.aio.mutualtls import NO_TLS, MutualTls
from serving.net.proxy.http1.rendering import IDENTITY
from serving.net.proxy.tls.connector import RefusalLog
from serving.net.proxy.tls.front import TlsFront
from serving.queueproxy.io.asgi.pod import PEER_STATE

MakeProtocol = Callable[..., asyncio.Protocol]
"""Creates the protocol of a connection, as uvicorn does: with ``app_state`` and other keyword arguments."""


class InnerFront:
    """Terminates inner TLS for one pod's connections, with the current certificate."""

    def __init__(self, tls: MutualTls) -> None:
        self._tls = tls
        self._refusals = RefusalLog(tls)

    def before(self, make: MakeProtocol, options: dict[str, Any]) -> asyncio.Protocol:
        """The protocol of a connection. After the handshake, it creates the server's protocol with ``make``."""

        def server() -> asyncio.Protocol:
            state = {**options["app_state"], PEER_STATE: front.get_extra_info(IDENTITY)}
            return make(**{**options, "app_state": state})

        front = TlsFront(self._tls.server, server, refusals=self._refusals)
        return front

    def refuse_plain(self, address: str) -> None:
        """Count and log a client that does not use the required TLS."""
        self._refusals.refuse(address, NO_TLS)
