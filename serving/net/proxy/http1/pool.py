"""Upstream connections that are kept open between requests, by address.

A request uses the most recently used connection, so that the others become idle and are closed. The pool has at most as
many connections as the peak of requests in flight, which the listeners limit. With fewer idle connections each burst
would open many new ones. A request that must not be sent twice uses only a recently used connection. An upstream may
just be closing an older one, and then it is unknown whether the request arrived.

A request without an idle connection waits for a new connection, or for one that another request releases first. Few
connections to one address are opened at a time, so that the handshakes of a burst do not delay each other.
"""

import asyncio
import contextlib
import math
import os
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from serving.core.settings.http import HttpSettings
from serving.core.traffic.backoff import backoff_s
from serving.net.aio.supervise import TaskOwner
from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.upstream import Address, RequestCarrier, Upstream


class Waiter(Protocol):
    """Waits for a connection.

    The pool calls at most one of its methods, once, and none after ``is_waiting`` became False.
    """

    @property
    def is_waiting(self) -> bool:
        """Whether a connection is still needed."""

    def connected(self, upstream: RequestCarrier) -> None:
        """Process the connection."""

    def unreachable(self, error: OSError) -> None:
        """Process a failure to connect."""


class _QueuedRequest(NamedTuple):
    waiter: Waiter
    since_s: float
    is_for_new: bool


class ConnectionQueue:
    """The requests that wait for a connection. A request whose ``is_waiting`` became False is skipped."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: dict[Address, deque[_QueuedRequest]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether any request may be waiting."""
        return bool(self._requests)

    def count(self, address: Address) -> int:
        """The number of requests that wait for an address."""
        return len(self._requests.get(address, ()))

    def add(self, address: Address, waiter: Waiter, *, since_s: float, is_for_new: bool) -> None:
        """Enqueue a request. ``is_for_new``: it needs a connection that has carried no other request."""
        self._requests.setdefault(address, deque()).append(_QueuedRequest(waiter, since_s, is_for_new))

    def pop(self, address: Address, *, is_reused: bool) -> Waiter | None:
        """Remove and return the first request that accepts the connection; None if there is none."""
        passed: list[_QueuedRequest] = []
        taken = self._next(address)
        while taken is not None and taken.is_for_new and is_reused:
            passed.append(taken)
            taken = self._next(address)
        if passed:
            self._requests.setdefault(address, deque()).extendleft(reversed(passed))
        return None if taken is None else taken.waiter

    def failed(self, address: Address, *, before_s: float) -> list[Waiter]:
        """Remove and return the requests that a failed connection attempt also fails.

        These are the requests enqueued by ``before_s``; if there are none, the first request.
        """
        failed: list[Waiter] = []
        while (first := self._next(address)) is not None:
            if failed and first.since_s > before_s:
                self._requests.setdefault(address, deque()).appendleft(first)
                break
            failed.append(first.waiter)
        return failed

    def _next(self, address: Address) -> _QueuedRequest | None:
        """Remove and return the first request that still waits."""
        requests = self._requests.get(address)
        waiting = None
        while requests and waiting is None:
            request = requests.popleft()
            waiting = request if request.waiter.is_waiting else None
        if requests is not None and not requests:
            del self._requests[address]
        return waiting


SURE_IDLE_MAX_S = 1.0
"""Half of the shortest keep-alive time of common servers (gunicorn: 2 s; Node and uvicorn: 5 s)."""

# Parallel connection attempts: a network round trip is far longer than opening a connection.
_ATTEMPTS_MAX = 64
# First connect timeout, in seconds; it doubles up to the longest. Knative's dialer: 50 ms, times 1.4.
_ATTEMPT_FIRST_S = 0.25
_ATTEMPT_MAX_S = 4.0
# The same for an app on this machine, whose handshake takes microseconds; a slow attempt delays the following ones.
_APP_ATTEMPT_FIRST_S = 0.01
_APP_ATTEMPT_MAX_S = 0.25


