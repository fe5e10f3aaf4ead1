"""Connections to apps that speak HTTP/2 with prior knowledge (h2c): one per address, a stream per request.

``Http2Pool`` replaces the pool. Another connection to an address is made only when the app takes no more streams on
the existing ones; requests that need one while it is being made wait for that one. As in ``serving.net.proxy.http1.pool``, a request
that must not be sent twice gets no connection that has been idle for long, and one that stays idle is closed.
"""

import asyncio
import math
from collections.abc import Callable

from serving.core.settings.http import HttpSettings
from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.connectionqueue import Waiter
from serving.net.proxy.http1.pool import Connector, Pool
from serving.net.proxy.http1.upstream import Address, RequestCarrier
from serving.net.proxy.http2.upstream import StreamUpstream
from serving.net.proxy.http2.upstreamsession import UpstreamSession

# As for HTTP/1.1: half of the shortest keep-alive time of common servers.
_SURE_IDLE_MAX_S = 1.0


class Http2Pool(Pool):
    """A pool of upstreams that speak HTTP/2."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Callable[[], float],
        connector: Connector | None = None,
        turns: FairTurns | None = None,
    ) -> None:
        super().__init__(settings, clock=clock, connector=connector, turns=turns)
        self.settings = settings
        self._links: dict[Address, list[UpstreamSession]] = {}
        self._making: dict[Address, asyncio.Task[UpstreamSession]] = {}

    @property
    def open_count(self) -> int:
        """The number of open connections."""
        return sum(map(len, self._links.values()))

    def acquire(self, address: Address, *, sure: bool = False) -> RequestCarrier | None:
        """Return a stream of a connection with capacity."""
        link = self._link_with_room(address, sure=sure)
        return None if link is None else StreamUpstream(link, self)

    def connect(self, address: Address, waiter: Waiter, *, new: bool = False) -> None:
        """Pass a stream to ``waiter`` once a connection has capacity; streams are always new."""
        del new
        self._connecting.start(self._open_stream(address, waiter), name=f"connect {address}")

    def again(self, stream: StreamUpstream) -> None:
        """Send a refused, unprocessed stream on another link."""
        self._connecting.start(self._move(stream), name=f"again {stream.address}")

    def lost(self, link: UpstreamSession) -> None:
        """Remove a connection that has ended or accepts no new streams."""
        links = self._links.get(link.address, [])
        if link in links:
            links.remove(link)
        if not links:
            self._links.pop(link.address, None)

    def expire(self, now_s: float) -> float:
        """Close connections that were idle for too long; return the next deadline."""
        due_s = math.inf
        for link in [link for links in self._links.values() for link in links if link.is_idle]:
            if link.used_s + self._idle_max_s <= now_s:
                link.close()
            else:
                due_s = min(due_s, link.used_s + self._idle_max_s)
        return due_s

    def close(self) -> None:
        """Close all connections, and cancel connection attempts."""
        super().close()
        for link in [link for links in self._links.values() for link in links]:
            link.close()

    async def _open_stream(self, address: Address, waiter: Waiter) -> None:
        try:
            link = await self._link(address)
        except OSError as error:
            if waiter.is_waiting:
                waiter.unreachable(error)
        else:
            if waiter.is_waiting:
                waiter.connected(StreamUpstream(link, self))

    async def _move(self, stream: StreamUpstream) -> None:
        try:
            link = await self._link(stream.address)
        except OSError as error:
            stream.refused(f"no other connection is taken: {error}")
        else:
            stream.restart(link)

    async def _link(self, address: Address) -> UpstreamSession:
        """A link with capacity, created if needed."""
        while True:
            link = self._link_with_room(address)
            if link is not None:
                return link
            making = self._making.get(address)
            if making is None:
                making = self._making[address] = self._connecting.start(
                    self._make(address), name=f"make {address}", is_awaited=True
                )
                making.add_done_callback(lambda task: self._made(address, task))
            # Shielded: a cancelled request leaves the connection attempt to the others.
            session = await asyncio.shield(making)
            if not session.is_open:
                why = session.violation or "it closed a new connection at once"
                raise ConnectionResetError(f"{address[0]}:{address[1]}: {why}")

    async def _make(self, address: Address) -> UpstreamSession:
        host, port = address
        turn = self.connector.turn
        try:
            async with asyncio.timeout(self._connect_max_s):
                link = await self.connector.connect(lambda: UpstreamSession(self, address), address)
        except TimeoutError:
            raise TimeoutError(f"no connection to {host}:{port} within {self._connect_max_s} s") from None
        link.turn = turn
        self._links.setdefault(address, []).append(link)
        return link

    def _link_with_room(self, address: Address, *, sure: bool = False) -> UpstreamSession | None:
        for link in list(self._links.get(address, ())):
            if link.turn != self.connector.turn:
                # Its streams continue, and ``expire`` closes it afterwards.
                continue
            if sure and link.is_idle and self.clock() - link.used_s > _SURE_IDLE_MAX_S:
                # The app may be closing it, and then it would be unknown whether the request arrived.
                link.close()
            if link.has_room:
                return link
        return None

    def _made(self, address: Address, task: "asyncio.Task[UpstreamSession]") -> None:
        del self._making[address]
        if not task.cancelled():
            # Retrieved, because asyncio logs unretrieved exceptions, and all requests may have disconnected.
            task.exception()
