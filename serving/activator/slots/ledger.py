"""Divides the slots of each pod among the activator processes of one machine.

Input: the live peers, their messages, and the slots that this process gives away. Output: ``right``, this process's
slots of a pod, and messages to peers. Even if messages are late, lost or reordered, the rights of all processes to one
pod never exceed its containerConcurrency.

A **view** is a set of live processes. In a view, a process has its share of a pod's slots, plus received slots, minus
slots that it gave to others. Only the difference is stored. A slot in transit belongs to no process.

When a process starts or ends, the others freeze: each declares its requests in flight, and starts no more than it
declared. The next view begins once all processes have the same declarations and know this of each other. A process that
uses more slots than its share has borrowed them from processes with unused slots. A declaration is valid only while its
sender is frozen: a process that has begun a view answers a new declaration with a new one. The slots of an ended
process are distributed again.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from serving.activator.slots.messages import Declare, Give, InUse, Rounds, Send, SlotMessage, ViewReady
from serving.core.model.knative import RevisionKey

_Slot = tuple[RevisionKey, str]


def share_of(pod: str, *, slot_count: int, members: Sequence[int], index: int) -> int:
    """The slots that process ``index`` owns in a pod, given the ordered ``members``.

    Example: 3 slots and 2 processes give 2 and 1. The pod's address decides which process gets 2, so that shares are
    equal over many pods. With 1 slot per pod and 2 processes, each process owns the slots of half of the pods.
    """
    size, rest = divmod(slot_count, len(members))
    turn = (members.index(index) + zlib.crc32(pod.encode())) % len(members)
    return size + (turn < rest)


def loans_between(shares: Sequence[int], in_use: Sequence[int]) -> dict[tuple[int, int], int]:
    """The loans that cover the requests in flight of every process: slots by (borrower, lender).

    ``shares`` are the slots that each process owns in one pod, ``in_use`` those that it uses. Example: both processes
    own 1 slot, and the second uses 2: it borrows 1 from the first. Use beyond the sum of the shares is no loan; only an
    excluded process can cause it.
    """
    loans: dict[tuple[int, int], int] = {}
    spare = [
        [place, share - used] for place, (share, used) in enumerate(zip(shares, in_use, strict=True)) if share > used
    ]
    for borrower, (share, used) in enumerate(zip(shares, in_use, strict=True)):
        missing_count = used - share
        while missing_count > 0 and spare:
            lender = spare[-1]
            count = min(missing_count, lender[1])
            loans[borrower, lender[0]] = count
            missing_count -= count
            lender[1] -= count
            if not lender[1]:
                spare.pop()
    return loans


class Ledger:
    """The slots that process ``index`` may use; none before the first ``set_peers``.

    A view is a set of live processes that share the slots; all members must agree on it before it begins.
    ``first_round`` is the number of this process's first declaration; it must exceed all numbers that an earlier
    process with this index used. ``in_use`` returns the requests in flight now; ``send`` sends a message to a peer.
    """

    def __init__(self, *, index: int, first_round: int, in_use: Callable[[], Iterable[InUse]], send: Send) -> None:
        self.view_number = 0
        """Incremented when a view begins or ends, which may change all rights."""
        self._index = index
        self._in_use = in_use
        self._send = send
        self._round = first_round
        self._members: tuple[int, ...] = ()
        self._declared: dict[int, Declare] = {}
        self._ready: dict[int, Rounds] = {}
        self._view: Rounds | None = None
        self._frozen: dict[_Slot, int] = {}
        # Slots given by each peer, minus those given to it.
        self._loans: dict[_Slot, dict[int, int]] = {}

    @property
    def is_frozen(self) -> bool:
        """Whether this process waits for the next view, which begins after a process has started or ended.

        While frozen, it gives no slots away, and its requests in flight may not increase.
        """
        return self._view is None

    @property
    def peers(self) -> list[int]:
        """The indexes of the other processes."""
        return [member for member in self._members if member != self._index]

    @property
    def silent_peers(self) -> list[int]:
        """The peers whose messages are still needed for the next view."""
        own = self._ready.get(self._index)
        return [peer for peer in self.peers if self.is_frozen and (own is None or self._ready.get(peer) != own)]

    def right(self, key: RevisionKey, pod: str, slot_count: int) -> int:
        """The number of a pod's ``slot_count`` slots that this process may use now."""
        slot = (key, pod)
        if self._view is None:
            return self._frozen.get(slot, 0)
        share = share_of(pod, slot_count=slot_count, members=self._members, index=self._index)
        loans = self._loans.get(slot)
        return max(0, share + sum(loans.values())) if loans else share

    def borrowed(self) -> Iterable[tuple[RevisionKey, str, int, int]]:
        """Slots that peers own: revision, pod, peer and count."""
        return [
            (*slot, peer, count) for slot, loans in self._loans.items() for peer, count in loans.items() if count > 0
        ]

    def set_peers(self, peers: Iterable[int]) -> None:
        """Replace the set of other live processes."""
        self._members = tuple(sorted({self._index, *peers}))
        self._declared = {peer: declaration for peer, declaration in self._declared.items() if peer in self._members}
        self._ready = {peer: rounds for peer, rounds in self._ready.items() if peer in self._members}
        self._freeze()
        self._advance()

    def receive(self, peer: int, message: Declare | ViewReady | Give) -> None:
        """Apply a message of a peer; ignore messages of other processes."""
        if peer not in self._members:
            return
        if isinstance(message, Give):
            if message.rounds == self._view:
                self._lend((message.key, message.pod), peer, message.count)
            return
        known = self._declared.get(peer)
        if isinstance(message, ViewReady):
            self._ready[peer] = message.rounds
        elif known is None or known.round < message.round:
            self._declared[peer] = message
            if self._view is not None:
                self._freeze()
        self._advance()

    def transfer(self, key: RevisionKey, pod: str, *, peer: int, count: int) -> None:
        """Pass unused slots to a peer; this process loses them immediately."""
        assert self._view is not None, self
        assert peer in self._members, self
        self._lend((key, pod), peer, -count)
        self._send(peer, Give(rounds=self._view, key=key, pod=pod, count=count))

    def remind(self) -> None:
        """Resend messages that may be lost, while the next view is pending."""
        own, ready = self._declared.get(self._index), self._ready.get(self._index)
        if own is not None:
            self.send_all(own)
        if ready is not None:
            self.send_all(ViewReady(rounds=ready))

    def _freeze(self) -> None:
        """Use no more slots than now until the next view."""
        in_use = tuple(self._in_use())
        self._round += 1
        self._view = None
        self.view_number += 1
        self._loans = {}
        self._frozen = {(usage.key, usage.pod): usage.in_flight for usage in in_use}
        declared = self._declared[self._index] = Declare(round=self._round, in_use=in_use)
        self._ready.pop(self._index, None)
        self.send_all(declared)

    def _advance(self) -> None:
        """Advance towards the next view as far as received messages allow."""
        if self._view is not None or len(self._declared) < len(self._members):
            return
        rounds = tuple((member, self._declared[member].round) for member in self._members)
        if self._ready.get(self._index) != rounds:
            self._ready[self._index] = rounds
            self.send_all(ViewReady(rounds=rounds))
        if all(self._ready.get(member) == rounds for member in self._members):
            self._view = rounds
            self.view_number += 1
            self._frozen = {}
            self._loans = dict(_loans_of(self._index, self._members, self._declared))

    def _lend(self, slot: _Slot, peer: int, count: int) -> None:
        loans = self._loans.setdefault(slot, {})
        loans[peer] = loans.get(peer, 0) + count
        if not loans[peer]:
            del loans[peer]
        if not loans:
            del self._loans[slot]

    def send_all(self, message: SlotMessage) -> None:
        """Send a message to all peers."""
        for peer in self.peers:
            self._send(peer, message)


def _loans_of(
    index: int, members: tuple[int, ...], declared: Mapping[int, Declare]
) -> Iterable[tuple[_Slot, dict[int, int]]]:
    """The loans of a process when a view begins; equal declarations give equal loans in all processes."""
    in_flight: dict[tuple[RevisionKey, str, int], dict[int, int]] = {}
    for member in members:
        for usage in declared[member].in_use:
            in_flight.setdefault((usage.key, usage.pod, usage.slot_count), {})[member] = usage.in_flight
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
