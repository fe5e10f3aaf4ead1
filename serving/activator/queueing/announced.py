"""Announced pods: ready by their own announcement, but not in any slice yet.

Input: announcements that an autoscaler passed on, the pods that slices list, and the time. Output: the pods to probe as well. An
announcement says where a pod may be, never that it gets requests: its queue-proxy first proves its identity to a probe
(``readiness.py``). It ends when a slice lists its address or its pod, and after a bounded time.
"""

from collections.abc import Collection

from serving.activator.queueing.slices import ServedPod
from serving.core.model.knative import RevisionKey

_PODS_MAX = 1_024


class AnnouncedPods:
    """The announced pods of all revisions, at most 1,024."""

    __slots__ = ("_count", "_new", "_pods")

    def __init__(self) -> None:
        self._pods: dict[RevisionKey, dict[str, tuple[ServedPod, float]]] = {}
        self._new: set[RevisionKey] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: RevisionKey, pod: ServedPod, *, until_s: float) -> bool:
        """Store a pod until ``until_s``; False if there are too many."""
        pods = self._pods.get(key, {})
        if pod.address not in pods and self._count >= _PODS_MAX:
            return False
        self._count += pod.address not in pods
        self._pods.setdefault(key, pods)[pod.address] = (pod, until_s)
        self._new.add(key)
        return True

    def candidates(self, key: RevisionKey, listed: Collection[ServedPod], now_s: float) -> dict[str, ServedPod]:
        """A revision's announced pods by address. Removes expired announcements and pods that slices list."""
        pods = self._pods.get(key)
        if pods is None:
            return {}
        addresses, names = {pod.address for pod in listed}, {pod.name for pod in listed}
        remaining = {
            address: (pod, until_s)
            for address, (pod, until_s) in pods.items()
            if until_s > now_s and address not in addresses and pod.name not in names
        }
        self._replace(key, remaining)
        return {address: pod for address, (pod, _) in remaining.items()}

    def has_changed(self, key: RevisionKey, now_s: float) -> bool:
        """Whether a pod was announced since the last ``candidates``, or an announcement has expired."""
        end_s = self.next_end_s(key)
        return key in self._new or (end_s is not None and end_s <= now_s)

    def next_end_s(self, key: RevisionKey) -> float | None:
        """When the next announcement of a revision expires; None without announcements."""
        return min((until_s for _, until_s in self._pods.get(key, {}).values()), default=None)

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision."""
        self._replace(key, {})

    def forget_ended(self, now_s: float) -> None:
        """Drop expired announcements, also of idle revisions."""
        for key in list(self._pods):
            self.candidates(key, (), now_s)

    def _replace(self, key: RevisionKey, pods: dict[str, tuple[ServedPod, float]]) -> None:
        self._new.discard(key)
        self._count += len(pods) - len(self._pods.pop(key, {}))
        if pods:
            self._pods[key] = pods
