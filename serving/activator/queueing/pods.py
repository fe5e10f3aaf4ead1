"""The pods of one revision, with the number of requests that each may have from this process.

Input: the list of pods, slots that are shared with other processes, requests that begin and end, and pods that are found
gone. Output: the pod of a request, and the requests that may be in flight at once. It wires the balancer of
``serving/traffic`` with the ejection of pods.
"""

from collections.abc import Callable, Iterable, Mapping

from serving.traffic.balance import Balancer
from serving.traffic.ejection import EjectedPods, Ejection
from serving.traffic.policy import BalancedPod, policy_for
from serving.traffic.sessions import SessionRing


class RevisionPods:
    """Balances requests over pods and ejects failing ones. ``random`` gives numbers from 0 to below 1.

    ``slots_per_pod`` is containerConcurrency, 0 without a limit.
    """

    __slots__ = ("_ejected", "_listed", "_ring", "_slots", "answered_s", "balancer", "slots_per_pod")

    def __init__(
        self, *, container_concurrency: int, first_free_concurrency_max: int, random: Callable[[], float]
    ) -> None:
        policy = policy_for(container_concurrency, first_free_concurrency_max=first_free_concurrency_max)
        self.balancer = Balancer(policy, random=random)
        self._ejected = EjectedPods()
        self.answered_s: dict[str, float] = {}
        """When each pod last ended a request with an answer."""
        self._listed: frozenset[str] = frozenset()
        # This process's slots of each pod, where processes share them.
        self._slots: dict[str, int] | None = None
        self.slots_per_pod = container_concurrency
        # Of the listed pods; made for the first request of a session.
        self._ring = SessionRing(())

    def __repr__(self) -> str:
        return f"RevisionPods({self.balancer!r}, {self._ejected!r})"

    @property
    def ejected(self) -> set[str]:
        """Listed pods that get no requests now."""
        return self._ejected.addresses

    @property
    def ejections(self) -> Mapping[str, Ejection]:
        """Pods that have failed and not answered since, by address."""
        return self._ejected.ejections

    @property
    def silent(self) -> set[str]:
        """Those of them that answer nothing."""
        return self._ejected.silent_addresses

    @property
    def in_flight(self) -> dict[str, int]:
        """Requests on each pod that has any from here."""
        return self.balancer.in_flight_by_pod()

    def set_listed(
        self, addresses: Iterable[str], *, container_concurrency: int, slots: Mapping[str, int] | None
    ) -> None:
        """Replace the list of pods; ``slots`` are this process's of each pod, None for all."""
        self._listed = frozenset(addresses)
        self._slots = None if slots is None else dict(slots)
        self.slots_per_pod = container_concurrency
        self._ejected.keep(self._listed)
        self.answered_s = {address: at_s for address, at_s in self.answered_s.items() if address in self._listed}
        self._apply()

    def pick(self, session: int | None) -> BalancedPod | None:
        """Choose a pod for a request and count it in; None when there is no free one.

        A session gets the pod that it prefers, and the next one on its ring while that is full or ejected.
        """
        if session is None:
            return self.balancer.pick()
        if self._ring.addresses != self._listed:
            self._ring = SessionRing(self._listed)
        found = map(self.balancer.pick_at, self._ring.preferred(session))
        return next((pod for pod in found if pod is not None), None)

    def set_slots(self, address: str, slots: int) -> bool:
        """Change this process's slots of one pod; False for a pod that is not listed."""
        assert self._slots is not None
        if address not in self._listed:
            return False
        self._slots[address] = slots
        self.balancer.set_slots(address, slots)
        return True

    def finished(self, address: str, now_s: float, *, is_answered: bool) -> None:
        """A request on a pod has ended, with the pod's answer or without."""
        self.balancer.give_back(address)
        if is_answered:
            self.answered_s[address] = now_s
            if self._ejected.ejections and self._ejected.succeeded(address):
                self._apply()

    def eject_silent(self, address: str, now_s: float) -> bool:
        """Eject a silent pod, unless half of the pods are ejected; whether it is newly ejected."""
        if address not in self._listed or len(self.ejected | {address}) * 2 > len(self._listed):
            return False
        has_changed = self._ejected.silent(address, now_s)
        if has_changed:
            self._apply()
        return has_changed

    def failed(self, address: str, now_s: float) -> None:
        """A request found a pod gone and leaves it."""
        self.balancer.give_back(address)
        if address in self._listed and self._ejected.failed(address, now_s):
            self._apply()

    def readmit(self, now_s: float) -> bool:
        """Use ejected pods again after their pause; whether there were any."""
        has_changed = self._ejected.readmit(now_s)
        if has_changed:
            self._apply()
        return has_changed

    def next_due_s(self) -> float | None:
        """When ``readmit`` is next due; None while no pod is ejected."""
        return self._ejected.next_due_s()

    def validate(self) -> None:
        """Assert the invariants; tests call it after every step."""
        self.balancer.validate()
        assert self.ejected <= self._listed, self

    def _apply(self) -> None:
        usable = self._listed - self._ejected.addresses
        if self._slots is not None:
            self.balancer.set_pods({address: slots for address, slots in self._slots.items() if address in usable})
        else:
            self.balancer.set_pods(dict.fromkeys(usable, self.slots_per_pod or None))
