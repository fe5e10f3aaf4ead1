"""Listening sockets and their connections: time limits and shutdown.

``HttpServer`` makes a ``Connection`` for each client. Requests have no timers. Each connection reports its next
deadline, and one sweep checks all connections, at most once in 100 ms and not before the first deadline. Shutdown has
two steps (docs/architecture.md, drain). ``drain`` makes every response the last of its connection, while new
connections are still accepted. ``finish`` stops accepting, waits for running requests, and cuts them off after the
grace period.
"""

import asyncio
import contextlib
import logging
import math
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

from serving.core.settings.http import REPLACE, HttpSettings
from serving.net.aio.supervise import TaskOwner
from serving.net.aio.turns import FairTurns
from serving.net.proxy.forwarding.accesslog import AccessLog, ExchangeLog
from serving.net.proxy.forwarding.client import Member, Refusals
from serving.net.proxy.forwarding.exchange import BodyWait, Exchange, Handler, Wiring
from serving.net.proxy.forwarding.pace import ResponseBuffers, body_pace, read_pace
from serving.net.proxy.forwarding.policy import member_of
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.server.connection import Connection

# Pause after errors such as too few descriptors, in seconds.
_PAUSE_S = 0.1

# Longest delay after a limit, in seconds. A sweep over 10,000 connections takes about 3 ms.
_SWEEP_SPACING_S = 0.1
# The kernel caps it at net.core.somaxconn; a smaller backlog would refuse connections in a burst.
_BACKLOG = 4096


# Descriptors not available to clients: listeners, logs, and connections to the API and between daemons.
_DESCRIPTORS_KEPT = 64
# Descriptors of one client connection and its upstream connection.
_DESCRIPTORS_EACH = 2
_CONNECTIONS_MIN = 16
# Time between two log lines about connections closed for lack of descriptors, in seconds.
_LOG_PAUSE_S = 60.0

_log = logging.getLogger(__name__)


def _affordable_count() -> float:
    """How many client connections, each with an upstream, the process's limit of open files allows (getrlimit(2))."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return max(_CONNECTIONS_MIN, (limit - _DESCRIPTORS_KEPT) // _DESCRIPTORS_EACH)


class Acceptor:
    """Accepts connections from a non-blocking socket; ``factory`` creates the protocol of each."""

    def __init__(self, listening: socket.socket, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._factory = factory
        self._tasks = TaskOwner()
        self._paused: asyncio.TimerHandle | None = None
        self._logged_s = -math.inf
        self._resume()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket, in the form of asyncio's servers."""
        return (self._listening,)

    def close(self) -> None:
        """Stop accepting; other processes on the same socket continue."""
        if self._paused is not None:
            self._paused.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another process was faster, or the client has disconnected.
            return
        except OSError as error:
            if self._loop.time() >= self._logged_s + _LOG_PAUSE_S:
                self._logged_s = self._loop.time()
                _log.warning("connections.not_accepted", extra={"error": str(error)})
            self._loop.remove_reader(self._listening)
            self._paused = self._loop.call_later(_PAUSE_S, self._resume)
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tasks.start(self._begin(sock), name="accept")

    async def _begin(self, sock: socket.socket) -> None:
        # A client that has already disconnected is not an error.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(self._factory, sock)


