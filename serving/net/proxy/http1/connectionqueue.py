"""The requests that wait for an upstream connection, by address, in order of arrival.

Decides which request takes a connection that has become free, and which ones fail with an attempt to connect.
"""

from collections import deque
from typing import NamedTuple, Protocol

from serving.net.proxy.http1.upstream import Address, RequestCarrier


class Waiter(Protocol):
    """Waits for a connection. The pool calls one of its methods at most once, and none after ``is_waiting`` became False."""

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
    """The waiting requests. One whose ``is_waiting`` became False is skipped."""

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
        """Enqueue a request. ``is_for_new`` excludes connections that have carried another request."""
        self._requests.setdefault(address, deque()).append(_QueuedRequest(waiter, since_s, is_for_new))

    def pop(self, address: Address, *, is_reused: bool) -> Waiter | None:
        """Remove and return the first request that takes a connection; None without one."""
        passed: list[_QueuedRequest] = []
        taken = self._next(address)
        while taken is not None and taken.is_for_new and is_reused:
            passed.append(taken)
            taken = self._next(address)
        if passed:
            self._requests.setdefault(address, deque()).extendleft(reversed(passed))
        return None if taken is None else taken.waiter

    def failed(self, address: Address, *, before_s: float) -> list[Waiter]:
        """Remove and return the requests that fail with a connection attempt: those enqueued by ``before_s``, or else the first."""
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
