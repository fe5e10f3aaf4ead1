"""Runs, queues or rejects the requests of one revision, and decides when to wake the revision.

Input: events of requests (arrival, end, cancellation, or requeue after a lost pod), the pods, and the revision's
settings, each with the time. Output: dispatches, rejections, wakes, and load to report. The throttler uses four parts.
Admission limits and queues requests. The balancer selects a pod. The ejected pods are excluded. The meter measures
load.

Between any two calls, no request waits while a slot is free, no request is sent to a draining pod, and each request is
in exactly one place. A request is any hashable object of the caller. Only a revision with requests has a throttler.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from serving.activator.queueing.outcome import (
    Dispatch,
    Rejection,
    RejectionReason,
    RevisionWake,
    SilentPod,
    queue_full,
    rejected_at_once,
)
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.wake import RevisionLoad, WakeInput, WakeState, calm, reported, wake
from serving.core.model.knative import RevisionKey
from serving.core.model.scaledworkload import ColdStart
from serving.core.model.stat import POD_LOADS_MAX
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.admission import Admission, AdmissionTerms
from serving.core.traffic.balance import Balancer
from serving.core.traffic.ejection import EjectedPods
from serving.core.traffic.meter import Meter
from serving.core.traffic.openrequests import RequestView
from serving.core.traffic.places import Granted, Queued, Rejected
from serving.core.traffic.policy import BalancedPod, BalancingPolicy, SessionRing, policy_for
from serving.core.traffic.prefixes import PrefixTable, Prompt

RequestId = TypeVar("RequestId", bound=Hashable)


class RevisionThrottler(Generic[RequestId]):
    """The requests of one revision in one activator. All wait until the first ``set_pods``.

    ``random`` returns numbers in [0, 1); ``view`` reads facts about requests. Calls with an unknown request do nothing.
    """

    __slots__ = (
        "_away_from",
        "_meter",
        "_prefixes",
        "_random",
        "_ring",
        "_session_of",
        "_slots",
        "address_of",
        "admission",
        "balancer",
        "ejected",
        "has_rejected",
        "key",
        "pods",
        "quiet_level",
        "settings",
        "since_s",
        "slots_per_pod",
        "wake_state",
    )

    def __init__(
        self,
        key: RevisionKey,
        settings: ActivatorSettings,
        *,
        random: Callable[[], float],
        now_s: float,
        view: RequestView[RequestId] | None = None,
    ) -> None:
        self.key = key
        self.since_s = now_s
        self.pods: Mapping[str, ServedPod] = {}
        """The listed pods by address, including ejected ones."""
        self.slots_per_pod: int | None = None
        """containerConcurrency; 0 is no limit, None before the first ``set_pods``."""
        self.balancer = Balancer(BalancingPolicy.FIRST_FREE, random=random)
        self.ejected = EjectedPods[RequestId]()
        self.address_of: dict[RequestId, str] = {}
        """The pod of each running request."""
        self.wake_state = WakeState()
        self.quiet_level = 0
        """No wake is due while no request is queued and at most this many are running."""
        self.has_rejected = False
        """Whether a request was rejected since the last ``wake`` because the pods fail, or got the placeholder."""
        self.settings = settings
        """The activator's settings, within the bounds of the revision."""
        self._random = random
        terms = AdmissionTerms(
            share_max=settings.open_share_max,
            unread_wait_max_s=settings.unread_wait_max_s,
            depth_max=settings.queue_depth_max,
            depth_bytes_max=settings.queue_bytes_limit,
            wait_max_s=settings.queue_wait_max_s,
        )
        self.admission = Admission[RequestId](terms, capacity=0, view=view)
        """All slots of the pods, and all waiting requests."""
        self._meter = Meter(now_s=now_s)
        # This process's slots of each pod, if processes share pods.
        self._slots: dict[str, int] | None = None
        # The ring of listed pods, built for the first request with a session.
        self._ring = SessionRing(())
        # The known prefixes of the pods, built for the first request with a prompt.
        self._prefixes: PrefixTable[RequestId] | None = None
        # The ring position of each request that has a session, or its prompt.
        self._session_of: dict[RequestId, int | Prompt] = {}
        # The nodes of requeued requests' former pods, which may have failed with all their pods.
        self._away_from: dict[RequestId, str] = {}

    def __repr__(self) -> str:
        inside = f"{len(self.address_of)} run, {self.waiting_count} wait"
        return f"RevisionThrottler({self.key[1]}, {inside}, {self.balancer!r})"

    @property
    def level(self) -> int:
        """Running, queued and parked requests."""
        return self._meter.level

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a pod, including requeued ones."""
        return self.admission.waiting_count

    @property
    def waiting_since_s(self) -> float | None:
        """When the longest-waiting request began to wait; None if no request waits."""
        return self.admission.waiting_since_s

    def arrive(
        self,
        request: RequestId,
        now_s: float,
        *,
        revision: ServedRevision | None = None,
        weight_bytes: int = 0,
        session: int | Prompt | None = None,
        client: Hashable = None,
    ) -> Dispatch[RequestId] | Queued | Rejection[RequestId]:
        """Run, queue or reject a new request. A queued request uses ``weight_bytes`` of memory.

        ``session`` is the number of the client's session, or the prompt; it selects the preferred pod. ``revision`` is
        used only while there are no pods. ``client`` is the sender of a request whose body is incomplete; such a
        request may wait for others of the same client.

        Raises:
            IllegalTransition: if this request has already arrived and has not ended.
        """
        if revision is not None and not self.pods and (rejection := rejected_at_once(request, revision)) is not None:
            self.has_rejected = rejection.reason in {RejectionReason.FAILED, RejectionReason.STARTING}
            return rejection
        admission = self.admission.arrive(request, now_s, client=client, weight_bytes=weight_bytes)
        if isinstance(admission, Rejected):
            return self._rejected(request, admission, revision)
        self._meter.arrive(now_s, proxied=False)
        if session is not None:
            self._session_of[request] = session
        return admission if isinstance(admission, Queued) else self._begin(request, 0.0)

    def complete(
        self, request: RequestId, now_s: float, *, revision: ServedRevision | None = None
    ) -> Dispatch[RequestId] | Rejection[RequestId] | None:
        """Run, queue or reject a parked request whose body is complete; None if the request waits, or is not parked."""
        admission = self.admission.complete(request, now_s)
        if isinstance(admission, Rejected):
            self._meter.exit(now_s, proxied=False)
            self._session_of.pop(request, None)
            return self._rejected(request, admission, revision)
        return None if admission is None or isinstance(admission, Queued) else self._begin(request, 0.0)

    def _rejected(
        self, request: RequestId, rejected: Rejected, revision: ServedRevision | None
    ) -> Rejection[RequestId]:
        cold_start = ColdStart() if revision is None or self.pods else revision.cold_start
        return queue_full(request, rejected, placeholder=cold_start.placeholder_on_overflow)

    def finish(self, request: RequestId, now_s: float, *, has_response: bool = True) -> Sequence[Dispatch[RequestId]]:
        """End a running or queued request; return the resulting dispatches."""
        self._session_of.pop(request, None)
        self._away_from.pop(request, None)
        address = self.address_of.pop(request, None)
        if address is None:
            granted = self.admission.withdraw(request, now_s)
            if granted is None:
                return ()
            started = self._begin_all(granted)
        else:
            self._release(request, address)
            has_changed = has_response and self.ejected.record_response(address, now_s)
            # Before the release, because the slot of a draining pod ends with its request.
            started = self._settle(now_s, has_changed=has_changed)
            granted = self.admission.release(request, now_s, has_response=has_response)
            if granted:
                started = [*started, *self._begin_all(granted)]
        self._meter.exit(now_s, proxied=False)
        if self.wake_state.known_waiting_count and not self.waiting_count:
            self.wake_state = calm(self.wake_state)
        return started

    def requeue(self, request: RequestId, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """Requeue a request whose pod was lost before its response; return the resulting dispatches.

        The request goes to another pod, preferably on another node, or to the front of the queue. The lost pod is
        ejected for a while.
        """
        address = self.address_of.pop(request, None)
        if address is None:
            return ()
        pod = self.pods.get(address)
        if pod is not None and pod.node:
            self._away_from[request] = pod.node
        self.admission.requeue(request, now_s)
        self._release(request, address)
        # A queue-proxy listens before its pod is listed.
        may_start = pod is not None and not pod.has_queue_proxy
        return self._settle(now_s, has_changed=self.ejected.failed(address, now_s, may_start=may_start))

    def set_pods(
        self,
        pods: Mapping[str, ServedPod],
        now_s: float,
        *,
        container_concurrency: int,
        slots: Mapping[str, int] | None = None,
    ) -> Sequence[Dispatch[RequestId]]:
        """Replace the listed pods; return the resulting dispatches.

        ``slots`` are this process's slots of each pod if processes share pods; None: all slots.
        """
        if self.slots_per_pod is None:
            first_free_max = self.settings.first_free_concurrency_max
            policy = policy_for(container_concurrency, first_free_concurrency_max=first_free_max)
            self.balancer = Balancer(policy, random=self._random)
        self.pods = pods
        self.slots_per_pod = container_concurrency
        self._slots = None if slots is None else dict(slots)
        self.ejected.set_listed(pods)
        if self._prefixes is not None:
            self._prefixes.set_pods(pods)
        return self._settle(now_s, has_changed=True)

    def set_slots(self, address: str, slots: int, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """Change this process's slots of one pod; return the resulting dispatches."""
        assert self._slots is not None
        if address not in self.pods:
            return ()
        self._slots[address] = slots
        self.balancer.set_slots(address, slots)
        return self._settle(now_s)

    def readmit(self, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """End expired ejections; return the resulting dispatches."""
        started = self._begin_all(self.admission.refresh(now_s))
        return [*started, *self._settle(now_s, has_changed=True)] if self.ejected.readmit(now_s) else started

    def starting_pods(self, now_s: float) -> list[ServedPod]:
        """The starting pods to which to open a connection now, to find out whether their apps listen already."""
        due = self.ejected.due_probes(now_s) if self.waiting_count else ()
        return [self.pods[address] for address in due]

    def probed(self, address: str, now_s: float, *, is_open: bool) -> Sequence[Dispatch[RequestId]]:
        """Process the result of a connection to a starting pod; return the resulting dispatches."""
        return self._settle(now_s, has_changed=True) if self.ejected.probed(address, now_s, is_open=is_open) else ()

    def eject_silent(
        self, now_s: float, *, after_s: float, has_begun: Callable[[RequestId], bool]
    ) -> list[SilentPod[RequestId]]:
        """Eject pods that send no response while others do; return all silent pods with their requests."""
        slots_per_pod = self.slots_per_pod or 0
        ejected = self.ejected.eject_silent(
            self.address_of, now_s, has_begun=has_begun, slots_per_pod=slots_per_pod, after_s=after_s
        )
        if ejected:
            self._settle(now_s, has_changed=True)
        # A request may have been dispatched to the pod just before its ejection.
        in_flight = self.address_of.items()
        return [
            SilentPod(key=self.key, pod=self.pods[address], is_new=address in ejected, requests=requests)
            for address in sorted(self.ejected.silent_addresses)
            if (requests := tuple(request for request, pod in in_flight if pod == address and not has_begun(request)))
        ]

    def reject_waiting(
        self,
        now_s: float,
        *,
        reason: RejectionReason,
        text: str,
        detail: str = "",
        fallback: RevisionKey | None = None,
        is_late: bool = False,
    ) -> list[Rejection[RequestId]]:
        """Reject all queued requests, oldest first; with ``is_late``, only those whose wait has expired."""
        late = self.admission.expire(now_s if is_late else now_s + self.settings.queue_wait_max_s)
        for request in late:
            self._meter.exit(now_s, proxied=False)
            self._session_of.pop(request, None)
            self._away_from.pop(request, None)
        if not self.waiting_count:
            self.wake_state = calm(self.wake_state)
        return [
            Rejection(request=request, reason=reason, text=text, detail=detail, fallback=fallback) for request in late
        ]

    def wake(
        self, revision: ServedRevision, now_s: float, settings: ActivatorSettings
    ) -> tuple[Sequence[RevisionWake], float | None]:
        """The wake that is due now, if any, and when to check again if nothing changes."""
        has_rejected, self.has_rejected = self.has_rejected, False
        seen = WakeInput(
            level=self.level,
            waiting_count=self.waiting_count,
            arrived_count=self._meter.arrived_count,
            serving_state=revision.serving_state,
            desired_count=max(revision.desired_count, len(self.pods)),
            # Each of two activators gets half of the requests.
            target_concurrency=revision.target_concurrency / settings.count,
            has_rejected=has_rejected,
        )
        self.wake_state, decision = wake(self.wake_state, seen, settings, now_s=now_s)
        self.quiet_level = decision.quiet_level
        if not decision.flip and decision.poke is None:
            return (), decision.next_wake_s
        woken = RevisionWake(
            key=self.key, flip=decision.flip, poke=decision.poke, resource_version=revision.resource_version
        )
        return (woken,), decision.next_wake_s

    def pod_heats(self) -> dict[str, float]:
        """The prompt bytes that each pod's cache has saved, by the pod's name; empty if prompts do not choose pods."""
        heats = {} if self._prefixes is None else self._prefixes.heats
        return {self.pods[address].name: heat for address, heat in itertools.islice(heats.items(), POD_LOADS_MAX)}

    def pod_loads(self) -> dict[str, float]:
        """Running requests by pod name, without idle pods."""
        counts = self.balancer.in_flight_by_pod()
        named = ((self.pods[address].name, count) for address, count in counts.items() if address in self.pods)
        return {name: float(count) for name, count in itertools.islice(named, POD_LOADS_MAX)}

    def report(self, now_s: float, *, period_s: float) -> RevisionLoad | None:
        """Close the reporting period and return its load; None without load and requests."""
        level, report = self.level, self._meter.report(now_s)
        self.wake_state, load = reported(
            self.wake_state, report, level=level, waiting_count=self.waiting_count, period_s=period_s
        )
        return load if level or report.concurrency or report.request_count else None

    def _settle(self, now_s: float, *, has_changed: bool = False) -> Sequence[Dispatch[RequestId]]:
        """Grant free slots to waiting requests. ``has_changed``: listed or ejected pods have changed."""
        balancer = self.balancer
        if has_changed:
            usable = self.pods.keys() - self.ejected.addresses
            own = dict.fromkeys(usable, self.slots_per_pod or None) if self._slots is None else self._slots
            balancer.set_pods({address: own[address] for address in usable if address in own})
        return self._begin_all(self.admission.set_capacity(balancer.capacity, now_s))

    def _begin_all(self, granted: Sequence[Granted[RequestId]]) -> Sequence[Dispatch[RequestId]]:
        return [self._begin(request.request_id, request.waited_s) for request in granted] if granted else ()

    def _begin(self, request: RequestId, waited_s: float) -> Dispatch[RequestId]:
        # Most revisions have no sessions, which saves a call here.
        session = self._session_of.get(request) if self._session_of else None
        pod = None
        if self._away_from:
            others = _on_other_nodes(self.pods, self._away_from.pop(request, ""), first_ratio=self._random())
            pod = next((picked for picked in map(self.balancer.pick_at, others) if picked is not None), None)
        if pod is None:
            pod = self.balancer.pick() if session is None else self._preferred(session)
        assert pod is not None, "the capacity is what the pods have"
        self.address_of[request] = pod.address
        prefix = self._table().begin(request, session, pod.address) if isinstance(session, Prompt) else None
        return Dispatch(request=request, pod=self.pods[pod.address], waited_s=waited_s, prefix=prefix)

    def _preferred(self, session: int | Prompt) -> BalancedPod | None:
        """The pod with a free slot that suits a session or a prompt best; None if no pod has a free slot.

        A session prefers the same pod each time. A prompt prefers a pod whose cache has the prompt's beginning.
        """
        if isinstance(session, Prompt):
            return self.balancer.pick_at(self._table().choose(session, self.balancer.free_addresses()))
        # The session's preferred pod, then the next ones on the ring while it is full or ejected.
        if self._ring.addresses != self.pods.keys():
            self._ring = SessionRing(self.pods)
        preferred = map(self.balancer.pick_at, self._ring.preferred(session))
        return next((picked for picked in preferred if picked is not None), None)

    def _table(self) -> PrefixTable[RequestId]:
        if self._prefixes is None:
            self._prefixes = PrefixTable()
            self._prefixes.set_pods(self.pods)
        return self._prefixes

    def _release(self, request: RequestId, address: str) -> None:
        self.balancer.release(address)
        if self._prefixes is not None:
            self._prefixes.end(request)


def _on_other_nodes(pods: Mapping[str, ServedPod], node: str, *, first_ratio: float) -> list[str]:
    """Addresses of the pods on nodes other than ``node``, in a rotated order; empty if ``node`` is "" (unknown).

    ``first_ratio`` in [0, 1) selects the first address: 0.5 begins in the middle of the list.
    """
    others = [address for address, pod in pods.items() if node and pod.node != node]
    first = int(first_ratio * len(others))
    return others[first:] + others[:first]
