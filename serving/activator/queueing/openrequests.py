"""Bounds the slots of one address for requests that are still being sent.

A request is open until its body has ended and its client reads the response. Open requests of one address take at most a share of
a revision's slots; more of them are parked: they count as load, and take neither a slot nor a place in the queue. A slow sender
therefore leaves slots to others, while an address that sends complete requests is not bounded. With 14 slots and a share of 3/4,
one address holds 10. As a revision scales for parked requests too, a single client with many streams is served by more pods.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from serving.settings.activator import ActivatorSettings
from serving.traffic.breaker import Queued, QueueLimit, Rejected

RequestId = TypeVar("RequestId", bound=Hashable)


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a parked request."""

    since_s: float
    weight_bytes: int


class OpenRequests(Generic[RequestId]):
    """The open requests of one revision, by client. ``is_open`` returns whether a request is still open."""

    __slots__ = ("_is_open", "_parked", "_settings", "_taken", "client_of", "parked_bytes", "parked_count")

    def __init__(self, settings: ActivatorSettings, *, is_open: Callable[[RequestId], bool]) -> None:
        self._settings = settings
        self._is_open = is_open
        # Requests that were open on arrival, and hold a slot or a place in the queue.
        self._taken: dict[Hashable, set[RequestId]] = {}
        self._parked: dict[Hashable, OrderedDict[RequestId, Parked]] = {}
        self.client_of: dict[RequestId, Hashable] = {}
        """The client of each counted request."""
        self.parked_count = 0
        """Parked requests."""
        self.parked_bytes = 0
        """Memory of the parked requests."""

    def __repr__(self) -> str:
        return f"OpenRequests({len(self.client_of)} of {len(self._taken.keys() | self._parked.keys())} clients)"

    def allows(self, client: Hashable, capacity: int | None) -> bool:
        """Whether one more open request of a client may take one of ``capacity`` slots."""
        share = self._settings.open_share_max
        if not share or capacity is None:
            return True
        taken = self._taken.get(client, set())
        for request in [one for one in taken if not self._is_open(one)]:
            self.leave(request)
        return len(taken) < max(1, int(capacity * share))

    def take(self, request: RequestId, client: Hashable) -> None:
        """Count an open request that takes a slot or a place in the queue."""
        self.client_of[request] = client
        self._taken.setdefault(client, set()).add(request)

    def park(
        self, request: RequestId, client: Hashable, place: Parked, *, queued: tuple[int, int]
    ) -> Queued | Rejected:
        """Park a request until others of its client end, within the bounds of the queue.

        ``queued`` are the queue's requests and bytes.
        """
        depth, depth_bytes = queued[0] + self.parked_count, queued[1] + self.parked_bytes
        bytes_max = self._settings.queue_bytes_limit
        is_heavy = bytes_max is not None and depth_bytes + place.weight_bytes > bytes_max
        if is_heavy or depth >= self._settings.queue_depth_max:
            return Rejected(
                limited_by=QueueLimit.BYTES if is_heavy else QueueLimit.COUNT,
                depth=depth,
                depth_max=self._settings.queue_depth_max,
                depth_bytes=depth_bytes,
                depth_bytes_max=bytes_max,
            )
        self.client_of[request] = client
        self._parked.setdefault(client, OrderedDict())[request] = place
        self.parked_count += 1
        self.parked_bytes += place.weight_bytes
        return Queued(position=depth + 1, deadline_s=place.since_s + self._settings.queue_wait_max_s)

    def leave(self, request: RequestId) -> Parked | None:
        """Remove a request that ended or is not open any more; returns its place if it was parked."""
        client = self.client_of.pop(request, None)
        taken, parked = self._taken.get(client, set()), self._parked.get(client, OrderedDict())
        taken.discard(request)
        place = parked.pop(request, None)
        if place is not None:
            self.parked_count -= 1
            self.parked_bytes -= place.weight_bytes
        if not taken:
            self._taken.pop(client, None)
        if not parked:
            self._parked.pop(client, None)
        return place

    def next_allowed(self, capacity: int | None) -> tuple[RequestId, Parked] | None:
        """Take the oldest parked request of a client that may take one more slot; None if no client may."""
        for client in self._parked:
            if self.allows(client, capacity):
                request = next(iter(self._parked[client]))
                place = self.leave(request)
                assert place is not None
                self.take(request, client)
                return request, place
        return None

    def is_parked(self, request: RequestId) -> bool:
        """Whether a request is parked."""
        return request in self._parked.get(self.client_of.get(request), ())

    def late(self, since_s: float) -> list[RequestId]:
        """The requests parked at ``since_s`` or before."""
        return [
            request for parked in self._parked.values() for request, place in parked.items() if place.since_s <= since_s
        ]

    def next_due_s(self) -> float | None:
        """When the oldest parked request has waited too long; None if none is parked."""
        since_s = [next(iter(parked.values())).since_s for parked in self._parked.values()]
        return min(since_s) + self._settings.queue_wait_max_s if since_s else None
