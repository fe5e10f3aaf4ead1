"""The known revisions and their pods, and the probes of pods that are listed as not ready.

Input: pods that EndpointSlices list as not ready, pods that announced themselves, responses to probes, and the time.
Output: the probes to send now, and the pods that may get requests although no slice lists them as ready. Probes are
faster than slices: a kubelet probes a pod once a second, and its result reaches the slice through two objects. The
queue-proxy responds as soon as the app is ready.

A probe confirms a pod. The confirmation ends when a later probe fails, when the pod becomes ready, terminates or is
deleted, or when its address belongs to another pod. Probes are bounded per revision and in total. Follows
knative/serving 98e5ef90 pkg/activator/net/revision_backends.go. There every activator probes every pod; here only
activators with waiting requests probe.
"""

import math
from collections import Counter
from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod, SliceIndex
from serving.core.model.knative import RevisionKey

_PODS_MAX = 1_024


class AnnouncedPods:
    """Pods that are announced as ready before any slice lists them; at most 1,024.

    An announcement only gives the address of a pod. The pod gets requests once its queue-proxy has proved its identity
    to a probe; a pod of a ScaledWorkload gets them immediately. An announcement ends when a slice lists its address or
    its pod, or after a bounded time.
    """

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


_PAUSE_MIN_S = 0.01
# Largest delay of finding a ready pod, as a share of its start time.
_PAUSE_SHARE = 0.1
_PAUSE_MAX_S = 0.1
# Later a pod counts as slow, and the kubelet's probe period is close enough, in seconds.
_HURRY_S = 10.0
_PAUSE_SLOW_S = 1.0
# Each probe needs a connection and a task.
_PROBES_MAX = 128
_PROBES_PER_REVISION_MAX = 16
# Bounds the memory of deleted revisions; a request for a dropped one waits for ``revision-wait-max``.
_GONE_MAX = 1024


class PodProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe that asks a pod's queue-proxy whether the pod is ready, or a pod without one for a connection."""

    key: RevisionKey
    pod: ServedPod


class _UnreadyPod:
    """A pod that is listed as not ready."""

    __slots__ = ("due_s", "is_confirmed", "is_probed", "pod", "since_s")

    def __init__(self, pod: ServedPod, now_s: float) -> None:
        self.pod = pod
        self.since_s = now_s
        self.due_s = now_s
        self.is_confirmed = False
        self.is_probed = False


class UnreadyPods:
    """The not-ready pods of all revisions with requests."""

    __slots__ = ("_pods", "_probe_counts")

    def __init__(self) -> None:
        self._pods: dict[RevisionKey, dict[str, _UnreadyPod]] = {}
        self._probe_counts: Counter[RevisionKey] = Counter()

    @property
    def probe_count(self) -> int:
        """The number of probes in flight."""
        return self._probe_counts.total()

    def set_pods(self, key: RevisionKey, pods: Mapping[str, ServedPod], now_s: float) -> None:
        """Replace the not-ready pods of a revision, by address."""
        before = self._pods.pop(key, {})
        if pods:
            self._pods[key] = {
                address: known if (known := before.get(address)) and known.pod == pod else _UnreadyPod(pod, now_s)
                for address, pod in pods.items()
            }

    def set_confirmed(self, key: RevisionKey, pods: Mapping[str, ServedPod]) -> None:
        """Replace the pods of a ScaledWorkload that are ready in the API and in no slice, by address; none is probed."""
        self._pods.pop(key, None)
        if pods:
            self._pods[key] = {address: _UnreadyPod(pod, math.inf) for address, pod in pods.items()}
            for candidate in self._pods[key].values():
                candidate.is_confirmed = True

    def hurry(self, key: RevisionKey, address: str, now_s: float) -> None:
        """Probe an announced pod immediately, then at the intervals of a newly listed pod."""
        candidate = self._pods.get(key, {}).get(address)
        if candidate is not None:
            candidate.since_s = candidate.due_s = now_s

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision without requests."""
        self._pods.pop(key, None)

    def confirmed(self, key: RevisionKey) -> dict[str, ServedPod]:
        """Pods that their queue-proxies have confirmed as ready, by address."""
        candidates = self._pods.get(key, {})
        return {address: candidate.pod for address, candidate in candidates.items() if candidate.is_confirmed}

    def due(self, key: RevisionKey, now_s: float, *, is_waiting: bool) -> list[PodProbe]:
        """The probes to send now.

        While no request waits, only confirmed pods are probed, to check that they stay ready.
        """
        probes = []
        for candidate in sorted(self._wanted(key, is_waiting=is_waiting), key=_due_order):
            if candidate.due_s > now_s:
                break
            if self._probe_counts[key] >= _PROBES_PER_REVISION_MAX or self.probe_count >= _PROBES_MAX:
                candidate.due_s = now_s + _PAUSE_MAX_S
                continue
            candidate.is_probed = True
            self._probe_counts[key] += 1
            probes.append(PodProbe(key=key, pod=candidate.pod))
        return probes

    def record_reply(self, probe: PodProbe, now_s: float, *, is_ready: bool) -> bool:
        """Process a probe's reply; return whether the confirmed pods have changed."""
        self._probe_counts[probe.key] -= 1
        if not self._probe_counts[probe.key]:
            del self._probe_counts[probe.key]
        candidate = self._pods.get(probe.key, {}).get(probe.pod.address)
        if candidate is None or candidate.pod != probe.pod:
            return False
        has_changed = candidate.is_confirmed is not is_ready
        candidate.is_probed, candidate.is_confirmed = False, is_ready
        candidate.due_s = now_s + (_PAUSE_SLOW_S if is_ready else _pause_s(candidate, now_s))
        return has_changed

    def probe_due_s(self, key: RevisionKey, *, is_waiting: bool) -> float | None:
        """When the next probe is due; None without any."""
        return min((candidate.due_s for candidate in self._wanted(key, is_waiting=is_waiting)), default=None)

    def _wanted(self, key: RevisionKey, *, is_waiting: bool) -> list[_UnreadyPod]:
        candidates = self._pods.get(key, {}).values()
        return [
            candidate for candidate in candidates if not candidate.is_probed and (is_waiting or candidate.is_confirmed)
        ]


