"""Admits requests in order of arrival: each one runs, waits, or is rejected.

Inputs: a request's arrival, its end, or the loss of its client, and changes of capacity, each with the time. Outputs: the
decision about that request, and the waiting requests that get a slot. ``next_wake_s`` says when ``expire`` is due.

Rules: waiting requests precede new ones; less capacity interrupts no request; the queue is bounded in requests and, as an option,
in bytes. The queue-proxy uses it with a pod's slots, the activator with all free slots of a revision. The breaker of
knative/serving 98e5ef90 (pkg/queue/breaker.go) lets new requests pass those that wait; this one does not.
"""

import enum
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.core.model.errors import IllegalTransition

RequestId = TypeVar("RequestId", bound=Hashable)


class QueueLimit(enum.StrEnum):
    """The bound that excluded a request from the queue."""

    COUNT = "count"
    BYTES = "bytes"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A slot was free: the request runs."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The request waits in place ``position``, 1 being the next to run, until ``deadline_s`` at the latest."""

    position: int
    deadline_s: float


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """Neither a slot nor a place in the queue is free; ``limited_by`` is the first exceeded bound.

    ``depth`` requests with ``depth_bytes`` bytes wait already. ``depth_bytes_max`` is None when bytes are not bounded.
    """

    limited_by: QueueLimit
    depth: int
    depth_max: int
    depth_bytes: int
    depth_bytes_max: int | None


