"""The desk of one of several activator processes: it has as many slots of each pod as its ledger says.

A process whose requests wait asks all others; whoever has slots that it does not need gives them, to whoever waits longest.
A slot stays where it was given until somebody else asks. Where all have requests that wait, a slot that comes free passes
to a process whose oldest request has waited longer than ours, one slot for each time that it asks.

Pods without a limit need no slots, and one process alone asks nobody. Peers are told how long somebody has waited and not
since when, so that clocks need not agree.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from serving.activator.desk import Desk
from serving.activator.hold import Run
from serving.activator.outcome import Go, Outcome
from serving.activator.slots.ledger import Ledger
from serving.activator.slots.messages import Ask, Give, Hello, InUse, Message, Tell
from serving.activator.wake import Load
from serving.model.knative import RevisionKey
from serving.settings.activator import ActivatorSettings

__all__ = ["SharingDesk"]

RequestId = TypeVar("RequestId", bound=Hashable)

# Often enough that a slot goes to who is oldest; seldom enough that a full revision costs 100 messages a second.
_ASK_PAUSE_S = 0.01
# A slot that came to a pod which we cannot reach helps nobody here: ask again, though nothing is new.
_ASK_AGAIN_S = 0.1
# Below what passes between two asks nobody can say who is older.
_OLDER_BY_S = 0.02


class _Asked(msgspec.Struct, kw_only=True):
    """What a peer wants for a revision. ``may_overtake``: no slot has passed to it before a request of ours since it asked."""

    waiting_count: int
    since_s: float
    may_overtake: bool = True


class _Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What peers were told of our wants for a revision, and when."""

    waiting_count: int
    since_s: float
    at_s: float