class HttpServer:
    """The server side of a proxy, with its upstream pool. ``name`` is its name in Proxy-Status; "" sends none."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        pool: Pool | None = None,
        clock: Callable[[], float] = time.monotonic,
        access_log: AccessLog | None = None,
        request_log: ExchangeLog[Any] | None = None,
        name: bytes = b"",
    ) -> None:
        self.settings = settings
        self._name = name
        self.access_log = access_log
        self.request_log = request_log
        self.draining = False
        self.finishing = False
        self.clock = clock
        self.pool = Pool(settings, clock=clock) if pool is None else pool
        self._streams: Pool | None = None
        self._listeners: list[asyncio.Server | Acceptor] = []
        # A dict as ordered set: the oldest idle connection is closed first.
        self._connections: dict[Member, None] = {}
        self._affordable_count = _affordable_count()
        self._shed_count = 0
        self._shed_logged_s = -math.inf
        self._per_address: dict[str, int] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.sweep_s = math.inf
        self.refusals = Refusals()
        self.buffers = ResponseBuffers.of(settings)
        self._tunnel_count = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._only_tunnels = asyncio.Event()
        self._only_tunnels.set()

    @property
    def turns(self) -> FairTurns:
        """The queue for costly work, shared by client and upstream connections so that none delays the others."""
        return self.pool.turns

    @property
    def connection_count(self) -> int:
        """The number of client connections."""
        return len(self._connections)

    async def listen(
        self,
        where: socket.socket | tuple[str, int],
        handler: Handler,
        *,
        listener: str = "",
        takes_turns: bool = False,
        make: "Callable[[HttpServer, Wiring], asyncio.Protocol]" = Connection,
        shares_port: bool = False,
    ) -> tuple[str, int]:
        """Accept connections from a bound socket, or at an address; return the address.

        ``listener`` is the listener's name for the handler. ``takes_turns``: processes that share the socket accept in
        turn. ``make`` creates the protocol of a new connection, for example TLS. ``shares_port``: other processes of
        this user may listen at the same address.
        """
        wiring = self._wiring(handler, listener)

        def factory() -> asyncio.Protocol:
            return make(self, wiring)

        loop = asyncio.get_running_loop()
        server: asyncio.Server | Acceptor
        if isinstance(where, socket.socket) and takes_turns:
            # A bound socket refuses connections until it listens.
            where.listen(_BACKLOG)
            server = Acceptor(where, factory)
        elif isinstance(where, socket.socket):
            server = await loop.create_server(factory, sock=where, backlog=_BACKLOG)
        else:
            server = await loop.create_server(
                factory, *where, backlog=_BACKLOG, reuse_address=True, reuse_port=shares_port or None
            )
        host, port = server.sockets[0].getsockname()[:2]
        if self.draining:
            # The shutdown began while this listener was opened, and closed only the existing ones.
            server.close()
        else:
            self._listeners.append(server)
        return host, port

    def close_idle_upstreams(self) -> None:
        """Close all idle upstream connections, because an upstream may have closed one without notice."""
        for pool in (self.pool, self._streams):
            if pool is not None:
                pool.expire(math.inf)

    def drain(self) -> None:
        """Close each connection after its next response. Idle connections stay open until ``finish``."""
        self.draining = True
        for connection in list(self._connections):
            if not connection.is_idle:
                connection.close_if_idle()

    def hand_over(self) -> None:
        """Stop accepting, because another process accepts. Connections close after their next response."""
        self.draining = True
        self.close_listeners()
        for connection in list(self._connections):
            connection.wind_down()

    def close_listeners(self, where: tuple[str, int] | None = None) -> None:
        """Close all listeners, or the listener at an address. Their connections stay open."""
        for server in [
            listener for listener in self._listeners if where in (None, listener.sockets[0].getsockname()[:2])
        ]:
            server.close()
            self._listeners.remove(server)

    def stop_accepting(self) -> None:
        """Stop accepting connections, and close idle ones."""
        self.draining = self.finishing = True
        self.close_listeners()
        for connection in list(self._connections):
            connection.close_if_idle()

    async def wait_for_requests(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds for all requests except tunnels to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._only_tunnels.wait()

    async def wait_for_tunnels(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds for all connections to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()

    async def finish(self, *, grace_s: float) -> int:
        """Stop accepting, wait up to ``grace_s`` seconds, and cut off the rest; return how many were cut off."""
        self.stop_accepting()
        await self.wait_for_tunnels(grace_s=grace_s)
        cut_count = sum([connection.cut() for connection in list(self._connections)])
        self.pool.close()
        if self._streams is not None:
            self._streams.close()
        if self._sweep is not None:
            self._sweep.cancel()
        return cut_count

    def stream_pool(self) -> Pool:
        """The pool of HTTP/2 upstream connections, created on first use."""
        from serving.net.proxy.http2.upstream import Http2Pool  # noqa: PLC0415 - most daemons need none of it

        if isinstance(self.pool, Http2Pool):
            return self.pool
        if self._streams is None:
            self._streams = Http2Pool(
                self.settings, clock=self.clock, connector=self.pool.connector, turns=self.pool.turns
            )
        return self._streams

    # Called by connections.

    def opened(self, connection: Member, address: str) -> str | None:
        """Add a client connection. If it exceeds a limit, return the reason."""
        settings = self.settings
        self._connections[connection] = None
        self._empty.clear()
        self._only_tunnels.clear()
        count = self._per_address[address] = self._per_address.get(address, 0) + 1
        if len(self._connections) > settings.connections_max:
            return f"more than {settings.connections_max} connections"
        if 0 < settings.connections_per_address_max < count:
            return f"more than {settings.connections_per_address_max} connections from one address"
        if len(self._connections) > self._affordable_count and not self._shed(connection):
            return f"more than {self._affordable_count} connections"
        return None

    def _shed(self, newest: Member) -> bool:
        """Close the oldest idle connection to release a descriptor for ``newest``; False if all are in use."""
        idle = next(
            (connection for connection in self._connections if connection is not newest and connection.is_idle), None
        )
        self._shed_count += 1
        if self.clock() >= self._shed_logged_s + _LOG_PAUSE_S:
            self._shed_logged_s = self.clock()
            limit, closed = self._affordable_count, "an idle connection" if idle is not None else "a new connection"
            reason = f"the limit of open files (ulimit -n) is for {limit} connections: {closed} was closed"
            _log.warning("connections.shed", extra={"reason": reason, "count": self._shed_count})
        if idle is None:
            return False
        idle.close_if_idle()
        return True

    def closed(self, connection: Member, address: str) -> None:
        """Remove a closed client connection."""
        self._connections.pop(connection, None)
        count = self._per_address[address] - 1
        if count:
            self._per_address[address] = count
        else:
            del self._per_address[address]
        self._update_only_tunnels()
        if not self._connections:
            self._empty.set()

    def count_tunnel(self, change: int) -> None:
        """Count an opened (1) or ended (-1) tunnel."""
        self._tunnel_count += change
        self._update_only_tunnels()

    def _update_only_tunnels(self) -> None:
        if len(self._connections) <= self._tunnel_count:
            self._only_tunnels.set()
        else:
            self._only_tunnels.clear()

    def wake_by(self, due_s: float) -> None:
        """Schedule a sweep at that time, or soon after."""
        if due_s < self.sweep_s:
            if self._sweep is not None:
                self._sweep.cancel()
            delay_s = max(_SWEEP_SPACING_S, due_s - self.clock())
            self.sweep_s = self.clock() + delay_s
            self._sweep = asyncio.get_running_loop().call_later(delay_s, self._check_connections)

    def _check_connections(self) -> None:
        now_s = self.clock()
        # No other sweep is scheduled while this one runs, because its result covers all connections.
        self.sweep_s = -math.inf
        due_s = self.pool.expire(now_s)
        for connection in list(self._connections):
            try:
                due_s = min(due_s, connection.check(now_s))
            except Exception:  # noqa: BLE001 - the time limits of the other connections must apply
                _log.exception("connection.check_failed", extra={"connection": repr(connection)})
                asyncio.get_running_loop().call_soon(connection.cut)
        if self._streams is not None:
            due_s = min(due_s, self._streams.expire(now_s))
        self._sweep = None
        self.sweep_s = math.inf
        if due_s < math.inf:
            self.wake_by(due_s)

    def _record(self, exchange: Exchange) -> None:
        for log in (self.access_log, self.request_log):
            if log is not None:
                log.record(exchange, now_s=self.clock())

    def _wiring(self, handler: Handler, listener: str) -> Wiring:
        settings = self.settings
        return Wiring(
            handler=handler,
            pool=self.pool,
            stream_pool=self.stream_pool,
            clock=self.clock,
            listener=listener,
            buffered_bytes_max=settings.body_held_bytes_max,
            body_pace=body_pace(settings),
            read_pace=read_pace(settings),
            body_wait=BodyWait(settings.body_held_bytes_max, is_on=settings.slot_after_body),
            buffers=self.buffers,
            on_end=self._record if self.access_log is not None or self.request_log is not None else None,
            trusts=member_of(settings.trusted_proxies),
            replaces_claims=settings.forwarded_for == REPLACE,
            name=self._name,
            tunnel_limits=(settings.tunnel_idle_max_s or math.inf, settings.tunnel_age_max_s or math.inf),
        )
