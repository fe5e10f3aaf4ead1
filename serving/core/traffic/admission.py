"""Admits requests in order of arrival: each one runs, waits, or is rejected.

Inputs: a request's arrival, its end, or the loss of its pod, and changes of capacity, each with the time. Outputs: the
decision about that request, and the waiting requests that get a slot. ``expires_s`` says when ``expire`` is due.

Waiting requests are in three places, in this order: requests returned from a pod, the queue, and parked requests, which
wait for others of their client (``openrequests.py``). Waiting requests precede new ones. A smaller capacity interrupts
no request. The queue is bounded in requests and, optionally, in bytes. The queue-proxy uses the class with a pod's
slots, the activator with all slots of a revision. In contrast to the breaker of knative/serving 98e5ef90
(pkg/queue/breaker.go), new requests never overtake waiting ones.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.openrequests import OpenRequests, RequestView
from serving.core.traffic.places import ADMITTED, Admitted, Granted, Queued, QueueLimit, QueuePlace, Rejected

RequestId = TypeVar("RequestId", bound=Hashable)


class AdmissionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the queue, and of the slots that one client address may use.

    At most ``depth_max`` requests wait, each for at most ``wait_max_s`` seconds. Together they have at most
    ``depth_bytes_max`` bytes (None: no bound). ``share_max`` is the part of the slots for open requests of one address,
    whose bodies are incomplete or whose responses are unread (0: no bound). ``unread_wait_max_s`` is how long a client
    may read nothing while others wait (0: no bound).
    """

    depth_max: int
    wait_max_s: float
    depth_bytes_max: int | None = None
    share_max: float = 0.0
    unread_wait_max_s: float = 0.0


