"""How the slots of a pod are shared out among activator processes before any is lent, and who owes whom when they change.

Inputs: the pod, its slots (containerConcurrency), the processes there are. Every process computes it alone: from the
pod's address and not from its place in a list, because lists of two processes differ for a moment and shares must not.
"""

import zlib
from collections.abc import Sequence

__all__ = ["loans_between", "share_of"]


def share_of(pod: str, *, slot_count: int, members: Sequence[int], index: int) -> int:
    """The slots of process ``index`` in a pod, with ``members`` there, in their order.

    3 slots and 2 processes: 2 and 1, and which of them has 2 hangs on the pod's address, so that over many pods all have
    the same. 1 slot and 2 processes: half of the pods are the one's, half the other's.
    """
    size, rest = divmod(slot_count, len(members))
    turn = (members.index(index) + zlib.crc32(pod.encode())) % len(members)
    return size + (turn < rest)


def loans_between(shares: Sequence[int], in_use: Sequence[int]) -> dict[tuple[int, int], int]:
    """Slots that the one in place ``borrower`` has from the one in place ``lender``, by both, so that all have what they use.

    Shares 1, 1 and 2 in use by the second: it has 1 from the first. What is in use beyond the sum of the shares, which
    only a process that was given up on can bring about, is nobody's loan.
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
