"""The shares of activator processes in the slots of a pod before any is lent, and the loans when a view begins.

Inputs: the pod, its slots (containerConcurrency), the living processes. Every process computes it alone, from the pod's
address and not from its place in a list: the lists of two processes differ for a moment, and shares must not.
"""

import zlib
from collections.abc import Sequence


def share_of(pod: str, *, slot_count: int, members: Sequence[int], index: int) -> int:
    """The slots of process ``index`` in a pod, with ``members`` there, in their order.

    3 slots and 2 processes: 2 and 1, and the pod's address decides which process has 2, so that over many pods all have the
    same. 1 slot and 2 processes: each has the slots of half of the pods.
    """
    size, rest = divmod(slot_count, len(members))
    turn = (members.index(index) + zlib.crc32(pod.encode())) % len(members)
    return size + (turn < rest)


def loans_between(shares: Sequence[int], in_use: Sequence[int]) -> dict[tuple[int, int], int]:
    """Loans that let every process keep what it has in flight: slots by the places of borrower and lender.

    Shares 1, 1 and 2 in use by the second: it borrows 1 from the first. Use beyond the sum of the shares is no loan; only a
    process that the others have left out can cause it.
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