UpstreamProtocol = TypeVar("UpstreamProtocol", bound=asyncio.Protocol)


def connection_failure(error: OSError) -> str:
    """Describe a failed connection for clients, without the address in the error's text."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return "refused"


class Connector(Protocol):
    """Opens upstream connections, at most ``attempts_max`` at a time to one address.

    When ``turn`` changes, earlier connections must not be reused.
    """

    attempts_max: int

    @property
    def turn(self) -> int:
        """A number that changes when open connections must not be reused any longer."""

    async def connect(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        """Connect; return the protocol that ``make`` created. Raises ``OSError``."""


class PlainConnector:
    """Opens plain TCP connections.

    ``check`` is called with host and port before and after a connection is opened. It raises ``OSError`` if the
    connection must not be used.
    """

    turn = 0
    attempts_max = _ATTEMPTS_MAX
    attempt_first_s, attempt_max_s = _ATTEMPT_FIRST_S, _ATTEMPT_MAX_S

    def __init__(self, check: Callable[[str, int], None] | None = None) -> None:
        self._check = check

    async def connect(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        """Connect. Repeat an unanswered attempt until the caller cancels.

        A server with a full accept queue drops the attempt, and the kernel repeats it only after 1, 3 and 7 s.
        """
        loop = asyncio.get_running_loop()
        attempt = 0
        if self._check is not None:
            self._check(*address)
        while True:
            attempt += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s(attempt, first_s=self.attempt_first_s, max_s=self.attempt_max_s)):
                    transport, protocol = await loop.create_connection(make, *address)
                    break
        if self._check is not None:
            try:
                self._check(*address)
            except OSError:
                transport.abort()
                raise
        return protocol


class AppConnector(PlainConnector):
    """Opens connections to the app of the same pod, one handshake at a time.

    Several simultaneous handshakes overfill a short accept queue. The kernel then drops the last packet of a handshake
    that is complete for the queue-proxy. The request on this connection waits for retransmissions, after 0.2, 0.4 and
    up to 100 s.
    """

    attempts_max = 1
    attempt_first_s, attempt_max_s = _APP_ATTEMPT_FIRST_S, _APP_ATTEMPT_MAX_S


class Pool:
    """The upstream connections to all addresses. ``connector`` opens them; by default, plain TCP."""

    __slots__ = (
        "_attempts",
        "_connect_max_s",
        "_connecting",
        "_idle",
        "_idle_max_s",
        "_open",
        "_queue",
        "clock",
        "connector",
        "head_bytes_max",
        "header_count_max",
        "turns",
    )

    make: "ClassVar[type[Upstream]]" = Upstream
    """Creates the upstream for a new connection."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Callable[[], float],
        connector: Connector | None = None,
        turns: FairTurns | None = None,
    ) -> None:
        self.clock = clock
        self.turns = turns or FairTurns()
        """Shared with the connections of clients."""
        self.connector: Connector = connector or PlainConnector()
        self.head_bytes_max = settings.head_bytes_max
        self.header_count_max = settings.header_count_max
        self._idle_max_s = settings.upstream_idle_max_s
        self._connect_max_s = settings.upstream_connect_max_s
        # Dicts as ordered sets: last in, first out, and removal in constant time.
        self._idle: dict[Address, dict[Upstream, None]] = {}
        self._open: set[Upstream] = set()
        self._connecting = TaskOwner()
        self._attempts: Counter[Address] = Counter()
        self._queue = ConnectionQueue()

    def __repr__(self) -> str:
        return f"Pool(open {len(self._open)}, idle {self.idle_count}, connecting {len(self._connecting)})"

    @property
    def idle_count(self) -> int:
        """The number of idle connections."""
        return sum(map(len, self._idle.values()))

    @property
    def open_count(self) -> int:
        """The number of connections, idle or in use."""
        return len(self._open)

    def acquire(self, address: Address, *, sure: bool = False) -> RequestCarrier | None:
        """Return an idle connection, or None. ``sure`` requires a connection that was used recently."""
        idle = self._idle.get(address)
        while idle:
            upstream, _ = idle.popitem()
            if upstream.turn != self.connector.turn:
                upstream.close()
            elif upstream.is_usable:
                if sure and self.clock() - upstream.idle_since_s > SURE_IDLE_MAX_S:
                    idle[upstream] = None
                    return None
                return upstream
        return None

    def release(self, upstream: RequestCarrier) -> None:
        """Pass a connection to a waiting request, or keep it for the next request."""
        assert isinstance(upstream, Upstream)
        # A paused connection would not receive the next response.
        upstream.pause_reading(full=False)
        upstream.is_reused = True
        if self._queue.is_waiting and upstream.turn == self.connector.turn:
            waiter = self._queue.pop(upstream.address, is_reused=True)
            if waiter is not None:
                waiter.connected(upstream)
                return
        upstream.idle_since_s = self.clock()
        idle = self._idle.get(upstream.address)
        if idle is None:
            idle = self._idle[upstream.address] = {}
        idle[upstream] = None

    def forget(self, upstream: Upstream) -> None:
        """Remove an ended connection."""
        self._open.discard(upstream)
        idle = self._idle.get(upstream.address)
        if idle is not None:
            idle.pop(upstream, None)
            if not idle:
                del self._idle[upstream.address]

    def connect(self, address: Address, waiter: Waiter, *, new: bool = False) -> None:
        """Pass the next free connection to ``waiter``; with ``new``, an unused connection."""
        self._queue.add(address, waiter, since_s=self.clock(), is_for_new=new)
        self._open_more(address)

    def expire(self, now_s: float) -> float:
        """Close connections past their idle limit; return when the next connection reaches it."""
        due_s = math.inf
        for idle in list(self._idle.values()):
            for upstream in list(idle):
                if upstream.idle_since_s + self._idle_max_s > now_s:
                    due_s = min(due_s, upstream.idle_since_s + self._idle_max_s)
                    break
                del idle[upstream]
                upstream.close()
        return due_s

    def close(self) -> None:
        """Close all idle connections, and cancel connection attempts."""
        self._connecting.cancel()
        for idle in list(self._idle.values()):
            for upstream in list(idle):
                upstream.close()
        self._idle.clear()

    def _open_more(self, address: Address) -> None:
        """Open a connection for each waiting request, up to the connector's limit."""
        wanted = min(self._queue.count(address), self.connector.attempts_max)
        for _ in range(wanted - self._attempts[address]):
            self._attempts[address] += 1
            self._connecting.start(self._connect(address), name=f"connect {address}")

    async def open_connection(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        """Connect within the time limit. Raises ``OSError``, also for an invalid name or port."""
        host, port = address
        try:
            async with asyncio.timeout(self._connect_max_s):
                return await self.connector.connect(make, address)
        except TimeoutError:
            raise TimeoutError(f"no connection to {host}:{port} within {self._connect_max_s} s") from None
        except (ValueError, OverflowError) as error:
            raise OSError(f"invalid address {address}: {error}") from error

    async def _connect(self, address: Address) -> None:
        turn = self.connector.turn
        begun_s = self.clock()
        try:
            upstream = await self.open_connection(lambda: self.make(self, address), address)
        except TimeoutError as error:
            self._report(error, address, begun_s)
        except OSError as error:
            self._report(error, address, -math.inf)
        else:
            upstream.turn = turn
            self._open.add(upstream)
            waiter = self._queue.pop(address, is_reused=False)
            if waiter is None:
                self.release(upstream)
            else:
                waiter.connected(upstream)
        finally:
            self._attempts[address] -= 1
            if not self._attempts[address]:
                del self._attempts[address]
        self._open_more(address)

    def _report(self, error: OSError, address: Address, begun_s: float) -> None:
        """Report a failed attempt to the waiting requests that it also fails."""
        for waiter in self._queue.failed(address, before_s=begun_s):
            waiter.unreachable(error)
