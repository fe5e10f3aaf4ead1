"""Bounds the slots that one address may use for unfinished uploads and unread responses.

The activator bounds the slots of a revision, the queue-proxy those of its pod. A request is open until its body has
ended. Open requests of one address use at most a share of the slots. Further ones are parked: they count as load, but
use neither a slot nor a place in the queue. So slow senders leave slots to others, while complete requests are not
bounded. Example: with 14 slots and a share of 3/4, one address may use 10. A revision also scales for parked requests,
so a single client with many streams gets more pods.

A client is slow while one of its responses waits beyond the proxy's buffer, and for some time after such a response was
cut off. The share bounds all requests of a slow client. While others wait, requests above the share are cut off if
their clients read nothing. With a single slot the share is 0, so every slow client is above it.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from serving.core.traffic.places import QueuePlace

RequestId = TypeVar("RequestId", bound=Hashable)


# How long an address counts as slow after it read nothing and was cut off or left, so that its next requests are
# bounded.
_REMEMBERED_S = 30.0
# How long a client that reads again still counts as slow, so that alternating clients stay bounded.
_FORGIVEN_S = 1.0
# Share of the allowed time for a client that was cut off while others waited: the next request then waits 50 ms.
_REPEATED_PART = 20
# Bytes a second below which a client counts as reading nothing, because it could acknowledge single bytes.
_READ_RATE_MIN = 4096
# Checks of a reader within its allowed time.
_CHECKS = 4


class RequestView(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Functions that read a request: whether it is open, its client, and the response bytes read by the client.

    A request is open until its body has ended, and while its response waits for the client to read. ``read_bytes_of``
    returns None for gRPC calls and tunnels, whose clients need not read.
    """

    is_open: Callable[[RequestId], bool] = lambda _: True
    client_of: Callable[[RequestId], Hashable] = lambda _: None
    read_bytes_of: Callable[[RequestId], int | None] = lambda _: None


class _ReadProgress(msgspec.Struct, kw_only=True):
    """The bytes of a response that its client has read, and the time of the last sufficient progress."""

    read_bytes: int | None
    since_s: float

    def update(self, read_bytes: int | None, now_s: float) -> None:
        """Record the current number of bytes if the client has read fast enough since the last record."""
        if (
            read_bytes is None
            or self.read_bytes is None
            or read_bytes - self.read_bytes > _READ_RATE_MIN * (now_s - self.since_s)
        ):
            self.read_bytes = read_bytes
            self.since_s = now_s


class _SlowClient(msgspec.Struct, Generic[RequestId], kw_only=True):
    """A client that does not read its responses, or did not until recently and counts as slow until ``until_s``.

    ``unread`` has its unread responses. ``is_repeated``: one of them was cut off while other requests waited.
    """

    unread: dict[RequestId, _ReadProgress]
    until_s: float
    is_repeated: bool = False

    def stalled_since(self, at_s: float) -> list[RequestId]:
        """Responses with unread bytes and no progress since ``at_s``, oldest first."""
        stalled = [
            (progress.since_s, request)
            for request, progress in self.unread.items()
            if progress.read_bytes is not None and progress.since_s <= at_s
        ]
        return [request for _, request in sorted(stalled, key=operator.itemgetter(0))]


