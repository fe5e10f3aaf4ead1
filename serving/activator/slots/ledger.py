"""How many slots of each pod this process may use, when several activator processes share the pods of one machine.

Input: which peers live, what they say, and slots given away. Output: ``right``, the slots of a pod that are ours now, and
messages to peers. What holds at any time, whatever is late, lost or out of order: the rights of all
processes in one pod are together no more than its containerConcurrency.

In a **view**, a set of processes that live, each has its share of a pod (``shares.py``) plus what it was given minus what
it gave. Only what differs from the share is kept. A slot on its way belongs to nobody until it arrives.

When a process comes or goes, the others freeze: each declares what it has in flight, and from then on uses no more than
that. Once all have the same declarations, and know it of each other, the next view begins: what is in use beyond a share
counts as given by those with room. A declaration is only ever part of a view while its sender is still frozen by it:
whoever has begun a view answers a new declaration with a new one of its own. What a dead process had is shared out again.
"""

from collections.abc import Callable, Iterable, Mapping

from serving.activator.slots.messages import Declare, Give, InUse, Message, Ready, Rounds, Tell
from serving.activator.slots.shares import loans_between, share_of
from serving.model.knative import RevisionKey

__all__ = ["Ledger"]

_Slot = tuple[RevisionKey, str]


class Ledger:
    """The rights of process ``index``; it has none before the first ``set_peers``.

    ``first_round`` must be greater than any round of an earlier life. ``in_use`` says what is in flight now,
    ``tell`` sends a message to a peer.
    """

    def __init__(self, *, index: int, first_round: int, in_use: Callable[[], Iterable[InUse]], tell: Tell) -> None:
        self.turn = 0
        """Grows whenever all rights may have changed."""
        self._index = index
        self._in_use = in_use
        self._tell_one = tell
        self._round = first_round
        self._members: tuple[int, ...] = ()
        self._declared: dict[int, Declare] = {}
        self._ready: dict[int, Rounds] = {}
        self._view: Rounds | None = None
        self._frozen: dict[_Slot, int] = {}
        # What we were given by each peer, minus what we gave it.
        self._loans: dict[_Slot, dict[int, int]] = {}

    def __repr__(self) -> str:
        state = "frozen" if self._view is None else "shares"
        return f"Ledger({self._index} of {self._members}, {state}, {len(self._loans)} pods with loans)"

    @property
    def is_frozen(self) -> bool:
        """Whether no slot can be given, nor more be used than what is in use."""
        return self._view is None

    @property
    def peers(self) -> list[int]:
        """The other processes."""
        return [member for member in self._members if member != self._index]

    @property
    def silent_peers(self) -> list[int]:
        """Those that keep a view from beginning."""
        mine = self._ready.get(self._index)
        return [peer for peer in self.peers if self.is_frozen and (mine is None or self._ready.get(peer) != mine)]

    def right(self, key: RevisionKey, pod: str, slot_count: int) -> int:
        """The slots of a pod that are ours now, of ``slot_count`` in all."""
        slot = (key, pod)
        if self._view is None:
            return self._frozen.get(slot, 0)
        share = share_of(pod, slot_count=slot_count, members=self._members, index=self._index)
        loans = self._loans.get(slot)
        return max(0, share + sum(loans.values())) if loans else share

    def borrowed(self) -> Iterable[tuple[RevisionKey, str, int, int]]:
        """What we have of others: revision, pod, peer and count."""
        return [
            (*slot, peer, count) for slot, loans in self._loans.items() for peer, count in loans.items() if count > 0
        ]

    def set_peers(self, peers: Iterable[int]) -> None:
        """The other processes that live, as soon as it is known."""
        self._members = tuple(sorted({self._index, *peers}))
        self._declared = {peer: one for peer, one in self._declared.items() if peer in self._members}
        self._ready = {peer: rounds for peer, rounds in self._ready.items() if peer in self._members}
        self._freeze()
        self._advance()

    def receive(self, peer: int, message: Declare | Ready | Give) -> None:
        """What a peer says. What a process says that is not among the peers is nothing."""
        if peer not in self._members:
            return
        if isinstance(message, Give):
            if message.rounds == self._view:
                self._lend((message.key, message.pod), peer, message.count)
            return
        known = self._declared.get(peer)
        if isinstance(message, Ready):
            self._ready[peer] = message.rounds
        elif known is None or known.round < message.round:
            self._declared[peer] = message
            if self._view is not None:
                self._freeze()
        self._advance()

    def give(self, key: RevisionKey, pod: str, *, peer: int, count: int) -> None:
        """Pass slots of ours that nothing uses to a peer; they are not ours from now on."""
        assert self._view is not None, self
        assert peer in self._members, self
        self._lend((key, pod), peer, -count)
        self._tell_one(peer, Give(rounds=self._view, key=key, pod=pod, count=count))

    def remind(self) -> None:
        """Say again what may have been lost on its way, while a view is to begin."""
        mine, ready = self._declared.get(self._index), self._ready.get(self._index)
        if mine is not None:
            self._tell(mine)
        if ready is not None:
            self._tell(Ready(rounds=ready))

    def _freeze(self) -> None:
        """Use no more than now until the next view."""
        in_use = tuple(self._in_use())
        self._round += 1
        self._view = None
        self.turn += 1
        self._loans = {}
        self._frozen = {(one.key, one.pod): one.in_flight for one in in_use}
        declared = self._declared[self._index] = Declare(round=self._round, in_use=in_use)
        self._ready.pop(self._index, None)
        self._tell(declared)

    def _advance(self) -> None:
        """Go as far towards the next view as what was heard allows."""
        if self._view is not None or len(self._declared) < len(self._members):
            return
        rounds = tuple((member, self._declared[member].round) for member in self._members)
        if self._ready.get(self._index) != rounds:
            self._ready[self._index] = rounds
            self._tell(Ready(rounds=rounds))
        if all(self._ready.get(member) == rounds for member in self._members):
            self._view = rounds
            self.turn += 1
            self._frozen = {}
            self._loans = dict(_loans_of(self._index, self._members, self._declared))

    def _lend(self, slot: _Slot, peer: int, count: int) -> None:
        loans = self._loans.setdefault(slot, {})
        loans[peer] = loans.get(peer, 0) + count
        if not loans[peer]:
            del loans[peer]
        if not loans:
            del self._loans[slot]

    def _tell(self, message: Message) -> None:
        for peer in self.peers:
            self._tell_one(peer, message)


def _loans_of(
    index: int, members: tuple[int, ...], declared: Mapping[int, Declare]
) -> Iterable[tuple[_Slot, dict[int, int]]]:
    """What one process has from the others and they from it when a view begins: all find the same from the same."""
    in_flight: dict[tuple[RevisionKey, str, int], dict[int, int]] = {}
    for member in members:
        for one in declared[member].in_use:
            in_flight.setdefault((one.key, one.pod, one.slot_count), {})[member] = one.in_flight
    for (key, pod, slot_count), used in in_flight.items():
        shares = [share_of(pod, slot_count=slot_count, members=members, index=member) for member in members]
        loans: dict[int, int] = {}
        for (borrower, lender), count in loans_between(shares, [used.get(member, 0) for member in members]).items():
            if members[borrower] == index:
                loans[members[lender]] = count
            elif members[lender] == index:
                loans[members[borrower]] = -count
        if loans:
            yield (key, pod), loans