class Granted(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request that waited for ``waited_s`` seconds and runs now."""

    request_id: RequestId
    waited_s: float


class TimedOut(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request removed from the queue after its longest wait of ``waited_s`` seconds."""

    request_id: RequestId
    waited_s: float


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the queue: its start time, and the weight of the request."""

    since_s: float
    weight_bytes: int


ADMITTED = Admitted()


class Breaker(Generic[RequestId]):
    """Slots with a queue. All calls take constant amortised time, also calls about queued requests.

    ``capacity`` requests may run at once: None is no limit, 0 lets all wait. At most ``depth_max`` wait, together with
    at most ``depth_bytes_max`` bytes (None: not bounded), each for at most ``wait_max_s`` seconds. With 10 slots and 100
    places the 111th request at once is refused. Times must not go back.

    The caller names requests by ids that are unique among those inside. ``release`` and ``cancel`` of an id that is not
    inside do nothing, so that a ``finally`` clause may always call them.

    ``diverts`` is asked before a waiting request gets a slot: True if the caller holds it from now on, outside.
    """

    __slots__ = (
        "_arrived",
        "_cancelled",
        "_capacity",
        "_depth_bytes_max",
        "_depth_max",
        "_diverts",
        "_finished",
        "_refused",
        "_running",
        "_timed_out",
        "_wait_max_s",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self,
        *,
        capacity: int | None,
        depth_max: int,
        wait_max_s: float,
        depth_bytes_max: int | None = None,
        diverts: Callable[[RequestId, QueuePlace], bool] | None = None,
    ) -> None:
        assert capacity is None or capacity >= 0, capacity
        self._capacity = capacity
        self._depth_max = depth_max
        self._depth_bytes_max = depth_bytes_max
        self._wait_max_s = wait_max_s
        self._diverts = diverts
        self._running: set[RequestId] = set()
        # Not a dict: a dict walks over all its removed first keys to find the next.
        self._waiting: OrderedDict[RequestId, QueuePlace] = OrderedDict()
        self._waiting_bytes = 0
        self._arrived = 0
        self._finished = 0
        self._cancelled = 0
        self._timed_out = 0
        self._refused = 0

    def __repr__(self) -> str:
        capacity = "unlimited" if self._capacity is None else self._capacity
        bytes_max = "" if self._depth_bytes_max is None else f" of {self._depth_bytes_max}"
        return (
            f"Breaker(running {len(self._running)} of {capacity}, waiting {len(self._waiting)} of {self._depth_max}, "
            f"bytes {self._waiting_bytes}{bytes_max}, finished {self._finished}, cancelled {self._cancelled}, "
            f"timed out {self._timed_out}, refused {self._refused})"
        )

    @property
    def capacity(self) -> int | None:
        """Requests that may run at once; None is no limit."""
        return self._capacity

    @property
    def running(self) -> Collection[RequestId]:
        """Requests that have a slot."""
        return self._running

    @property
    def waiting_count(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    @property
    def queued(self) -> tuple[int, int]:
        """Requests that wait now, and their bytes."""
        return len(self._waiting), self._waiting_bytes

    def admit(self, request_id: RequestId, now_s: float, *, weight_bytes: int = 0) -> Admitted | Queued | Rejected:
        """Admit, queue or reject a new request. ``weight_bytes`` is its memory while it waits.

        Raises:
            IllegalTransition: when the id is inside already.
        """
        if request_id in self._running or request_id in self._waiting:
            raise self._illegal(request_id, "admit")
        self._arrived += 1
        # Requests wait only while no slot is free, so a new one cannot pass them (see validate).
        if self._capacity is None or len(self._running) < self._capacity:
            self._running.add(request_id)
            return ADMITTED
        limit = self._limit_met(weight_bytes)
        if limit is not None:
            self._refused += 1
            return self._refusal(limit)
        assert weight_bytes >= 0, weight_bytes
        self._waiting[request_id] = QueuePlace(since_s=now_s, weight_bytes=weight_bytes)
        self._waiting_bytes += weight_bytes
        return Queued(position=len(self._waiting), deadline_s=now_s + self._wait_max_s)

    def release(self, request_id: RequestId, now_s: float) -> Sequence[Granted[RequestId]]:
        """Release the slot of a finished request; returns the requests that get a slot.

        Raises:
            IllegalTransition: when the request still waits: it cannot have finished.
        """
        if request_id in self._waiting:
            raise self._illegal(request_id, "release")
        if request_id not in self._running:
            return ()
        self._running.remove(request_id)
        self._finished += 1
        return self._grant(now_s)

    def cancel(self, request_id: RequestId, now_s: float) -> Sequence[Granted[RequestId]]:
        """Remove the request of a gone client; returns the requests that get a slot."""
        place = self._waiting.pop(request_id, None)
        if place is not None:
            self._waiting_bytes -= place.weight_bytes
            self._cancelled += 1
            return ()
        if request_id not in self._running:
            return ()
        self._running.remove(request_id)
        self._cancelled += 1
        return self._grant(now_s)

    def set_capacity(self, capacity: int | None, now_s: float) -> Sequence[Granted[RequestId]]:
        """Change the number of slots; return the requests that get one.

        With fewer slots than running requests all of them run on, and none is granted until enough have finished:
        from 10 to 4 slots with 10 running, 7 must finish before the next one starts.
        """
        assert capacity is None or capacity >= 0, capacity
        self._capacity = capacity
        return self._grant(now_s)

    def expire(self, now_s: float) -> Sequence[TimedOut[RequestId]]:
        """Remove requests with an expired wait, oldest first.

        A slot that is freed before this call still goes to the oldest request, even if its wait has expired: serving it beats
        refusing it.
        """
        timed_out: list[TimedOut[RequestId]] = []
        while (wake_s := self.next_wake_s()) is not None and wake_s <= now_s:
            request_id, place = self._leave_queue()
            timed_out.append(TimedOut(request_id=request_id, waited_s=now_s - place.since_s))
        self._timed_out += len(timed_out)
        return timed_out

    def next_wake_s(self) -> float | None:
        """Time at which ``expire`` is next due; None while no request waits. The oldest is due first."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        return oldest.since_s + self._wait_max_s

    def divert(self) -> None:
        """Remove the oldest waiting requests as long as the caller diverts them."""
        diverts = self._diverts
        while self._waiting and diverts is not None:
            request_id, place = next(iter(self._waiting.items()))
            if not diverts(request_id, place):
                return
            self._leave_queue()
            self._cancelled += 1

    def _grant(self, now_s: float) -> Sequence[Granted[RequestId]]:
        if not self._waiting:
            return ()
        granted: list[Granted[RequestId]] = []
        while self._waiting and (self._capacity is None or len(self._running) < self._capacity):
            self.divert()
            if not self._waiting:
                break
            request_id, place = self._leave_queue()
            self._running.add(request_id)
            granted.append(Granted(request_id=request_id, waited_s=now_s - place.since_s))
        return granted

    def _leave_queue(self) -> tuple[RequestId, QueuePlace]:
        request_id, place = self._waiting.popitem(last=False)
        self._waiting_bytes -= place.weight_bytes
        return request_id, place

    def _limit_met(self, weight_bytes: int) -> QueueLimit | None:
        if len(self._waiting) >= self._depth_max:
            return QueueLimit.COUNT
        if self._depth_bytes_max is not None and self._waiting_bytes + weight_bytes > self._depth_bytes_max:
            return QueueLimit.BYTES
        return None

    def _refusal(self, limited_by: QueueLimit) -> Rejected:
        return Rejected(
            limited_by=limited_by,
            depth=len(self._waiting),
            depth_max=self._depth_max,
            depth_bytes=self._waiting_bytes,
            depth_bytes_max=self._depth_bytes_max,
        )

    def _illegal(self, request_id: RequestId, event: str) -> IllegalTransition:
        phase = "running" if request_id in self._running else "waiting"
        return IllegalTransition(subject=f"request {request_id!r}", phase=phase, event=event)