def _due_order(candidate: _UnreadyPod) -> tuple[float, str]:
    return candidate.due_s, candidate.pod.address


def _pause_s(candidate: _UnreadyPod, now_s: float) -> float:
    """Seconds until the next probe: a tenth of the time since the pod was listed, at least 10 and at most 100 ms.

    10 s after the pod was listed, the pause becomes 1 s.
    """
    passed_s = now_s - candidate.since_s
    if passed_s > _HURRY_S:
        return _PAUSE_SLOW_S
    return min(max(passed_s * _PAUSE_SHARE, _PAUSE_MIN_S), _PAUSE_MAX_S)


class RevisionDirectory:
    """All revisions and slices. ``slices``, ``unready`` and ``announced`` are updated by their own methods."""

    __slots__ = ("_gone", "_revisions", "_workloads", "announced", "slices", "unready")

    def __init__(self) -> None:
        self._revisions: dict[RevisionKey, ServedRevision] = {}
        self._workloads: set[RevisionKey] = set()
        # Revisions known not to exist, oldest first.
        self._gone: dict[RevisionKey, None] = {}
        self.announced = AnnouncedPods()
        self.slices = SliceIndex()
        self.unready = UnreadyPods()

    @property
    def keys(self) -> AbstractSet[RevisionKey]:
        """The keys of all known revisions."""
        return self._revisions.keys()

    def revision(self, key: RevisionKey) -> ServedRevision | None:
        """A revision; None if it is unknown."""
        return self._revisions.get(key)

    def configuration_of(self, key: RevisionKey) -> str:
        """The name of a revision's Configuration; "" if the revision is unknown."""
        revision = self._revisions.get(key)
        return "" if revision is None else revision.configuration

    def set_revision(self, revision: ServedRevision) -> bool:
        """Add or update a revision; return whether it is new."""
        is_new = revision.key not in self._revisions
        self._gone.pop(revision.key, None)
        is_scaled = revision.is_workload and not revision.is_fallback
        (self._workloads.add if is_scaled else self._workloads.discard)(revision.key)
        self._revisions[revision.key] = revision
        return is_new

    def remove_revision(self, key: RevisionKey) -> ServedRevision | None:
        """Remove a revision and return it; None if it is unknown."""
        self.unready.forget(key)
        self.announced.forget(key)
        self._workloads.discard(key)
        self.mark_gone(key)
        return self._revisions.pop(key, None)

    def mark_gone(self, key: RevisionKey) -> None:
        """Record that a revision does not exist, until it is added."""
        self._gone[key] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def is_gone(self, key: RevisionKey) -> bool:
        """Whether a revision is known not to exist, so that no request needs to wait for it."""
        return key in self._gone

    def slot_count(self, key: RevisionKey) -> int:
        """The concurrency limit per pod; 0 if there is no limit or the revision is unknown."""
        revision = self._revisions.get(key)
        return 0 if revision is None else revision.container_concurrency

    def pods_of(self, key: RevisionKey) -> dict[str, ServedPod]:
        """The pods of a revision that may receive requests, by address."""
        return self.slices.pods_of(key) | self.unready.confirmed(key)

    def is_workload(self, key: RevisionKey) -> bool:
        """Whether a revision is a ScaledWorkload."""
        return key in self._workloads

    def idle_workloads(self, busy: Container[RevisionKey]) -> list[RevisionKey]:
        """The ScaledWorkloads that have pods and are not in ``busy``. The activator reports for their pods."""
        return sorted(key for key in self._workloads if key not in busy and self.slices.pods_of(key))

    def announce(self, key: RevisionKey, pod: ServedPod, now_s: float, *, until_s: float) -> bool:
        """Store an announced pod; False if its revision is unknown, a slice lists it as ready, or there are too many.

        A pod of a ScaledWorkload must have no queue-proxy, and each other pod one.
        """
        revision = self._revisions.get(key)
        if revision is None or revision.is_workload is pod.has_queue_proxy or pod.address in self.slices.pods_of(key):
            return False
        self.announced.forget_ended(now_s)
        self.unready.hurry(key, pod.address, now_s)
        return self.announced.add(key, pod, until_s=until_s)

    def watch_unready(self, key: RevisionKey, now_s: float, *, is_on: bool) -> None:
        """Start (``is_on``) or stop probing a revision's not-ready pods, unless the kubelet decides on readiness.

        Not-ready pods are those that slices list as not ready, and announced ones. Announced pods of a ScaledWorkload
        are not probed, because they are ready in the API.
        """
        revision = self._revisions.get(key)
        if is_on and revision is not None and revision.is_workload:
            ready = self.slices.pods_of(key).values()
            self.unready.set_confirmed(key, self.announced.candidates(key, ready, now_s))
            return
        if not is_on or revision is None or revision.kubelet_decides:
            # An announcement that stays makes each tick schedule the next one.
            self.announced.forget(key)
            self.unready.set_pods(key, {}, now_s)
            return
        unready = self.slices.unready_of(key)
        listed = [*self.slices.pods_of(key).values(), *unready.values()]
        self.unready.set_pods(key, unready | self.announced.candidates(key, listed, now_s), now_s)