class OpenRequests(Generic[RequestId]):
    """The open requests of one revision by client, and the requests of clients that read nothing.

    A request is open until its body has ended. Open requests of one client get at most ``share_max`` of the slots (0:
    no bound). A client may read nothing for ``unread_wait_max_s`` seconds while others wait (0: no bound). ``view``
    reads requests.
    """

    __slots__ = (
        "_admitted",
        "_parked",
        "_share_max",
        "_unread_wait_max_s",
        "_view",
        "client_of",
        "parked_bytes",
        "parked_count",
        "slow",
    )

    def __init__(self, *, share_max: float, unread_wait_max_s: float, view: RequestView[RequestId]) -> None:
        self._share_max = share_max
        self._unread_wait_max_s = unread_wait_max_s
        self._view = view
        self.slow: dict[Hashable, _SlowClient[RequestId]] = {}
        """Slow clients; all their running requests count against their share."""
        # Requests with a slot or a queue place that were open on arrival, or belong to a slow client.
        self._admitted: dict[Hashable, set[RequestId]] = {}
        self._parked: dict[Hashable, OrderedDict[RequestId, QueuePlace]] = {}
        self.client_of: dict[RequestId, Hashable] = {}
        """The client of each counted request."""
        self.parked_count = 0
        """Parked requests."""
        self.parked_bytes = 0
        """Memory of the parked requests."""

    def __repr__(self) -> str:
        return f"OpenRequests({len(self.client_of)} of {len(self._admitted.keys() | self._parked.keys())} clients)"

    def allows(self, client: Hashable, capacity: int | None) -> bool:
        """Whether a client may use one more of ``capacity`` slots. For a slow client, all of its requests count."""
        limit = self._limit(capacity)
        if limit is None:
            return True
        admitted = self._admitted.get(client, set())
        if client not in self.slow:
            for request in [request for request in admitted if not self._view.is_open(request)]:
                self.remove(request)
        return len(admitted) < limit

    def slow_client_of(self, request: RequestId) -> Hashable:
        """The client of a request, if the client is slow; otherwise None."""
        client = self._view.client_of(request)
        return client if client in self.slow else None

    def diverts(self, request: RequestId, place: QueuePlace, capacity: int | None) -> bool:
        """Park a queued request if its slow client may use no more slots; return whether it is parked."""
        if not self.slow or request in self.client_of or (client := self.slow_client_of(request)) is None:
            return False
        if self.allows(client, capacity):
            self.add(request, client)
            return False
        self.park(request, client, place)
        return True

    def record_unread(
        self, request: RequestId, now_s: float, *, running: Iterable[RequestId], capacity: int | None
    ) -> None:
        """Mark the client of an unread response as slow, and count its ``running`` requests against its share."""
        client = self._view.client_of(request)
        if self._limit(capacity) is None or client is None:
            return
        slow = self.slow.get(client)
        if slow is None:
            slow = self.slow[client] = _SlowClient(unread={}, until_s=now_s)
            for other in running:
                if self._view.client_of(other) == client:
                    self.add(other, client)
        slow.unread[request] = _ReadProgress(read_bytes=self._view.read_bytes_of(request), since_s=now_s)

    def record_read(self, request: RequestId, now_s: float) -> None:
        """Record that the client of a request reads again."""
        slow = self.slow.get(self.client_of.get(request))
        if slow is not None and slow.unread.pop(request, None) is not None:
            slow.until_s = max(slow.until_s, now_s + _FORGIVEN_S)

    def forgive(self, now_s: float) -> None:
        """Drop clients that have no unread responses and whose time as slow clients has expired."""
        for client in [
            slow_client for slow_client, slow in self.slow.items() if not slow.unread and slow.until_s <= now_s
        ]:
            del self.slow[client]

    def late_readers(self, capacity: int | None, now_s: float) -> list[RequestId]:
        """Requests in excess of their clients' shares whose clients have read nothing for too long; oldest first."""
        share, wait_max_s, late = self._share_max, self._unread_wait_max_s, list[RequestId]()
        if not (capacity and share and wait_max_s):
            return late
        for client, slow in self.slow.items():
            excess = max(0, len(self._admitted.get(client, ())) - int(capacity * share))
            for request, progress in slow.unread.items():
                progress.update(self._view.read_bytes_of(request), now_s)
            since_s = now_s - wait_max_s / (_REPEATED_PART if slow.is_repeated else 1)
            late += slow.stalled_since(since_s)[:excess]
        return late

    @property
    def check_period_s(self) -> float:
        """How often slow readers are checked while requests wait, in seconds."""
        is_short = any(slow.is_repeated for slow in self.slow.values())
        return (self._unread_wait_max_s or 1.0) / (_CHECKS * (_REPEATED_PART if is_short else 1))

    def add(self, request: RequestId, client: Hashable) -> None:
        """Count an open request that takes a slot or a place in the queue."""
        self.client_of[request] = client
        self._admitted.setdefault(client, set()).add(request)

    def park(self, request: RequestId, client: Hashable, place: QueuePlace) -> None:
        """Park a request until other requests of its client end."""
        self.client_of[request] = client
        self._parked.setdefault(client, OrderedDict())[request] = place
        self.parked_count += 1
        self.parked_bytes += place.weight_bytes

    def end(
        self, request: RequestId, now_s: float, *, has_response: bool, do_others_wait: bool = False
    ) -> QueuePlace | None:
        """Remove an ended request; return its place if it was parked.

        ``has_response``: the response was sent completely. If an unread response was cut off instead, its client counts
        as slow for some time. If other requests waited then (``do_others_wait``), this client's next unread responses
        are cut off earlier.
        """
        slow = self.slow.get(self.client_of.get(request))
        if slow is not None and slow.unread.pop(request, None) is not None and not has_response:
            slow.until_s = now_s + _REMEMBERED_S
            slow.is_repeated = slow.is_repeated or do_others_wait
        return self.remove(request)

    def remove(self, request: RequestId) -> QueuePlace | None:
        """Remove a request that has ended or is no longer open; return its place if it was parked."""
        client = self.client_of.pop(request, None)
        admitted, parked = self._admitted.get(client, set()), self._parked.get(client, OrderedDict())
        admitted.discard(request)
        place = parked.pop(request, None)
        if place is not None:
            self.parked_count -= 1
            self.parked_bytes -= place.weight_bytes
        if not admitted:
            self._admitted.pop(client, None)
        if not parked:
            self._parked.pop(client, None)
        return place

    def next_allowed(self, capacity: int | None) -> tuple[RequestId, QueuePlace] | None:
        """Remove and return the oldest parked request whose client may use one more slot; None if there is none."""
        for client in self._parked:
            if self.allows(client, capacity):
                request = next(iter(self._parked[client]))
                place = self.remove(request)
                assert place is not None
                self.add(request, client)
                return request, place
        return None

    def is_parked(self, request: RequestId) -> bool:
        """Whether a request is parked."""
        return request in self._parked.get(self.client_of.get(request), ())

    def parked_until(self, due_s: float, *, wait_max_s: float) -> list[RequestId]:
        """The parked requests that will have waited ``wait_max_s`` by ``due_s``."""
        return [
            request
            for parked in self._parked.values()
            for request, place in parked.items()
            if place.since_s + wait_max_s <= due_s
        ]

    @property
    def parked_since_s(self) -> float | None:
        """When the oldest parked request began to wait; None without one."""
        return min((next(iter(parked.values())).since_s for parked in self._parked.values()), default=None)

    def _limit(self, capacity: int | None) -> int | None:
        """The slots that one address may use; None without a bound."""
        share = self._share_max
        return None if not share or capacity is None else max(1, int(capacity * share))
