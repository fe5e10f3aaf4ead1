"""Trades slots of pods with the other activator processes of one machine.

A process with waiting requests asks all other processes for slots. A process with unused slots gives them to the
process whose request has waited longest. A slot stays with its receiver until another process asks. If requests wait in
every process, a freed slot passes to a process whose oldest request has waited longer, one slot per ask.

Pods without a concurrency limit have no slots. Messages contain waiting times as durations, because the clocks of
processes differ.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.queueing.outcome import Dispatch, RoutingOutcome
from serving.activator.queueing.router import RevisionTable
from serving.activator.queueing.throttler import RevisionThrottler
from serving.activator.slots.ledger import Ledger
from serving.activator.slots.messages import Ask, Give, InUse, PeerHello, Send, SlotMessage
from serving.core.model.knative import RevisionKey

RequestId = TypeVar("RequestId", bound=Hashable)

# Often enough that the oldest request gets a slot; rarely enough that a full revision sends 100 messages a second.
_ASK_PAUSE_S = 0.01
# A slot of an unreachable pod cannot be used here: ask again, even without news.
_ASK_AGAIN_S = 0.1
# Messages take time: below this difference, in seconds, processes cannot order two requests.
_OLDER_BY_S = 0.02


class _PeerAsk(msgspec.Struct, kw_only=True):
    """A peer's request for slots of a revision, for which ``waiting_count`` requests wait there since ``since_s``.

    ``may_overtake``: when a local request ends, its slot may go to the peer before the local queue. This is False once
    it has happened, until the peer asks again.
    """

    waiting_count: int
    since_s: float
    may_overtake: bool = True


class _OwnAsk(msgspec.Struct, frozen=True, kw_only=True):
    """This process's last request for slots of a revision, sent at ``at_s``.

    At that time ``waiting_count`` requests waited, the oldest one since ``since_s``.
    """

    waiting_count: int
    since_s: float
    at_s: float


class SlotBroker(Generic[RequestId]):
    """The slot book of one router, when several processes share pods (``router.SlotBook``).

    ``table`` is shared with the router; ``index`` identifies this process. ``first_round`` is the number of its first
    declaration (``messages.Declare``); it must exceed all numbers that an earlier process with this index used.
    ``send`` sends a message to a peer.
    """

    def __init__(self, table: RevisionTable[RequestId], *, index: int, first_round: int, send: Send) -> None:
        self._table = table
        self.ledger = Ledger(index=index, first_round=first_round, in_use=self._in_use, send=send)
        self._peer_asks: dict[RevisionKey, dict[int, _PeerAsk]] = {}
        self._own_asks: dict[RevisionKey, _OwnAsk] = {}

    # Events from peers.

    def set_peers(self, peers: Iterable[int], now_s: float) -> RoutingOutcome[RequestId]:
        """Replace the set of other live processes, and return the resulting dispatches."""
        view = self.ledger.view_number
        self.ledger.set_peers(peers)
        for key, asks in list(self._peer_asks.items()):
            for gone in asks.keys() - set(self.ledger.peers):
                self._forget(key, gone)
        return self._after(view, now_s)

    def receive(self, peer: int, message: SlotMessage, now_s: float) -> RoutingOutcome[RequestId]:
        """Process a message from a peer, and return the resulting dispatches."""
        if peer not in self.ledger.peers:
            return RoutingOutcome()
        if isinstance(message, Ask):
            if message.waiting_count:
                asks = self._peer_asks.setdefault(message.key, {})
                asks[peer] = _PeerAsk(waiting_count=message.waiting_count, since_s=now_s - message.waited_s)
                self._share_out(message.key, now_s)
            else:
                self._forget(message.key, peer)
            return RoutingOutcome()
        view = self.ledger.view_number
        if not isinstance(message, PeerHello):
            self.ledger.receive(peer, message)
        if not isinstance(message, Give):
            return self._after(view, now_s)
        dispatches = self._use(message.key, message.pod, now_s)
        # Another process may need the slot more, now that the local need has changed.
        self.settle(message.key, now_s)
        self._table.schedule.schedule_tick(message.key)
        return RoutingOutcome(dispatches=dispatches)

    # Called by the router.

    def rights(self, key: RevisionKey, pods: Iterable[str]) -> Mapping[str, int] | None:
        """The slots of each pod that this process may use; None if pods have no concurrency limit."""
        slot_count = self._table.directory.slot_count(key)
        return {pod: self.ledger.right(key, pod, slot_count) for pod in pods} if slot_count else None

    def before_finish(self, key: RevisionKey, request: RequestId, now_s: float) -> None:
        """Before a request ends, pass its slot to a peer with an older queued request, if any."""
        passing = self._passing(key, request) if key in self._peer_asks else None
        if passing is not None:
            # Before the end of the request, so that no local request gets the slot.
            pod, peer = passing
            self._peer_asks[key][peer].may_overtake = False
            self._hand(key, pod, now_s, peer=peer, count=1)

    def settle(self, key: RevisionKey, now_s: float) -> None:
        """Give unneeded slots to peers that requested some, and request missing ones."""
        self._share_out(key, now_s)
        self._request_slots(key, now_s)

    def is_trading(self, key: RevisionKey) -> bool:
        """Whether this process or a peer has asked for slots of a revision."""
        return key in self._peer_asks or key in self._own_asks

    def return_unused(self) -> None:
        """Return borrowed slots of deleted pods, so that they are no longer counted."""
        for key, pod, peer, count in self.ledger.borrowed():
            is_gone = pod not in self._table.directory.pods_of(key) and not _in_flight(
                self._table.throttlers.get(key)
            ).get(pod)
            if is_gone and not self.ledger.is_frozen:
                self.ledger.transfer(key, pod, peer=peer, count=count)

    # Rights.

    def _in_use(self) -> Iterator[InUse]:
        for key, throttler in self._table.throttlers.items():
            if slot_count := throttler.slots_per_pod:
                for pod, in_flight in throttler.balancer.in_flight_by_pod().items():
                    yield InUse(key=key, pod=pod, in_flight=in_flight, slot_count=slot_count)

    def _after(self, view: int, now_s: float) -> RoutingOutcome[RequestId]:
        """Return the dispatches that follow if the slots of all processes were distributed again (a new view began).

        ``view`` is the number of the view before the event. Without a new view, nothing follows.
        """
        if view == self.ledger.view_number:
            return RoutingOutcome()
        self._own_asks.clear()
        for key in [*self._table.throttlers, *self._peer_asks]:
            self._table.schedule.schedule_tick(key)
        return RoutingOutcome(
            dispatches=[
                dispatch
                for key, throttler in self._table.throttlers.items()
                if (revision := self._table.directory.revision(key)) is not None
                for dispatch in throttler.set_pods(
                    throttler.pods,
                    now_s,
                    container_concurrency=revision.container_concurrency,
                    slots=self.rights(key, throttler.pods),
                )
            ]
        )

    def _use(self, key: RevisionKey, pod: str, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """Set the throttler's slots of a pod to the current rights; return the resulting dispatches."""
        throttler, slot_count = self._table.throttlers.get(key), self._table.directory.slot_count(key)
        if throttler is None or not slot_count:
            return ()
        return throttler.set_slots(pod, self.ledger.right(key, pod, slot_count), now_s)

    # Asking.

    def _request_slots(self, key: RevisionKey, now_s: float) -> None:
        """Ask peers for slots, if the need has changed."""
        if self.ledger.is_frozen or not self.ledger.peers:
            return
        last, throttler = self._own_asks.get(key), self._table.throttlers.get(key)
        waiting_count = 0 if throttler is None else throttler.waiting_count
        if last is not None and waiting_count and now_s < last.at_s + _ASK_PAUSE_S:
            self._table.schedule.schedule_at(key, last.at_s + _ASK_PAUSE_S)
            return
        needs_slots = throttler is not None and bool(throttler.pods) and self._table.directory.slot_count(key) > 0
        since_s = throttler.waiting_since_s if throttler is not None and needs_slots else None
        if since_s is None:
            if last is not None:
                del self._own_asks[key]
                self.ledger.send_all(Ask(key=key, waiting_count=0, waited_s=0.0))
            return
        is_change = last is None or (last.waiting_count, last.since_s) != (waiting_count, since_s)
        if last is not None and not is_change and now_s < last.at_s + _ASK_AGAIN_S:
            self._table.schedule.schedule_at(key, last.at_s + _ASK_AGAIN_S)
            return
        self._own_asks[key] = _OwnAsk(waiting_count=waiting_count, since_s=since_s, at_s=now_s)
        self._table.schedule.schedule_at(key, now_s + _ASK_AGAIN_S)
        self.ledger.send_all(Ask(key=key, waiting_count=waiting_count, waited_s=now_s - since_s))

    # Giving.

    def _forget(self, key: RevisionKey, peer: int) -> None:
        asks = self._peer_asks.get(key, {})
        asks.pop(peer, None)
        if not asks:
            self._peer_asks.pop(key, None)

    def _share_out(self, key: RevisionKey, now_s: float) -> None:
        """Give unneeded slots to peers that requested some, the longest wait first."""
        if key not in self._peer_asks or self.ledger.is_frozen:
            return
        throttler = self._table.throttlers.get(key)
        if throttler is not None and throttler.waiting_count and not throttler.ejected.addresses:
            return
        spare = self._unneeded_slots(key)
        for peer, ask in sorted(self._peer_asks[key].items(), key=lambda item: item[1].since_s):
            while spare and ask.waiting_count:
                # From the end, because this process uses the first pods first.
                pod, spare_count = spare.pop()
                count = min(spare_count, ask.waiting_count)
                if spare_count > count:
                    spare.append((pod, spare_count - count))
                self._hand(key, pod, now_s, peer=peer, count=count)

    def _hand(self, key: RevisionKey, pod: str, now_s: float, *, peer: int, count: int) -> None:
        self.ledger.transfer(key, pod, peer=peer, count=count)
        self._use(key, pod, now_s)
        ask = self._peer_asks[key][peer]
        ask.waiting_count -= count
        if not ask.waiting_count:
            self._forget(key, peer)

    def _unneeded_slots(self, key: RevisionKey) -> list[tuple[str, int]]:
        """Pods and counts of unneeded slots, by address. While requests wait, only ejected pods are included."""
        slot_count = self._table.directory.slot_count(key)
        pods = set(self._table.directory.pods_of(key)) if slot_count else set()
        throttler = self._table.throttlers.get(key)
        if throttler is not None and throttler.waiting_count:
            pods &= throttler.ejected.addresses
        used = _in_flight(throttler) if pods else {}
        rights = ((pod, self.ledger.right(key, pod, slot_count)) for pod in sorted(pods))
        return [(pod, right - used.get(pod, 0)) for pod, right in rights if right > used.get(pod, 0)]

    def _passing(self, key: RevisionKey, request: RequestId) -> tuple[str, int] | None:
        """The pod of an ending request, and the peer that gets its slot before the local queue; None without one."""
        throttler, slot_count = self._table.throttlers.get(key), self._table.directory.slot_count(key)
        if throttler is None or not slot_count or not throttler.waiting_count or self.ledger.is_frozen:
            return None
        pod, since_s = throttler.address_of.get(request), throttler.waiting_since_s
        older = [
            (ask.since_s, peer)
            for peer, ask in self._peer_asks.get(key, {}).items()
            if ask.may_overtake and since_s is not None and ask.since_s + _OLDER_BY_S < since_s
        ]
        if pod is None or not older or _in_flight(throttler)[pod] > self.ledger.right(key, pod, slot_count):
            return None
        return pod, min(older)[1]


def _in_flight(throttler: RevisionThrottler[RequestId] | None) -> dict[str, int]:
    """The number of requests in flight from this process, by pod of the revision."""
    return {} if throttler is None else throttler.balancer.in_flight_by_pod()
