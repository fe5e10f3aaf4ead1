"""Prefers one pod per session by consistent hashing, so that a change of pods moves few sessions.

Input: the addresses of the pods and the number of a session. Output: the addresses in the order in which the session prefers
them. Each pod stands at 64 points of a ring of 2**64 places; a session prefers the pod at the next point at or after its own
number, then the pods of the points that follow. One more pod among n takes about one session in n + 1 and moves no other.
Follows D. Karger et al., "Consistent Hashing and Random Trees" (1997).
"""

import bisect
import hashlib
from collections.abc import Iterable, Iterator

_POINTS_PER_POD = 64
_NUMBER_BYTES = 8
_LOWER_HALF = 2**32 - 1


def session_number(text: bytes) -> int:
    """The position of a session on the ring, from 0 to below 2**64; the same in every process."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=_NUMBER_BYTES).digest())


def share_of(session: int) -> float:
    """A number from 0 to below 1 for a session: it keeps a session on one side of a traffic split.

    It takes the lower half of the bits; the ring's order follows the upper half, so one revision's sessions spread over all its pods.
    """
    return (session & _LOWER_HALF) / (_LOWER_HALF + 1)


class SessionRing:
    """The points of the pods of one revision."""

    __slots__ = ("_numbers", "_owners", "addresses")

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = frozenset(addresses)
        points = sorted(
            (session_number(f"{address}/{point}".encode()), address)
            for address in self.addresses
            for point in range(_POINTS_PER_POD)
        )
        self._numbers = [number for number, _ in points]
        self._owners = [address for _, address in points]

    def preferred(self, session: int) -> Iterator[str]:
        """Each address once, the most preferred first."""
        first, count = bisect.bisect_left(self._numbers, session), len(self._owners)
        seen: set[str] = set()
        for place in range(first, first + count):
            address = self._owners[place % count]
            if address not in seen:
                seen.add(address)
                yield address
