"""Runs, queues or rejects the requests of one revision.

Input: requests that arrive, end, leave or are requeued because their pod was gone, and the pods, each with the time. Output:
the decision about a request, and the waiting requests that begin. It wires the breaker (how many), the pods (where) and the
meter (how much load) and adds one rule: a requeued request keeps its slot and goes before all that wait, because it arrived
before them.

Between any two calls no request waits beside a free slot, none goes to a pod that drains, and each is in one place. A request
is any hashable of the caller's.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.queueing.pods import RevisionPods
from serving.settings.activator import ActivatorSettings
from serving.traffic.breaker import Admitted, Breaker, Granted, Queued, Rejected
from serving.traffic.meter import Meter, Report

RequestId = TypeVar("RequestId", bound=Hashable)


class Started(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request that runs now on the pod at ``address``, after it waited for ``waited_s`` seconds."""

    request: RequestId
    address: str
    waited_s: float = 0.0


class RevisionThrottler(Generic[RequestId]):
    """The requests of one revision in one activator. All of them wait until the first ``set_pods``.

    ``random`` gives numbers from 0 to below 1. Calls with a request that is not inside do nothing.
    """

    __slots__ = ("_breaker", "_meter", "_random", "_requeued", "_session_of", "_settings", "address_of", "pods")

    def __init__(self, *, settings: ActivatorSettings, random: Callable[[], float], now_s: float) -> None:
        self._settings = settings
        self._random = random
        self.pods: RevisionPods | None = None
        """None until the first ``set_pods``."""
        self._breaker: Breaker[RequestId] = Breaker(
            capacity=0,
            depth_max=settings.queue_depth_max,
            depth_bytes_max=settings.queue_bytes_limit,
            wait_max_s=settings.queue_wait_max_s,
        )
        self._meter = Meter(now_s=now_s)
        self.address_of: dict[RequestId, str] = {}
        """The pod of each request that runs."""
        # The session of each request that has one, by its place on the ring of pods.
        self._session_of: dict[RequestId, int] = {}
        # Requests whose pod was gone, oldest first, with the time. They keep their slots in the breaker.
        self._requeued: OrderedDict[RequestId, float] = OrderedDict()

    def __repr__(self) -> str:
        return f"RevisionThrottler({len(self.address_of)} run, {self.waiting_count} wait, {self.pods!r})"

    @property
    def level(self) -> int:
        """Running and queued requests."""
        return self._meter.level

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a pod, requeued ones included."""
        return self._breaker.waiting_count + len(self._requeued)

    @property
    def waiting_since_s(self) -> float | None:
        """Since when the oldest request waits; None if none does."""
        due_s = self._breaker.next_wake_s()
        since_s = list(self._requeued.values())[:1]
        if due_s is not None:
            since_s.append(due_s - self._settings.queue_wait_max_s)
        return min(since_s, default=None)

    def arrive(
        self, request: RequestId, now_s: float, *, weight_bytes: int = 0, session: int | None = None
    ) -> Started[RequestId] | Queued | Rejected:
        """Take a new request, which takes up ``weight_bytes`` while it waits; ``session`` is a ``session_number``.

        Raises:
            IllegalTransition: when it is inside already.
        """
        answer = self._breaker.admit(request, now_s, weight_bytes=weight_bytes)
        if isinstance(answer, Rejected):
            return answer
        self._meter.arrive(now_s, proxied=False)
        if session is not None:
            self._session_of[request] = session
        return self._begin(request, 0.0) if isinstance(answer, Admitted) else answer

    def finish(self, request: RequestId, now_s: float, *, is_answered: bool = True) -> Sequence[Started[RequestId]]:
        """End a request, also one whose client has left the queue; return the requests that begin."""
        self._session_of.pop(request, None)
        address = self.address_of.pop(request, None)
        if address is None:
            self._leave_queue(request, now_s)
            return ()
        assert self.pods is not None
        self.pods.finished(address, now_s, is_answered=is_answered)
        self._meter.leave(now_s, proxied=False)
        # Before the release: if its pod drains, its slot ends with it.
        started = self._settle(now_s)
        granted = self._breaker.release(request, now_s)
        return self._begin_all(granted, started) if granted else started

    def requeue(self, request: RequestId, now_s: float) -> Sequence[Started[RequestId]]:
        """Requeue a request whose pod was gone or died before its response; return the requests that begin, this one first.

        It goes to another pod, or waits before all others. The pod is ejected for a while.
        """
        address = self.address_of.pop(request, None)
        if address is None:
            return ()
        assert self.pods is not None
        self._requeued[request] = now_s
        self.pods.failed(address, now_s)
        return self._settle(now_s)

    def set_pods(
        self,
        addresses: Iterable[str],
        now_s: float,
        *,
        container_concurrency: int,
        slots: Mapping[str, int] | None = None,
    ) -> Sequence[Started[RequestId]]:
        """Replace the list of pods; return the requests that begin.

        ``slots`` are this process's of each pod, where processes share them; None for all.
        """
        if self.pods is None:
            self.pods = RevisionPods(
                container_concurrency=container_concurrency,
                first_free_concurrency_max=self._settings.first_free_concurrency_max,
                random=self._random,
            )
        self.pods.set_listed(addresses, container_concurrency=container_concurrency, slots=slots)
        return self._settle(now_s)

    def set_slots(self, address: str, slots: int, now_s: float) -> Sequence[Started[RequestId]]:
        """Change this process's slots of one listed pod; returns the requests that begin."""
        assert self.pods is not None
        return self._settle(now_s) if self.pods.set_slots(address, slots) else ()

    def eject_silent(self, address: str, now_s: float) -> bool:
        """Eject a silent pod for a while, if enough others are left; whether it is newly ejected."""
        if self.pods is None or not self.pods.eject_silent(address, now_s):
            return False
        self._settle(now_s)
        return True

    def readmit(self, now_s: float) -> Sequence[Started[RequestId]]:
        """Use ejected pods again after their pause; return the requests that begin."""
        return self._settle(now_s) if self.pods is not None and self.pods.readmit(now_s) else ()

    def expire(self, now_s: float, *, all_waiting: bool = False) -> list[RequestId]:
        """Remove requests whose queue timeout has expired, or all queued ones, oldest first."""
        wait_max_s = self._settings.queue_wait_max_s
        due_s = now_s + wait_max_s if all_waiting else now_s
        out = [request for request, since_s in self._requeued.items() if since_s + wait_max_s <= due_s]
        for request in out:
            self._leave_queue(request, now_s)
        for one in self._breaker.expire(due_s):
            self._meter.leave(now_s, proxied=False)
            out.append(one.request_id)
        for request in out:
            self._session_of.pop(request, None)
        return out

    def next_due_s(self) -> float | None:
        """When ``expire`` or ``readmit`` is next due; None while neither will be."""
        oldest_s = next((since_s + self._settings.queue_wait_max_s for since_s in self._requeued.values()), None)
        readmit_s = self.pods.next_due_s() if self.pods is not None else None
        dues_s = (oldest_s, self._breaker.next_wake_s(), readmit_s)
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    def report(self, now_s: float) -> Report:
        """Close the meter's period and open the next."""
        return self._meter.report(now_s)

    def validate(self) -> None:
        """Assert the invariants; tests call it after every step."""
        self._breaker.validate()
        self._meter.validate()
        counts = self._breaker.counts()
        assert counts.running == len(self.address_of) + len(self._requeued), self
        assert self.level == counts.running + counts.waiting, self
        assert len(self._session_of) <= self.level, self
        assert not self.address_of.keys() & self._requeued.keys(), self
        if self.pods is not None:
            self.pods.validate()
            assert not self.waiting_count or self.pods.balancer.capacity == len(self.address_of), self
            assert self._breaker.capacity == _plus(self.pods.balancer.capacity, len(self._requeued)), self

    def _settle(self, now_s: float) -> Sequence[Started[RequestId]]:
        """Give free slots to requeued requests first, then set the breaker's capacity to what is left."""
        assert self.pods is not None
        started: list[Started[RequestId]] = []
        while self._requeued and self.pods.balancer.capacity != len(self.address_of):
            request, since_s = self._requeued.popitem(last=False)
            started.append(self._begin(request, now_s - since_s))
        capacity = _plus(self.pods.balancer.capacity, len(self._requeued))
        if capacity == self._breaker.capacity:
            return started
        return self._begin_all(self._breaker.set_capacity(capacity, now_s), started)

    def _begin_all(
        self, granted: Sequence[Granted[RequestId]], started: Sequence[Started[RequestId]]
    ) -> Sequence[Started[RequestId]]:
        return [*started, *(self._begin(one.request_id, one.waited_s) for one in granted)]

    def _begin(self, request: RequestId, waited_s: float) -> Started[RequestId]:
        assert self.pods is not None
        # Most revisions have no sessions: this saves them a call.
        sessions = self._session_of
        pod = self.pods.pick(sessions.get(request)) if sessions else self.pods.balancer.pick()
        assert pod is not None, "the breaker's capacity is what the pods have"
        self.address_of[request] = pod.address
        return Started(request=request, address=pod.address, waited_s=waited_s)

    def _leave_queue(self, request: RequestId, now_s: float) -> None:
        """Remove a queued request. No other begins by this: none waits beside a free slot."""
        waiting_count = self.waiting_count
        if self._requeued.pop(request, None) is not None:
            # Before the cancel: the slot that it kept ends with it.
            self._settle(now_s)
        self._breaker.cancel(request, now_s)
        if self.waiting_count != waiting_count:
            self._meter.leave(now_s, proxied=False)


def _plus(capacity: int | None, count: int) -> int | None:
    """A capacity with room for requests that keep a slot without a pod; None is no limit."""
    return None if capacity is None else capacity + count
