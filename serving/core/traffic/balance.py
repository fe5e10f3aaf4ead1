"""Chooses the pod for the next request.

The balancer never chooses a full or unlisted pod; a policy chooses among the others
(``serving/core/traffic/policy.py``).

It counts only this activator's requests. It uses neither connections nor time; randomness is an argument. Follows
knative/serving 98e5ef90 pkg/activator/net, with one difference: ``capacity`` limits admission, so that an admitted
request always gets a pod.
"""

from collections.abc import Callable, Mapping

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.policy import BalancedPod, BalancingPolicy, FirstFree, FreePods, RoundRobin, TwoChoices


class Balancer:
    """The pods of one revision, and the number of requests in flight from this activator to each pod.

    ``pick`` chooses a pod and counts a request; ``give_back`` ends the count. ``random`` returns numbers in [0, 1), as
    ``random.Random(seed).random`` does.
    """

    __slots__ = ("_free", "_free_slots", "_in_flight", "_pods", "_policy", "_unlimited")

    def __init__(self, policy: BalancingPolicy, *, random: Callable[[], float]) -> None:
        self._policy = policy
        self._free = _free_pods(policy, random)
        self._pods: dict[str, BalancedPod] = {}
        self._in_flight = 0
        self._free_slots = 0
        self._unlimited = False

    def __repr__(self) -> str:
        free_slots = "unlimited" if self._unlimited else self._free_slots
        return (
            f"Balancer({self._policy}, {len(self._pods)} pods, {len(self._free)} free, "
            f"in flight {self._in_flight}, free slots {free_slots})"
        )

    @property
    def capacity(self) -> int | None:
        """Requests allowed in flight; None means no limit, 0 queues all requests.

        The capacity is the requests in flight plus the free slots. Requests on a draining pod therefore use no slot of
        other pods. Example: with 3 requests on a draining pod and 10 slots on another, the capacity is 13; when one of
        the 3 ends, it is 12. It changes with ``set_pods``, and with ``give_back`` on a pod that drains or has lost
        slots.
        """
        return None if self._unlimited else self._in_flight + self._free_slots

    def set_pods(self, slots_by_pod: Mapping[str, int | None]) -> None:
        """Replace the list of pods: this activator's slots by pod address, None for no limit.

        An unlisted pod drains, and is removed when its last request has ended. If a pod has fewer slots than requests
        in flight, no request is interrupted.
        """
        for address in sorted(slots_by_pod.keys() | self._pods.keys()):
            pod = self._pods.setdefault(address, BalancedPod(address))
            was_free = pod.free
            pod.listed = address in slots_by_pod
            pod.slots = slots_by_pod.get(address, 0)
            self._settle(pod, was_free=was_free)
            if not pod.listed and not pod.in_flight:
                del self._pods[address]
        self._recount()

    def set_slots(self, address: str, slots: int) -> None:
        """Change the slots of one pod. Does nothing if the pod is not listed or has no limit."""
        pod = self._pods.get(address)
        if pod is not None and pod.listed:
            was_free = pod.free
            self._free_slots -= _free_slots_of(pod)
            pod.slots = slots
            self._free_slots += _free_slots_of(pod)
            self._settle(pod, was_free=was_free)

    def in_flight_by_pod(self) -> dict[str, int]:
        """This activator's requests in flight, by pod."""
        return {pod.address: pod.in_flight for pod in self._pods.values() if pod.in_flight}

    def free_addresses(self) -> list[str]:
        """The pods with a free slot."""
        return [pod.address for pod in self._pods.values() if pod.free]

    def pick(self) -> BalancedPod | None:
        """Choose a pod for a request and count the request; None if no pod is free."""
        return self._begin(self._free.pick()) if len(self._free) else None

    def pick_at(self, address: str) -> BalancedPod | None:
        """Count a request on the given pod; None if the pod is not free."""
        pod = self._pods.get(address)
        return self._begin(pod) if pod is not None and pod.free else None

    def release(self, address: str) -> None:
        """Stop counting a request on the pod, however the request ended.

        Raises:
            IllegalTransition: when this activator has no request on the pod.
        """
        pod = self._pods.get(address)
        if pod is None or not pod.in_flight:
            raise IllegalTransition(subject=f"pod {address}", phase="idle", event="give_back")
        was_free = pod.free
        pod.in_flight -= 1
        self._in_flight -= 1
        if pod.free:
            if pod.slots is not None:
                self._free_slots += 1
            self._settle(pod, was_free=was_free)
        elif not pod.listed and not pod.in_flight:
            del self._pods[address]

    def _begin(self, pod: BalancedPod) -> BalancedPod:
        pod.in_flight += 1
        self._in_flight += 1
        if pod.slots is not None:
            self._free_slots -= 1
            if pod.in_flight >= pod.slots:
                self._free.remove(pod)
        return pod

    def _settle(self, pod: BalancedPod, *, was_free: bool) -> None:
        if pod.free and not was_free:
            self._free.add(pod)
        elif was_free and not pod.free:
            self._free.remove(pod)

    def _recount(self) -> None:
        self._free_slots = sum(map(_free_slots_of, self._pods.values()))
        self._unlimited = any(pod.listed and pod.slots is None for pod in self._pods.values())


def _free_pods(policy: BalancingPolicy, random: Callable[[], float]) -> FreePods:
    if policy is BalancingPolicy.TWO_CHOICES:
        return TwoChoices(random)
    return FirstFree() if policy is BalancingPolicy.FIRST_FREE else RoundRobin()


def _free_slots_of(pod: BalancedPod) -> int:
    return pod.slots - pod.in_flight if pod.slots is not None and pod.free else 0