class SharingDesk(Desk[RequestId]):
    """One of ``settings.count`` desks. ``first_round`` must be greater than any of an earlier life; ``tell`` sends to a peer."""

    def __init__(
        self, settings: ActivatorSettings, *, random: Callable[[], float], first_round: int, tell: Tell
    ) -> None:
        super().__init__(settings, random=random)
        self.ledger = Ledger(index=settings.index, first_round=first_round, in_use=self._in_use, tell=tell)
        self._tell = tell
        self._slots_of = self._rights
        self._asked: dict[RevisionKey, dict[int, _Asked]] = {}
        self._asking: dict[RevisionKey, _Asking] = {}
        # When we may ask again, for revisions that have something new to say.
        self._ask_due_s: dict[RevisionKey, float] = {}

    def set_peers(self, peers: Iterable[int], now_s: float) -> Outcome[RequestId]:
        """The other processes that live, whenever that changes; who runs by it."""
        turn = self.ledger.turn
        self.ledger.set_peers(peers)
        for key, asked in list(self._asked.items()):
            for gone in asked.keys() - set(self.ledger.peers):
                self._forget(key, gone)
        return self._turned(turn, now_s)

    def hear(self, peer: int, message: Message, now_s: float) -> Outcome[RequestId]:
        """What another process says; who runs by it."""
        if peer not in self.ledger.peers:
            return Outcome()
        if isinstance(message, Ask):
            self._hear_ask(peer, message, now_s)
            return Outcome()
        turn = self.ledger.turn
        if not isinstance(message, Hello):
            self.ledger.receive(peer, message)
        if not isinstance(message, Give):
            return self._turned(turn, now_s)
        runs = self._use(message.key, message.pod, now_s)
        # Others may want it more, and what we asked for is another number now.
        self._share_out(message.key, now_s)
        self._ask(message.key, now_s)
        self._stirred.add(message.key)
        return Outcome(go=self._goes(message.key, runs))

    def finish(self, key: RevisionKey, request: RequestId, now_s: float) -> Sequence[Go[RequestId]]:
        """As at a desk alone, but that the slot may pass to another process."""
        if not self._asked.get(key) and key not in self._asking:
            return super().finish(key, request, now_s)
        passing = self._passing(key, request)
        if passing is not None:
            # Before its end, so that none of ours has the slot.
            pod, peer = passing
            self._asked[key][peer].may_overtake = False
            self._hand(key, pod, now_s, peer=peer, count=1)
        go = super().finish(key, request, now_s)
        self._share_out(key, now_s)
        self._ask(key, now_s)
        return go

    def tick(self, now_s: float) -> Outcome[RequestId]:
        """As at a desk alone; and ask, and give."""
        keys = self._stirred.union(key for key, due_s in self._ask_due_s.items() if due_s <= now_s)
        outcome = super().tick(now_s)
        for key in keys:
            self._share_out(key, now_s)
            self._ask(key, now_s)
        return outcome

    def next_due_s(self) -> float | None:
        """When ``tick`` is next due without news; it may find nothing to do."""
        due_s = super().next_due_s()
        return min([*self._ask_due_s.values(), *([] if due_s is None else [due_s])], default=None)

    def report(self, now_s: float) -> list[tuple[RevisionKey, Load]]:
        """As at a desk alone; and give back slots of pods that are gone, so that nobody has to remember them."""
        loads = super().report(now_s)
        for key, pod, peer, count in self.ledger.borrowed():
            if not self.ledger.is_frozen and pod not in self._slices.pods_of(key) and not self._used(key).get(pod):
                self.ledger.give(key, pod, peer=peer, count=count)
        return loads

    def _in_use(self) -> Iterator[InUse]:
        for key, entry in self._entries.items():
            slot_count = entry.holder.slots_per_pod
            if slot_count:
                for pod, in_flight in entry.holder.in_flight_by_pod().items():
                    yield InUse(key=key, pod=pod, in_flight=in_flight, slot_count=slot_count)

    def _used(self, key: RevisionKey) -> Mapping[str, int]:
        entry = self._entries.get(key)
        return {} if entry is None else entry.holder.in_flight_by_pod()

    def _slot_count(self, key: RevisionKey) -> int:
        """What a pod of a revision takes in all; 0 if that is not limited, or not known."""
        facts = self._facts.get(key)
        return 0 if facts is None else facts.container_concurrency

    def _rights(self, key: RevisionKey, pods: Iterable[str]) -> Mapping[str, int] | None:
        slot_count = self._slot_count(key)
        return {pod: self.ledger.right(key, pod, slot_count) for pod in pods} if slot_count else None

    def _turned(self, turn: int, now_s: float) -> Outcome[RequestId]:
        """All rights may have changed, if the ledger's turn has: take them, and ask anew."""
        if turn == self.ledger.turn:
            return Outcome()
        self._asking.clear()
        self._ask_due_s.clear()
        self._stirred.update(self._entries, self._asked)
        return Outcome(go=[go for key, entry in self._entries.items() for go in self._set_pods(key, entry, now_s)])

    def _use(self, key: RevisionKey, pod: str, now_s: float) -> Sequence[Run[RequestId]]:
        """Have a pod's holder use as many slots as we have now; who runs by it."""
        entry, slot_count = self._entries.get(key), self._slot_count(key)
        if entry is None or not slot_count:
            return ()
        return entry.holder.set_slots(pod, self.ledger.right(key, pod, slot_count), now_s)

    def _goes(self, key: RevisionKey, runs: Sequence[Run[RequestId]]) -> Sequence[Go[RequestId]]:
        entry = self._entries.get(key)
        if entry is None:
            return ()
        return [Go(request=run.request, pod=entry.pods[run.address], waited_s=run.waited_s) for run in runs]

    # Asking.

    def _ask(self, key: RevisionKey, now_s: float) -> None:
        """Tell the peers what we want, if that is news to them."""
        if self.ledger.is_frozen or not self.ledger.peers:
            return
        told = self._asking.get(key)
        entry = self._entries.get(key)
        if told is not None and now_s < told.at_s + _ASK_PAUSE_S and entry is not None and entry.holder.waiting_count:
            self._ask_due_s[key] = told.at_s + _ASK_PAUSE_S
            return
        since_s = entry.holder.waits_since_s if entry is not None and entry.pods and self._slot_count(key) else None
        self._ask_due_s.pop(key, None)
        if entry is None or since_s is None:
            if told is not None:
                del self._asking[key]
                self._tell_all(Ask(key=key, waiting_count=0, waited_s=0.0))
            return
        waiting_count = entry.holder.waiting_count
        if told is not None:
            is_news = (told.waiting_count, told.since_s) != (waiting_count, since_s)
            if not is_news and now_s < told.at_s + _ASK_AGAIN_S:
                self._ask_due_s[key] = told.at_s + _ASK_AGAIN_S
                return
        self._asking[key] = _Asking(waiting_count=waiting_count, since_s=since_s, at_s=now_s)
        self._ask_due_s[key] = now_s + _ASK_AGAIN_S
        self._tell_all(Ask(key=key, waiting_count=waiting_count, waited_s=now_s - since_s))

    def _tell_all(self, message: Message) -> None:
        for peer in self.ledger.peers:
            self._tell(peer, message)

    # Giving.

    def _hear_ask(self, peer: int, ask: Ask, now_s: float) -> None:
        if ask.waiting_count:
            self._asked.setdefault(ask.key, {})[peer] = _Asked(
                waiting_count=ask.waiting_count, since_s=now_s - ask.waited_s
            )
            self._share_out(ask.key, now_s)
        else:
            self._forget(ask.key, peer)

    def _forget(self, key: RevisionKey, peer: int) -> None:
        asked = self._asked.get(key, {})
        asked.pop(peer, None)
        if not asked:
            self._asked.pop(key, None)

    def _share_out(self, key: RevisionKey, now_s: float) -> None:
        """Give what we do not need to who asked for it, the longest wait first."""
        if key not in self._asked or self.ledger.is_frozen:
            return
        entry = self._entries.get(key)
        if entry is not None and entry.holder.waiting_count and not entry.holder.shunned:
            return
        spare = self._spare(key)
        for peer, asked in sorted(self._asked[key].items(), key=lambda item: item[1].since_s):
            while spare and asked.waiting_count:
                # From the end: the first pods in order are those that we use first.
                pod, spare_count = spare.pop()
                count = min(spare_count, asked.waiting_count)
                if spare_count > count:
                    spare.append((pod, spare_count - count))
                self._hand(key, pod, now_s, peer=peer, count=count)

    def _hand(self, key: RevisionKey, pod: str, now_s: float, *, peer: int, count: int) -> None:
        self.ledger.give(key, pod, peer=peer, count=count)
        self._use(key, pod, now_s)
        asked = self._asked[key][peer]
        asked.waiting_count -= count
        if not asked.waiting_count:
            self._forget(key, peer)

    def _spare(self, key: RevisionKey) -> list[tuple[str, int]]:
        """Pods with slots that we have and do not need, in order. While requests wait, it is those that we cannot reach."""
        slot_count = self._slot_count(key)
        entry = self._entries.get(key)
        pods = self._slices.pods_of(key).keys() if slot_count else set[str]()
        if entry is not None and entry.holder.waiting_count:
            pods &= entry.holder.shunned
        used = self._used(key) if pods else {}
        rights = ((pod, self.ledger.right(key, pod, slot_count)) for pod in sorted(pods))
        return [(pod, right - used.get(pod, 0)) for pod, right in rights if right > used.get(pod, 0)]

    def _passing(self, key: RevisionKey, request: RequestId) -> tuple[str, int] | None:
        """The pod of a request that ends and the peer that its slot passes to, though requests of ours wait."""
        entry, slot_count = self._entries.get(key), self._slot_count(key)
        if entry is None or not slot_count or not entry.holder.waiting_count or self.ledger.is_frozen:
            return None
        pod, since_s = entry.holder.pod_of(request), entry.holder.waits_since_s
        older = [
            (one.since_s, peer)
            for peer, one in self._asked.get(key, {}).items()
            if one.may_overtake and since_s is not None and one.since_s + _OLDER_BY_S < since_s
        ]
        if pod is None or not older or self._used(key)[pod] > self.ledger.right(key, pod, slot_count):
            return None
        return pod, min(older)[1]
