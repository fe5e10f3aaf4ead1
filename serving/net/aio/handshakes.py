"""Accepts TLS connections for a listener, and limits those that have not sent a request yet.

Any client can open such a connection, which costs some 110 KB. It has ``HANDSHAKE_S`` for its handshake and ``HEAD_S``
for the head of its first request. Their number is bounded per address and in total; beyond a bound, the oldest one is
closed. A normal client needs only milliseconds. An address that opens many connections therefore affects only itself.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import cast

from serving.net.aio.supervise import TaskOwner, supervise

HANDSHAKE_S = 5.0
"""Longest handshake, in seconds."""

HEAD_S = 30.0
"""Longest time from a handshake to the end of the first request's head, in seconds."""

_HEAD_BYTES_MAX = 65_536
_HEAD_END = b"\r\n\r\n"
# Pause, in seconds, when no file descriptor is free.
_ACCEPT_PAUSE_S = 0.1

MakeProtocol = Callable[[], asyncio.Protocol]
"""Creates the protocol of a connection."""


class Handshakes:
    """The connections of one listener that have not sent a request yet."""

    def __init__(self, context: ssl.SSLContext, *, per_address_max: int = 64, total_max: int = 256) -> None:
        self._context = context
        self._per_address_max = per_address_max
        self._total_max = total_max
        self._tasks = TaskOwner()
        # In order of arrival.
        self._addresses: dict[asyncio.Task[None], str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._addresses)

    @contextlib.asynccontextmanager
    async def serving(self, listener: socket.socket, make: MakeProtocol) -> AsyncIterator[None]:
        """Accept connections while the context is open; at the end, close ``listener``."""
        listener.setblocking(False)
        with listener:
            async with self._tasks, supervise() as tasks:
                tasks.start_background(self._accept(listener, make), name="TLS listener")
                yield

    async def _accept(self, listener: socket.socket, make: MakeProtocol) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._begin(connection, str(peer[0]) if peer else "", make)

    def _begin(self, connection: socket.socket, address: str, make: MakeProtocol) -> None:
        """Begin a handshake. If a limit is exceeded, close the oldest connection."""
        if self._counts[address] >= self._per_address_max:
            self._close(next(task for task, other in self._addresses.items() if other == address))
        elif len(self._addresses) >= self._total_max:
            self._close(next(iter(self._addresses)))
        task = self._tasks.start(self._serve(connection, make), name="TLS handshake")
        self._addresses[task] = address
        self._counts[address] += 1
        task.add_done_callback(self._forget)

    def _close(self, task: "asyncio.Task[None]") -> None:
        task.cancel()
        self._forget(task)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        address = self._addresses.pop(task, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    async def _serve(self, connection: socket.socket, make: MakeProtocol) -> None:
        """Start the protocol of a connection once the head of its first request is complete."""
        loop, first = asyncio.get_running_loop(), _FirstRequest()
        try:
            await loop.connect_accepted_socket(
                lambda: first, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            async with asyncio.timeout(HEAD_S):
                await first.is_complete.wait()
            transport = first.transport
            if transport is None or first.is_lost:
                return
            first.transport = None
            protocol = make()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(bytes(first.data))
        except OSError:
            return
        finally:
            if first.transport is not None:
                first.transport.abort()


class _FirstRequest(asyncio.Protocol):
    """Buffers received bytes until the head of the first request is complete."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.is_lost = False
        self.is_complete = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        searched_from = max(0, len(self.data) - len(_HEAD_END))
        self.data += data
        if self.data.find(_HEAD_END, searched_from) >= 0 or len(self.data) > _HEAD_BYTES_MAX:
            self.is_complete.set()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        self.is_complete.set()