class Admission(Generic[RequestId]):
    """Slots with a queue. All calls take constant amortised time.

    ``capacity`` requests may run concurrently. None: no limit; 0: all wait. With 10 slots and 100 places the 111th
    simultaneous request is refused. A request is parked if its client already uses its share of the slots: it waits
    until other requests of this client end. Times must not decrease. ``view`` has functions that read a request.

    The caller identifies requests by ids that are unique among the present ones. ``release``, ``withdraw`` and ``end``
    ignore an unknown id, so that a ``finally`` clause may always call them.
    """

    __slots__ = ("_capacity", "_clients", "_requeued", "_running", "_terms", "_waiting", "_waiting_bytes")

    def __init__(
        self, terms: AdmissionTerms, *, capacity: int | None, view: RequestView[RequestId] | None = None
    ) -> None:
        assert capacity is None or capacity >= 0, capacity
        self._terms = terms
        self._capacity = capacity
        self._running: set[RequestId] = set()
        # Running requests that their pods returned, oldest first. They keep their slots and wait for a pod.
        self._requeued: OrderedDict[RequestId, float] = OrderedDict()
        # An OrderedDict, because finding the first key of a dict scans all removed keys.
        self._waiting: OrderedDict[RequestId, QueuePlace] = OrderedDict()
        self._waiting_bytes = 0
        self._clients = OpenRequests[RequestId](
            share_max=terms.share_max, unread_wait_max_s=terms.unread_wait_max_s, view=view or RequestView()
        )

    def __repr__(self) -> str:
        capacity = "unlimited" if self._capacity is None else self._capacity
        bytes_max = "" if self._terms.depth_bytes_max is None else f" of {self._terms.depth_bytes_max}"
        return (
            f"Admission(running {len(self._running)} of {capacity}, requeued {len(self._requeued)}, "
            f"waiting {len(self._waiting)} of {self._terms.depth_max}, bytes {self._waiting_bytes}{bytes_max}, "
            f"parked {self._clients.parked_count})"
        )

    @property
    def capacity(self) -> int | None:
        """Maximum number of concurrent requests; None is no limit."""
        return self._capacity

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a slot or, if requeued, for a pod."""
        return len(self._waiting) + len(self._requeued)

    @property
    def parked_count(self) -> int:
        """Requests that wait for other requests of their client."""
        return self._clients.parked_count

    @property
    def waiting_since_s(self) -> float | None:
        """When the longest-waiting request began to wait; None if no request waits."""
        since_s = [*list(self._requeued.values())[:1], *(place.since_s for place in list(self._waiting.values())[:1])]
        return min(since_s, default=None)

    @property
    def has_slow_clients(self) -> bool:
        """Whether any client reads its responses slowly."""
        return bool(self._clients.slow)

    @property
    def readers_check_s(self) -> float:
        """How often slow readers are checked while requests wait, in seconds."""
        return self._clients.check_period_s

    @property
    def is_watching_readers(self) -> bool:
        """Whether readers must be checked soon: some are slow, and requests wait."""
        return bool(self._clients.slow and self._waiting)

    def arrive(
        self, request_id: RequestId, now_s: float, *, client: Hashable = None, weight_bytes: int = 0
    ) -> Admitted | Queued | Rejected:
        """Admit, queue, park or reject a new request.

        ``client`` is the sender of a request whose body is incomplete, otherwise None. The request is parked if its
        client already uses its share of the slots. ``weight_bytes`` is the request's memory while it waits.

        Raises:
            IllegalTransition: when a request with this id already runs or waits.
        """
        clients = self._clients
        if client is None and clients.slow:
            client = clients.slow_client_of(request_id)
        if client is not None and not clients.allows(client, self._capacity):
            return self._park(request_id, client, QueuePlace(since_s=now_s, weight_bytes=weight_bytes))
        result = self._admit(request_id, now_s, weight_bytes)
        if client is not None and not isinstance(result, Rejected):
            clients.add(request_id, client)
        return result

    def complete(self, request_id: RequestId, now_s: float) -> Admitted | Queued | Rejected | None:
        """Admit a parked request whose body is now complete, although its client uses its share of the slots.

        None if the request is not parked, or stays parked in its place because its client is slow.
        """
        clients = self._clients
        if not clients.is_parked(request_id):
            return None
        client = clients.slow_client_of(request_id)
        if client is not None and not clients.allows(client, self._capacity):
            return None
        place = clients.remove(request_id)
        assert place is not None
        return self.arrive(request_id, now_s, weight_bytes=place.weight_bytes)

    def release(
        self, request_id: RequestId, now_s: float, *, has_response: bool = True
    ) -> Sequence[Granted[RequestId]]:
        """Release the slot of an ended request; return the requests that get a slot.

        Without ``has_response``, an unread response was cut off, and its client counts as slow for some time.

        Raises:
            IllegalTransition: when the request still waits, because a waiting request cannot have a response.
        """
        if request_id not in self._running:
            if request_id in self._waiting:
                raise self._illegal(request_id, "release")
            return ()
        if self._clients.client_of:
            self._clients.end(request_id, now_s, has_response=has_response, do_others_wait=bool(self._waiting))
        self._running.remove(request_id)
        return self._grant(now_s)

    def end(self, request_id: RequestId, now_s: float, *, has_response: bool) -> Sequence[Granted[RequestId]]:
        """Remove an ended request, running or waiting; return the requests that get a slot. See ``release``."""
        if has_response or (request_id in self._running and request_id not in self._requeued):
            return self.release(request_id, now_s, has_response=has_response)
        return self.withdraw(request_id, now_s) or ()

    def withdraw(self, request_id: RequestId, now_s: float) -> Sequence[Granted[RequestId]] | None:
        """Remove a waiting request; return the requests that get a slot. None if the request does not wait."""
        place = self._waiting.pop(request_id, None)
        if place is not None:
            self._waiting_bytes -= place.weight_bytes
        elif self._requeued.pop(request_id, None) is not None:
            self._running.remove(request_id)
        elif not self._clients.is_parked(request_id):
            return None
        if self._clients.client_of:
            self._clients.end(request_id, now_s, has_response=False, do_others_wait=bool(self._waiting))
        return self._grant(now_s)

    def requeue(self, request_id: RequestId, now_s: float) -> None:
        """Move a running request that its pod did not complete back to the queue, before all waiting requests."""
        assert request_id in self._running, request_id
        self._requeued[request_id] = now_s

    def set_capacity(self, capacity: int | None, now_s: float) -> Sequence[Granted[RequestId]]:
        """Change the number of slots; return the requests that get a slot or move to another pod.

        If more requests run than there are slots, all of them continue, and no request starts until enough have ended.
        Example: from 10 to 4 slots with 10 running requests, 7 must end before the next one starts.
        """
        assert capacity is None or capacity >= 0, capacity
        if capacity == self._capacity and not self._requeued:
            return ()
        self._capacity = capacity
        return self._grant(now_s)

    def expire(self, due_s: float) -> list[RequestId]:
        """Remove and return requests whose wait has expired by ``due_s``, the oldest of each queue first.

        A slot that is freed before this call still goes to the oldest request, even if its wait has expired, because a
        late response is better than a refusal.
        """
        wait_max_s = self._terms.wait_max_s
        late: list[RequestId] = []
        while self._requeued and next(iter(self._requeued.values())) + wait_max_s <= due_s:
            request_id, _ = self._requeued.popitem(last=False)
            self._running.remove(request_id)
            late.append(request_id)
        late += self._clients.parked_until(due_s, wait_max_s=wait_max_s)
        while self._waiting and next(iter(self._waiting.values())).since_s + wait_max_s <= due_s:
            late.append(self._dequeue()[0])
        if self._clients.client_of:
            for request_id in late:
                self._clients.remove(request_id)
        return late

    def expires_s(self) -> float | None:
        """When ``expire`` is next due; None while no request waits."""
        since_s = [since_s for since_s in (self.waiting_since_s, self._clients.parked_since_s) if since_s is not None]
        return min(since_s) + self._terms.wait_max_s if since_s else None

    def refresh(self, now_s: float) -> Sequence[Granted[RequestId]]:
        """Drop slow clients that read again, and admit parked requests of clients below their limit."""
        self._clients.forgive(now_s)
        return self._grant(now_s) if self._clients.parked_count else ()

    def record_reading(self, request_id: RequestId, now_s: float, *, is_unread: bool) -> None:
        """Record whether a response has more unread bytes than the proxy buffers."""
        if not is_unread:
            self._clients.record_read(request_id, now_s)
        elif request_id in self._running:
            self._clients.record_unread(request_id, now_s, running=self._running, capacity=self._capacity)

    def late_readers(self, now_s: float) -> list[RequestId]:
        """Requests to cut off while others wait: their clients use more than their share and have stopped reading."""
        if self._clients.slow:
            self._divert()
        return self._clients.late_readers(self._capacity, now_s) if self.is_watching_readers else []

    def _admit(self, request_id: RequestId, now_s: float, weight_bytes: int) -> Admitted | Queued | Rejected:
        if request_id in self._running or request_id in self._waiting:
            raise self._illegal(request_id, "arrive")
        # Requests only wait while no slot is free, so a new request cannot pass them.
        if self._capacity is None or len(self._running) < self._capacity:
            self._running.add(request_id)
            return ADMITTED
        limit = self._limit_met(len(self._waiting), self._waiting_bytes, weight_bytes)
        if limit is not None:
            return self._refusal(limit, len(self._waiting), self._waiting_bytes)
        assert weight_bytes >= 0, weight_bytes
        self._waiting[request_id] = QueuePlace(since_s=now_s, weight_bytes=weight_bytes)
        self._waiting_bytes += weight_bytes
        return Queued(position=len(self._waiting), deadline_s=now_s + self._terms.wait_max_s)

    def _park(self, request_id: RequestId, client: Hashable, place: QueuePlace) -> Queued | Rejected:
        """Park a request until other requests of its client end, within the bounds of the queue."""
        clients = self._clients
        depth, depth_bytes = len(self._waiting) + clients.parked_count, self._waiting_bytes + clients.parked_bytes
        limit = self._limit_met(depth, depth_bytes, place.weight_bytes)
        if limit is not None:
            return self._refusal(limit, depth, depth_bytes)
        clients.park(request_id, client, place)
        return Queued(position=depth + 1, deadline_s=place.since_s + self._terms.wait_max_s)

    def _grant(self, now_s: float) -> Sequence[Granted[RequestId]]:
        """Start requeued requests first, then queued, then parked ones, while slots are free."""
        if not (self._waiting or self._requeued or self._clients.parked_count):
            return ()
        granted: list[Granted[RequestId]] = []
        while self._requeued and self._has_free_slot(len(self._running) - len(self._requeued)):
            request_id, since_s = self._requeued.popitem(last=False)
            granted.append(Granted(request_id=request_id, waited_s=now_s - since_s))
        while self._waiting and self._has_free_slot(len(self._running)):
            self._divert()
            if not self._waiting:
                break
            request_id, place = self._dequeue()
            self._running.add(request_id)
            granted.append(Granted(request_id=request_id, waited_s=now_s - place.since_s))
        while self._clients.parked_count and not self._waiting:
            parked = self._clients.next_allowed(self._capacity)
            if parked is None:
                break
            request_id, place = parked
            if self._admit(request_id, now_s, place.weight_bytes) is ADMITTED:
                granted.append(Granted(request_id=request_id, waited_s=now_s - place.since_s))
        return granted

    def _has_free_slot(self, used_count: int) -> bool:
        return self._capacity is None or used_count < self._capacity

    def _divert(self) -> None:
        """Park queued requests at the front whose clients already use all slots of their share."""
        clients = self._clients
        while self._waiting and clients.slow:
            request_id, place = next(iter(self._waiting.items()))
            if not clients.diverts(request_id, place, self._capacity):
                return
            self._dequeue()

    def _dequeue(self) -> tuple[RequestId, QueuePlace]:
        request_id, place = self._waiting.popitem(last=False)
        self._waiting_bytes -= place.weight_bytes
        return request_id, place

    def _limit_met(self, depth: int, depth_bytes: int, weight_bytes: int) -> QueueLimit | None:
        if depth >= self._terms.depth_max:
            return QueueLimit.COUNT
        bytes_max = self._terms.depth_bytes_max
        if bytes_max is not None and depth_bytes + weight_bytes > bytes_max:
            return QueueLimit.BYTES
        return None

    def _refusal(self, limited_by: QueueLimit, depth: int, depth_bytes: int) -> Rejected:
        return Rejected(
            limited_by=limited_by,
            depth=depth,
            depth_max=self._terms.depth_max,
            depth_bytes=depth_bytes,
            depth_bytes_max=self._terms.depth_bytes_max,
        )

    def _illegal(self, request_id: RequestId, event: str) -> IllegalTransition:
        phase = "running" if request_id in self._running else "waiting"
        return IllegalTransition(subject=f"request {request_id!r}", phase=phase, event=event)
