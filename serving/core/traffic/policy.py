"""Chooses among pods with a free slot by one of three policies; containerConcurrency selects the policy.

Each policy contains the pods with a free slot, and picks the next one in constant time. ``Balancer`` adds and removes
pods. Without a limit, the less loaded of two random pods is chosen, because pods differ only in their requests in
flight. With a low limit, the first pod in the order of addresses is chosen. With a higher limit, the pods take turns.

Follows knative/serving 98e5ef90 pkg/activator/net/lb_policy.go. Its round robin skips full pods; here free pods are in
a queue, which gives the same order while no pod is full.
"""

import bisect
import enum
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

_POINTS_PER_POD = 64
_NUMBER_BYTES = 8
_LOWER_HALF = 2**32 - 1


class BalancingPolicy(enum.StrEnum):
    """The rule that chooses among pods with a free slot.

    two-choices: the less loaded of two random pods. first-free: the first by address. round-robin: one after the other.
    """

    TWO_CHOICES = "two-choices"
    FIRST_FREE = "first-free"
    ROUND_ROBIN = "round-robin"


def policy_for(container_concurrency: int, *, first_free_concurrency_max: int) -> BalancingPolicy:
    """The policy of a revision, selected by containerConcurrency.

    0 selects two-choices, 1 to 3 (the default bound) first-free, and higher values round-robin.
    """
    if container_concurrency == 0:
        return BalancingPolicy.TWO_CHOICES
    if container_concurrency <= first_free_concurrency_max:
        return BalancingPolicy.FIRST_FREE
    return BalancingPolicy.ROUND_ROBIN


class BalancedPod:
    """One activator's view of a pod; mutable, because it changes twice for each request.

    ``slots`` are this activator's slots, None for no limit. ``in_flight`` counts this activator's requests. ``listed``:
    the pod is in the latest list.
    """

    __slots__ = ("address", "in_flight", "listed", "slots")

    def __init__(self, address: str) -> None:
        self.address = address
        self.slots: int | None = 0
        self.in_flight = 0
        self.listed = False

    @property
    def free(self) -> bool:
        """Whether the pod has a free slot and is listed."""
        return self.listed and (self.slots is None or self.in_flight < self.slots)


class FreePods(Protocol):
    """Pods with a free slot. ``add`` requires an absent pod, ``remove`` a present one, ``pick`` at least one pod."""

    def __len__(self) -> int: ...

    def add(self, pod: BalancedPod) -> None:
        """Add a pod that has become free."""
        ...

    def remove(self, pod: BalancedPod) -> None:
        """Remove a pod that is no longer free."""
        ...

    def pick(self) -> BalancedPod:
        """Return the next pod, which stays in the collection."""
        ...


class FirstFree:
    """Chooses the first pod by address as text, so that few pods are busy and the others can be removed."""

    __slots__ = ("_addresses", "_pods")

    def __init__(self) -> None:
        # The order is that of addresses, because comparing pods would take a call each.
        self._addresses: list[str] = []
        self._pods: dict[str, BalancedPod] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, pod: BalancedPod) -> None:
        """Insert in order. Shifting the end of the list is cheaper than a heap up to some thousand pods."""
        bisect.insort(self._addresses, pod.address)
        self._pods[pod.address] = pod

    def remove(self, pod: BalancedPod) -> None:
        """Remove a pod; usually the first one, which was just picked."""
        addresses, address = self._addresses, pod.address
        del addresses[0 if addresses[0] == address else bisect.bisect_left(addresses, address)]
        del self._pods[address]

    def pick(self) -> BalancedPod:
        """Return the pod with the smallest address."""
        return self._pods[self._addresses[0]]


class RoundRobin:
    """Chooses pods from a queue. A chosen pod moves to the end, and a newly free pod is appended."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        # An OrderedDict, because finding the first key of a dict scans all removed keys.
        self._line: OrderedDict[str, BalancedPod] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, pod: BalancedPod) -> None:
        """Append a pod."""
        self._line[pod.address] = pod

    def remove(self, pod: BalancedPod) -> None:
        """Remove a pod from any position."""
        del self._line[pod.address]

    def pick(self) -> BalancedPod:
        """Return the first pod, and move it to the end."""
        pod = next(iter(self._line.values()))
        self._line.move_to_end(pod.address)
        return pod


class TwoChoices:
    """Chooses the less loaded of two random pods; a single pod is returned directly.

    ``random`` returns numbers in [0, 1), as ``random.Random(seed).random`` does.
    """

    __slots__ = ("_index_of", "_pods", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._pods: list[BalancedPod] = []
        self._index_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: BalancedPod) -> None:
        """Append a pod; the order has no meaning."""
        self._index_of[pod.address] = len(self._pods)
        self._pods.append(pod)

    def remove(self, pod: BalancedPod) -> None:
        """Remove a pod by moving the last pod to its position."""
        index = self._index_of.pop(pod.address)
        last = self._pods.pop()
        if last is not pod:
            self._pods[index] = last
            self._index_of[last.address] = index

    def pick(self) -> BalancedPod:
        """Return the better of two pods. A tie needs no third random number, because the order of the two is random."""
        count = len(self._pods)
        if count == 1:
            return self._pods[0]
        index = int(self._random() * count)
        # Uniform over the other pods: with 3 pods and 1 drawn, 0 stays 0 and 1 becomes 2.
        other = int(self._random() * (count - 1))
        other += other >= index
        first, second = self._pods[index], self._pods[other]
        return first if first.in_flight <= second.in_flight else second


def session_number(text: bytes) -> int:
    """The position of a session on the ring, at least 0 and below 2**64; equal in every process."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=_NUMBER_BYTES).digest())


def position_of(address: str, point: int = 0) -> int:
    """The position of a pod's point on the ring; a session with this number prefers the pod."""
    return session_number(f"{address}/{point}".encode())


def share_of(session: int) -> float:
    """A number from 0 to below 1 that selects the side of a traffic split, always the same for a session.

    The number uses the lower half of the bits. The order on the ring uses the upper half, so that one revision's
    sessions are spread over all its pods.
    """
    return (session & _LOWER_HALF) / (_LOWER_HALF + 1)


class SessionRing:
    """A consistent-hash ring of one revision's pods."""

    __slots__ = ("_numbers", "_owners", "addresses")

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = frozenset(addresses)
        points = sorted(
            (position_of(address, point), address) for address in self.addresses for point in range(_POINTS_PER_POD)
        )
        self._numbers = [number for number, _ in points]
        self._owners = [address for _, address in points]

    def preferred(self, session: int) -> Iterator[str]:
        """All addresses, each once, the most preferred first."""
        first, count = bisect.bisect_left(self._numbers, session), len(self._owners)
        seen: set[str] = set()
        for place in range(first, first + count):
            address = self._owners[place % count]
            if address not in seen:
                seen.add(address)
                yield address
