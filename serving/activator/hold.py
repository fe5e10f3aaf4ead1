"""The requests of one revision: who runs on which pod, who waits, who is refused.

Input: requests that come, end, leave or come back because their pod was gone, and the pods there are, each with the
time. Output: what becomes of a request, and which waiting ones run by it, on which pod. It wires the breaker (how many),
the balancer (where) and the meter (how much load) of ``serving/traffic``, and adds one rule: a request that comes back
keeps its slot and goes before all who wait, because it came before them.

What holds between any two calls: no request waits beside a free slot, none goes to a pod that drains, each is in one
place. A request is told by any hashable of the caller's. It knows neither hosts nor connections.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.settings.activator import ActivatorSettings
from serving.traffic.balance import Balancer
from serving.traffic.breaker import Admitted, Breaker, Granted, Queued, Refused
from serving.traffic.meter import Meter, Report
from serving.traffic.policy import policy_for
from serving.traffic.share import share

__all__ = ["Holder", "Place", "Run"]

RequestId = TypeVar("RequestId", bound=Hashable)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """This activator's place among all that share the pods; ``index`` None: it does not know its place yet."""

    index: int | None = 0
    count: int = 1


class Run(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A request that runs now on the pod at ``address``, after ``waited_s`` seconds."""

    request: RequestId
    address: str
    waited_s: float = 0.0


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The latest list of pods, with what says how many requests each may have from here."""

    addresses: frozenset[str]
    container_concurrency: int
    place: Place
    slots: dict[str, int] | None = None


class _Shunned(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was listed and not there, how often in a row, and until when it is left alone; None: it is not."""

    failure_count: int
    until_s: float | None


_ALONE = Place()
# A pod that is gone is off the list within some 50 ms; one that is merely slow to listen must not wait for long.
_SHUN_FIRST_S = 0.05
_SHUN_MAX_S = 1.0


class Holder(Generic[RequestId]):
    """The requests of one revision in one activator. Before ``set_pods`` was called once all of them wait.

    ``random`` gives numbers from 0 to below 1. Calls with
    a request that is not inside do nothing.
    """

    __slots__ = (
        "_address_of",
        "_balancer",
        "_breaker",
        "_listed",
        "_meter",
        "_random",
        "_returned",
        "_settings",
        "_shunned",
    )

    def __init__(
        self,
        *,
        settings: ActivatorSettings,
        random: Callable[[], float],
        now_s: float,
    ) -> None:
        self._settings = settings
        self._random = random
        self._balancer: Balancer | None = None
        self._breaker: Breaker[RequestId] = Breaker(
            capacity=0,
            depth_max=settings.queue_depth_max,
            depth_bytes_max=settings.queue_bytes_limit,
            wait_max_s=settings.queue_wait_max_s,
        )
        self._meter = Meter(now_s=now_s)
        self._address_of: dict[RequestId, str] = {}
        # Came back from a pod that was gone, oldest first, with the time. They keep their slots in the breaker.
        self._returned: OrderedDict[RequestId, float] = OrderedDict()
        self._listed = _Listed(addresses=frozenset(), container_concurrency=0, place=_ALONE)
        self._shunned: dict[str, _Shunned] = {}

    def __repr__(self) -> str:
        return f"Holder({self.running_count} run, {self.waiting_count} wait, {self._balancer!r})"

    @property
    def level(self) -> int:
        """Requests inside: those that run and those that wait."""
        return self._meter.level

    @property
    def running_count(self) -> int:
        """Requests that are with a pod now."""
        return len(self._address_of)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a pod, those that came back included."""
        return self._breaker.waiting_count + len(self._returned)

    @property
    def waits_since_s(self) -> float | None:
        """Since when the oldest waits; None if nobody does."""
        due_s = self._breaker.next_wake_s()
        since_s = list(self._returned.values())[:1]
        if due_s is not None:
            since_s.append(due_s - self._settings.queue_wait_max_s)
        return min(since_s, default=None)

    @property
    def shunned(self) -> set[str]:
        """Pods that are left alone for now."""
        return {address for address, one in self._shunned.items() if one.until_s is not None}

    @property
    def slots_per_pod(self) -> int:
        """What a pod takes in all, 0 without a limit or before pods were told."""
        return self._listed.container_concurrency

    def pod_of(self, request: RequestId) -> str | None:
        """The pod that a request is with, None if it waits or is not inside."""
        return self._address_of.get(request)

    def in_flight_by_pod(self) -> dict[str, int]:
        """Requests on each pod that has any from here."""
        return {} if self._balancer is None else self._balancer.in_flight_by_pod()

    def arrive(self, request: RequestId, now_s: float, *, weight_bytes: int = 0) -> Run[RequestId] | Queued | Refused:
        """A new request, which takes up ``weight_bytes`` while it waits.

        Raises:
            IllegalTransition: when it is inside already.
        """
        answer = self._breaker.admit(request, now_s, weight_bytes=weight_bytes)
        if isinstance(answer, Refused):
            return answer
        self._meter.arrive(now_s, proxied=False)
        return self._begin(request, 0.0) if isinstance(answer, Admitted) else answer

    def finish(self, request: RequestId, now_s: float) -> Sequence[Run[RequestId]]:
        """A request has ended, in whatever way, or its client has left, waiting or not; who runs instead."""
        address = self._address_of.pop(request, None)
        if address is None:
            self._leave_queue(request, now_s)
            return ()
        assert self._balancer is not None
        self._balancer.give_back(address)
        self._meter.leave(now_s, proxied=False)
        if self._shunned and address in self._shunned and self._shunned[address].until_s is None:
            del self._shunned[address]
        # Before the release: its pod may be draining, and then its slot is nobody's.
        runs = self._settle(now_s)
        return self._begun(self._breaker.release(request, now_s), runs)

    def come_back(self, request: RequestId, now_s: float) -> Sequence[Run[RequestId]]:
        """The pod of a request was not there, or died before it answered; who runs by it, this one first.

        It goes to another pod, or waits before all others. The pod is left alone for 50 ms, then 100, 200 ... 1000 ms
        while it stays on the list and still is not there.
        """
        address = self._address_of.pop(request, None)
        if address is None:
            return ()
        assert self._balancer is not None
        self._balancer.give_back(address)
        self._returned[request] = now_s
        shunned = self._shunned.get(address)
        if address in self._listed.addresses and (shunned is None or shunned.until_s is None):
            count = shunned.failure_count + 1 if shunned else 1
            pause_s = min(_SHUN_FIRST_S * 2 ** (count - 1), _SHUN_MAX_S)
            self._shunned[address] = _Shunned(failure_count=count, until_s=now_s + pause_s)
            self._apply()
        return self._settle(now_s)

    def set_pods(
        self,
        addresses: Iterable[str],
        now_s: float,
        *,
        container_concurrency: int,
        place: Place = _ALONE,
        slots: Mapping[str, int] | None = None,
    ) -> Sequence[Run[RequestId]]:
        """Replace the list of pods that may be given requests; who runs by it.

        ``slots`` are those of each pod that are ours, where somebody keeps account of them; else ``place`` says it.
        """
        if self._balancer is None:
            policy = policy_for(
                container_concurrency, first_free_concurrency_max=self._settings.first_free_concurrency_max
            )
            self._balancer = Balancer(policy, random=self._random)
        self._listed = _Listed(
            addresses=frozenset(addresses),
            container_concurrency=container_concurrency,
            place=place,
            slots=None if slots is None else dict(slots),
        )
        self._shunned = {address: one for address, one in self._shunned.items() if address in self._listed.addresses}
        self._apply()
        return self._settle(now_s)

    def set_slots(self, address: str, slots: int, now_s: float) -> Sequence[Run[RequestId]]:
        """Slots of one pod of those that ``set_pods`` told the slots of; who runs by it. One that is not listed has none."""
        assert self._balancer is not None
        assert self._listed.slots is not None
        if address not in self._listed.addresses:
            return ()
        self._listed.slots[address] = slots
        self._balancer.set_slots(address, slots)
        return self._settle(now_s)

    def revive(self, now_s: float) -> Sequence[Run[RequestId]]:
        """Try pods again that were left alone for long enough; who runs by it."""
        due = [address for address, one in self._shunned.items() if one.until_s is not None and one.until_s <= now_s]
        if not due:
            return ()
        for address in due:
            self._shunned[address] = msgspec.structs.replace(self._shunned[address], until_s=None)
        self._apply()
        return self._settle(now_s)

    def expire(self, now_s: float) -> list[RequestId]:
        """Take out those who have waited for as long as they may."""
        return self._take_out(now_s, due_s=now_s)

    def give_up(self, now_s: float) -> list[RequestId]:
        """Take out all who wait, oldest first: their revision cannot start, or is gone."""
        return self._take_out(now_s, due_s=now_s + self._settings.queue_wait_max_s)

    def next_wake_s(self) -> float | None:
        """When ``expire`` or ``revive`` is next due, in one or the other; None while neither will be."""
        oldest_s = [since_s + self._settings.queue_wait_max_s for since_s in list(self._returned.values())[:1]]
        waiting_s = self._breaker.next_wake_s()
        if waiting_s is not None:
            oldest_s.append(waiting_s)
        shunned_s = [one.until_s for one in self._shunned.values() if one.until_s is not None]
        return min([*oldest_s, *shunned_s], default=None)

    def report(self, now_s: float) -> Report:
        """Close the meter's period and open the next."""
        return self._meter.report(now_s)

    def validate(self) -> None:
        """Assert what holds between any two calls; tests call it after every step."""
        self._breaker.validate()
        self._meter.validate()
        counts = self._breaker.counts()
        assert counts.running == len(self._address_of) + len(self._returned), self
        assert self.level == counts.running + counts.waiting, self
        assert not self._address_of.keys() & self._returned.keys(), self
        if self._balancer is not None:
            self._balancer.validate()
            capacity = self._balancer.capacity
            assert not self.waiting_count or capacity == len(self._address_of), self
            assert self._breaker.capacity == self._capacity(), self

    def _capacity(self) -> int | None:
        """What the breaker may let through: what is out there, what came back, and the slots that are free."""
        assert self._balancer is not None
        capacity = self._balancer.capacity
        return None if capacity is None else capacity + len(self._returned)

    def _settle(self, now_s: float) -> Sequence[Run[RequestId]]:
        """Give free slots first to those who came back, then tell the breaker how many are left."""
        assert self._balancer is not None
        runs: list[Run[RequestId]] = []
        while self._returned and self._balancer.capacity != self.running_count:
            request, since_s = self._returned.popitem(last=False)
            runs.append(self._begin(request, now_s - since_s))
        capacity = self._capacity()
        if capacity == self._breaker.capacity:
            return runs
        return self._begun(self._breaker.set_capacity(capacity, now_s), runs)

    def _begun(self, granted: Sequence[Granted[RequestId]], runs: Sequence[Run[RequestId]]) -> Sequence[Run[RequestId]]:
        return [*runs, *(self._begin(one.request_id, one.waited_s) for one in granted)] if granted else runs

    def _begin(self, request: RequestId, waited_s: float) -> Run[RequestId]:
        assert self._balancer is not None
        pod = self._balancer.pick()
        assert pod is not None, "the breaker's capacity is what the pods have"
        self._address_of[request] = pod.address
        return Run(request=request, address=pod.address, waited_s=waited_s)

    def _take_out(self, now_s: float, *, due_s: float) -> list[RequestId]:
        """Take out those whose wait ends by ``due_s``, oldest first."""
        wait_max_s = self._settings.queue_wait_max_s
        out = [request for request, since_s in self._returned.items() if since_s + wait_max_s <= due_s]
        for request in out:
            self._leave_queue(request, now_s)
        for one in self._breaker.expire(due_s):
            self._meter.leave(now_s, proxied=False)
            out.append(one.request_id)
        return out

    def _leave_queue(self, request: RequestId, now_s: float) -> None:
        """A request that waits goes; nobody runs by it, because nobody waits beside a free slot."""
        waiting_count = self.waiting_count
        if self._returned.pop(request, None) is not None:
            # Before the cancel: the slot that it kept is nobody's.
            self._settle(now_s)
        self._breaker.cancel(request, now_s)
        if self.waiting_count != waiting_count:
            self._meter.leave(now_s, proxied=False)

    def _apply(self) -> None:
        """Tell the balancer which pods there are but for those that are left alone."""
        assert self._balancer is not None
        away = self.shunned
        if self._listed.slots is not None:
            self._balancer.set_pods({pod: slots for pod, slots in self._listed.slots.items() if pod not in away})
            return
        slots_by_address = share(
            self._listed.addresses - away,
            activator_count=self._listed.place.count,
            index=self._listed.place.index,
            slots_per_pod=self._listed.container_concurrency,
            quirks=self._settings.quirks,
        )
        self._balancer.set_pods(slots_by_address)
