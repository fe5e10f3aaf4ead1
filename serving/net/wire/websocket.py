"""The client side of a websocket to another daemon; only this module imports the library's client."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from serving.net.aio.mutualtls import PeerTls, check_peer
from serving.net.aio.netns import connected_socket

_HTTP_PORT = 80
_OPEN_MAX_S = 5.0
# Time for the closing handshake, in seconds: one round trip within a cluster; the peer may be frozen.
_CLOSE_MAX_S = 0.5
# The peer sends announced pods, below 1,200 bytes each.
_MESSAGE_BYTES_MAX = 4096


class Websocket:
    """An open connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, frame: bytes) -> None:
        """Send one binary message.

        Raises:
            ConnectionError: when the connection has ended.
        """
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def closed(self, on_frame: Callable[[bytes], None]) -> str:
        """Wait for the connection to end, and return the reason. ``on_frame`` receives the peer's binary messages."""
        async for message in self._connection:
            if isinstance(message, bytes):
                on_frame(message)
        code, reason = self._connection.close_code, self._connection.close_reason
        return f"closed by the peer with {code} {reason}".rstrip()


class _CheckedConnection(ClientConnection):
    """A connection that checks the peer's identity before it sends the token."""

    secured: PeerTls

    async def handshake(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the library's own
        """Check the peer, then continue as the base class does."""
        check_peer(self.transport.get_extra_info("ssl_object"), self.secured)
        await super().handshake(*arguments, **named)


@contextlib.asynccontextmanager
async def connected(
    url: str, *, token: str, network: str = "", secured: PeerTls | None = None
) -> AsyncIterator[Websocket]:
    """Open a websocket as a context, from the network namespace at ``network``, over TLS if ``secured``.

    ``network`` is a path; "" is the current namespace.

    Raises:
        ConnectionError: when the websocket cannot be opened, or fails while it is open.
    """
    parts = urlsplit(url)
    where = parts.hostname or "", parts.port or _HTTP_PORT
    over_tls: dict[str, Any] = {}
    if secured is not None:
        url = f"wss{url.removeprefix('ws')}"
        # No server name is sent, because none is checked.
        checked = type("CheckedConnection", (_CheckedConnection,), {"secured": secured})
        over_tls = {"ssl": secured.tls.client, "server_hostname": "", "create_connection": checked}
    connecting = connect(
        url,
        sock=await connected_socket(*where, network=network) if network else None,
        additional_headers={"Authorization": f"Bearer {token}"},
        compression=None,
        open_timeout=_OPEN_MAX_S,
        close_timeout=_CLOSE_MAX_S,
        max_size=_MESSAGE_BYTES_MAX,
        proxy=None,
        **over_tls,
    )
    try:
        async with connecting as connection:
            yield Websocket(connection)
    except WebSocketException as error:
        raise ConnectionError(str(error)) from error
