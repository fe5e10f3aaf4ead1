"""Routes all requests of one activator: takes events, returns dispatches and rejections.

Input: revisions and slices of the cluster, events of requests, and the time. Output: dispatches, rejections, wakes and
probes (``outcome.py``), and load to report. Each call returns its urgent results. ``tick`` returns the rest: pokes,
flips, probes, and requests that have waited too long. The caller calls ``tick`` soon while
``schedule.has_pending_work``, and at ``schedule.next_due_s()``. The router uses no host, header, connection or clock.

Four components own a request: the router finds the throttler of its revision, the throttler runs it on a pod, admission
queues it, and the ejected pods exclude failing pods. The slot book passes slots to other processes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from serving.activator.queueing.outcome import (
    Dispatch,
    Rejection,
    RejectionReason,
    RoutingOutcome,
    SilentPod,
    failure_text,
    unknown_text,
)
from serving.activator.queueing.readiness import PodProbe, RevisionDirectory
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.schedule import TickSchedule, next_deadline_s
from serving.activator.queueing.slices import ServedPod, ServedSlice
from serving.activator.queueing.throttler import RevisionThrottler
from serving.activator.queueing.wake import RevisionLoad, forgotten
from serving.core.model.knative import RevisionKey
from serving.core.model.scaledworkload import workload_key
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.openrequests import RequestView
from serving.core.traffic.places import Queued
from serving.core.traffic.prefixes import Prompt

_IDLE = RevisionLoad(concurrency=0.0, request_count=0.0)

RequestId = TypeVar("RequestId", bound=Hashable)
RequestId_contra = TypeVar("RequestId_contra", bound=Hashable, contravariant=True)


class SlotBook(Protocol[RequestId_contra]):
    """Shares the slots of pods with other processes of this machine; the router calls it around each event."""

    def rights(self, key: RevisionKey, pods: Iterable[str]) -> Mapping[str, int] | None:
        """The slots of each pod that this process may use; None if pods have no concurrency limit."""

    def is_trading(self, key: RevisionKey) -> bool:
        """Whether any process has asked for slots of a revision; if not, ended requests affect no other process."""

    def before_finish(self, key: RevisionKey, request: RequestId_contra, now_s: float) -> None:
        """Pass the slot of an ending request to another process that needs it."""

    def settle(self, key: RevisionKey, now_s: float) -> None:
        """Give away or request slots. Called after requests of a revision arrived, began or ended, and at its ticks."""

    def return_unused(self) -> None:
        """Return slots of deleted pods to their owners."""


class RevisionTable(Generic[RequestId]):
    """State shared by router and slot book: known revisions, throttlers of revisions with requests, and next ticks."""

    __slots__ = ("directory", "schedule", "throttlers")

    def __init__(self) -> None:
        self.directory = RevisionDirectory()
        self.schedule = TickSchedule()
        self.throttlers: dict[RevisionKey, RevisionThrottler[RequestId]] = {}
        """Revisions with requests, or with recent ones."""


class RequestRouter(Generic[RequestId]):
    """Routes requests to pods. Calls with an unknown request have no effect.

    ``random`` returns numbers in [0, 1). ``view`` reads facts about requests. ``slots`` shares the slots of pods
    with other processes, through the same ``table``; None if only this process uses the pods.
    """

    def __init__(
        self,
        settings: ActivatorSettings,
        *,
        random: Callable[[], float],
        view: RequestView[RequestId] | None = None,
        table: RevisionTable[RequestId] | None = None,
        slots: SlotBook[RequestId] | None = None,
    ) -> None:
        table = table or RevisionTable()
        self.settings = settings
        """Replaced at run time; existing queues keep their bounds."""
        self.directory = table.directory
        self.schedule = table.schedule
        self.throttlers = table.throttlers
        self._view = view or RequestView()
        self._slots = slots
        self._random = random

    def __repr__(self) -> str:
        inside = self.inside()
        waiting_count = sum(waiting_count for _, _, waiting_count in inside)
        return (
            f"RequestRouter({len(self.directory.keys)} revisions, {len(inside)} with requests, "
            f"{sum(level for _, level, _ in inside) - waiting_count} run, {waiting_count} wait)"
        )

    def inside(self) -> list[tuple[RevisionKey, int, int]]:
        """For each revision with requests: its key, and the numbers of all and of queued requests."""
        return [(key, throttler.level, throttler.waiting_count) for key, throttler in self.throttlers.items()]

    def has_pod(self, key: RevisionKey, address: str) -> bool:
        """Whether a revision's requests may go to the pod at an address."""
        throttler = self.throttlers.get(key)
        return address in (self.directory.pods_of(key) if throttler is None else throttler.pods)

    def set_revision(self, revision: ServedRevision, now_s: float) -> RoutingOutcome[RequestId]:
        """Add or update a revision."""
        is_new = self.directory.set_revision(revision)
        throttler = self.throttlers.get(revision.key)
        if throttler is None:
            return RoutingOutcome()
        return self._complete(throttler, now_s, dispatches=self._set_pods([revision.key], now_s) if is_new else ())

    def remove_revision(self, key: RevisionKey, now_s: float) -> RoutingOutcome[RequestId]:
        """Remove a deleted revision. Running requests continue; queued ones are rejected."""
        removed = self.directory.remove_revision(key)
        throttler = self.throttlers.get(key)
        if throttler is None or removed is None:
            return RoutingOutcome()
        throttler.set_pods({}, now_s, container_concurrency=removed.container_concurrency)
        rejections = throttler.reject_waiting(now_s, reason=RejectionReason.UNKNOWN, text=unknown_text(key))
        return RoutingOutcome(rejections=rejections)

    def set_slice(self, pod_slice: ServedSlice, now_s: float) -> RoutingOutcome[RequestId]:
        """Add or update a slice; its pods get queued requests, oldest first."""
        return RoutingOutcome(dispatches=self._set_pods(self.directory.slices.set(pod_slice), now_s))

    def remove_slice(self, key: str, now_s: float) -> RoutingOutcome[RequestId]:
        """Remove a slice by its key "namespace/name"."""
        revision = self.directory.slices.remove(key)
        return RoutingOutcome(dispatches=() if revision is None else self._set_pods([revision], now_s))

    def arrive(
        self,
        key: RevisionKey,
        request: RequestId,
        now_s: float,
        *,
        weight_bytes: int = 0,
        session: int | Prompt | None = None,
        client: Hashable = None,
    ) -> Dispatch[RequestId] | Queued | Rejection[RequestId]:
        """Dispatch, queue or reject a request.

        A queued request uses ``weight_bytes`` of memory. ``session`` or a prompt selects the preferred pod. ``client``
        is the sender of a request whose body is incomplete.
        """
        throttler = self.throttlers.get(key)
        if (throttler is None or not throttler.pods) and self.directory.is_gone(key):
            return Rejection(request=request, reason=RejectionReason.UNKNOWN, text=unknown_text(key))
        if throttler is None:
            known = self.directory.revision(key)
            settings = self.settings if known is None else known.bounded(self.settings)
            throttler = RevisionThrottler[RequestId](key, settings, random=self._random, now_s=now_s, view=self._view)
            self.throttlers[key] = throttler
            self._set_pods([key], now_s)
        # With pods, the decision does not depend on the revision's state.
        revision = None if throttler.pods else self.directory.revision(key)
        admission = throttler.arrive(
            request, now_s, revision=revision, weight_bytes=weight_bytes, session=session, client=client
        )
        if isinstance(admission, Dispatch):
            is_change = throttler.level > throttler.quiet_level
        else:
            is_change = throttler.has_rejected or isinstance(admission, Queued)
        if is_change:
            self.schedule.schedule_tick(key)
        return admission

    def complete(
        self, key: RevisionKey, request: RequestId, now_s: float
    ) -> Dispatch[RequestId] | Rejection[RequestId] | None:
        """Dispatch, queue or reject a request that waits for its client's other uploads, because its body is complete.

        None if the request waits, or did not wait for other uploads.
        """
        throttler = self.throttlers.get(key)
        if throttler is None:
            return None
        self.schedule.schedule_tick(key)
        return throttler.complete(request, now_s, revision=self.directory.revision(key))

    def record_reading_pause(self, key: RevisionKey, request: RequestId, now_s: float, *, is_held: bool) -> None:
        """Record whether the response to a request waits for its client to read."""
        throttler = self.throttlers.get(key)
        if throttler is not None:
            throttler.admission.record_reading(request, now_s, is_unread=is_held)
            self.schedule.schedule_tick(key)

    def finish(
        self, key: RevisionKey, request: RequestId, now_s: float, *, has_response: bool = True
    ) -> Sequence[Dispatch[RequestId]]:
        """End a request, with or without a response from the pod; return the resulting dispatches."""
        throttler = self.throttlers.get(key)
        if throttler is None:
            return ()
        if self._slots is None or not self._slots.is_trading(key):
            return throttler.finish(request, now_s, has_response=has_response)
        self._slots.before_finish(key, request, now_s)
        dispatches = throttler.finish(request, now_s, has_response=has_response)
        self._slots.settle(key, now_s)
        return dispatches

    def requeue(self, key: RevisionKey, request: RequestId, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """Requeue a request whose pod was gone or ended before its response; return the resulting dispatches."""
        throttler = self.throttlers.get(key)
        if throttler is None:
            return ()
        self.schedule.schedule_tick(key)
        return throttler.requeue(request, now_s)

    def probed(self, probe: PodProbe, now_s: float, *, is_ready: bool) -> RoutingOutcome[RequestId]:
        """Process the result of a readiness probe; a ready pod gets queued requests."""
        self.schedule.schedule_tick(probe.key)
        if probe.pod.has_queue_proxy:
            has_changed = self.directory.unready.record_reply(probe, now_s, is_ready=is_ready)
            return RoutingOutcome(dispatches=self._set_pods([probe.key], now_s) if has_changed else ())
        throttler = self.throttlers.get(probe.key)
        return RoutingOutcome(
            dispatches=throttler.probed(probe.pod.address, now_s, is_open=is_ready) if throttler is not None else ()
        )

    def tick(self, now_s: float) -> RoutingOutcome[RequestId]:
        """Execute all due work: timeouts, readmitted pods, probes, and wakes."""
        outcomes: list[RoutingOutcome[RequestId]] = []
        failures: list[tuple[RevisionKey, Exception]] = []
        for key in self.schedule.pop_due(now_s):
            try:
                outcomes.append(self._tick_revision(key, now_s))
            except Exception as error:  # noqa: BLE001 - the decisions about other revisions must be executed
                failures.append((key, error))
        return RoutingOutcome(
            dispatches=[dispatch for outcome in outcomes for dispatch in outcome.dispatches],
            rejections=[rejection for outcome in outcomes for rejection in outcome.rejections],
            wakes=[wake for outcome in outcomes for wake in outcome.wakes],
            probes=[probe for outcome in outcomes for probe in outcome.probes],
            cuts=tuple(cut for outcome in outcomes for cut in outcome.cuts),
            failures=tuple(failures),
        )

    def _tick_revision(self, key: RevisionKey, now_s: float) -> RoutingOutcome[RequestId]:
        outcome = RoutingOutcome[RequestId]()
        throttler = self.throttlers.get(key)
        if throttler is not None:
            is_changed = self.directory.announced.has_changed(key, now_s)
            dispatches = self._set_pods([key], now_s) if is_changed else []
            outcome = self._complete(throttler, now_s, dispatches=[*dispatches, *throttler.readmit(now_s)])
        if self._slots is not None:
            self._slots.settle(key, now_s)
        return outcome

    def report(self, now_s: float) -> list[tuple[RevisionKey, RevisionLoad]]:
        """Close the reporting period and return the load of each revision that is scaled. Drops idle revisions.

        Requests in the fallback of a ScaledWorkload count for the workload. An idle ScaledWorkload with pods is reported
        with a load of 0, because its pods do not report. An idle revision whose pods have cached prompts is reported
        with their ``pod_heats``.
        """
        loads: list[tuple[RevisionKey, RevisionLoad]] = []
        in_fallbacks: list[tuple[RevisionKey, RevisionLoad]] = []
        for key, throttler in list(self.throttlers.items()):
            load = throttler.report(now_s, period_s=self.settings.report_period_s)
            heats = throttler.pod_heats()
            if load is None and heats:
                loads.append((key, msgspec.structs.replace(_IDLE, pod_heats=heats)))
            elif load is None:
                del self.throttlers[key]
                self.directory.unready.forget(key)
                self.schedule.forget(key)
            else:
                if self.directory.is_workload(key):
                    load = msgspec.structs.replace(load, pod_loads=throttler.pod_loads())
                if heats:
                    load = msgspec.structs.replace(load, pod_heats=heats)
                revision = self.directory.revision(key)
                is_fallback = revision is not None and revision.is_fallback
                (in_fallbacks if is_fallback else loads).append((key, load))
                self.schedule.schedule_tick(key)
        loads += [(key, _IDLE) for key in self.directory.idle_workloads(self.throttlers)]
        if self._slots is not None:
            self._slots.return_unused()
        if not in_fallbacks:
            return loads
        # The pods of a fallback are not scaled; its requests still need the workload.
        sums = dict(loads)
        for fallback, load in in_fallbacks:
            key = workload_key(fallback)
            sums[key] = sums.get(key, _IDLE).with_concurrency_of(load)
        return list(sums.items())

    def resend_all(self) -> None:
        """Report all load again. Called when the connected autoscaler is a new process."""
        for key, throttler in self.throttlers.items():
            throttler.wake_state = forgotten(throttler.wake_state)
            self.schedule.schedule_tick(key)

    def eject_silent(self, now_s: float, *, has_begun: Callable[[RequestId], bool]) -> list[SilentPod[RequestId]]:
        """Eject pods that send no response while other pods of their revision do."""
        after_s = self.settings.eject_after_silence_s
        throttlers = self.throttlers.values() if after_s else ()
        silent_pods = [
            silent
            for throttler in throttlers
            for silent in throttler.eject_silent(now_s, after_s=after_s, has_begun=has_begun)
        ]
        for silent in silent_pods:
            self.schedule.schedule_tick(silent.key)
        return silent_pods

    def reject_all(self, now_s: float, text: str) -> list[Rejection[RequestId]]:
        """Reject all queued requests, at shutdown."""
        return [
            rejection
            for throttler in self.throttlers.values()
            for rejection in throttler.reject_waiting(now_s, reason=RejectionReason.SHUT_DOWN, text=text)
        ]

    def _set_pods(self, keys: Iterable[RevisionKey], now_s: float) -> list[Dispatch[RequestId]]:
        """Pass the current pods of known revisions with requests to their throttlers."""
        dispatches: list[Dispatch[RequestId]] = []
        for key in keys:
            throttler, revision = self.throttlers.get(key), self.directory.revision(key)
            if throttler is None or revision is None:
                continue
            self.directory.watch_unready(key, now_s, is_on=self.settings.probe_unready_pods)
            pods = self.directory.pods_of(key)
            dispatches += throttler.set_pods(
                pods,
                now_s,
                container_concurrency=revision.container_concurrency,
                slots=None if self._slots is None else self._slots.rights(key, pods),
            )
            self.schedule.schedule_tick(key)
        return dispatches

    def _complete(
        self, throttler: RevisionThrottler[RequestId], now_s: float, *, dispatches: Sequence[Dispatch[RequestId]]
    ) -> RoutingOutcome[RequestId]:
        """Add all due work of one revision to an outcome, and schedule its next tick."""
        key, settings = throttler.key, self.settings
        revision = self.directory.revision(key)
        late_text = f"no pod was free within {throttler.settings.queue_wait_max_s:g} s"
        delay = (revision.delay if revision is not None else None) or ""
        fallback = None if revision is None else revision.fallback
        rejections = throttler.reject_waiting(
            now_s, reason=RejectionReason.WAITED, text=late_text, detail=delay, fallback=fallback, is_late=True
        )
        if revision is None:
            if now_s >= throttler.since_s + settings.revision_wait_max_s:
                self.directory.mark_gone(key)
                rejections += throttler.reject_waiting(now_s, reason=RejectionReason.UNKNOWN, text=unknown_text(key))
        elif revision.failure is not None and not throttler.pods and throttler.waiting_count:
            throttler.has_rejected = True
            rejections += throttler.reject_waiting(
                now_s,
                reason=RejectionReason.FAILED,
                text=failure_text(key),
                detail=revision.failure,
                fallback=fallback,
            )
        wakes, wake_due_s = (
            ((), None) if revision is None or revision.is_fallback else throttler.wake(revision, now_s, settings)
        )
        probes = [
            *self.directory.unready.due(key, now_s, is_waiting=throttler.waiting_count > 0),
            *(PodProbe(key=key, pod=pod) for pod in throttler.starting_pods(now_s)),
        ]
        cuts = throttler.admission.late_readers(now_s)
        due_s = next_deadline_s(throttler, self.directory, settings, wake_due_s=wake_due_s, now_s=now_s)
        # Each report checks all revisions anyway, so later due times need no entry.
        if due_s <= now_s + 2 * settings.report_period_s:
            self.schedule.schedule_at(key, due_s)
        return RoutingOutcome(dispatches=dispatches, rejections=rejections, wakes=wakes, probes=probes, cuts=cuts)


def announce(router: RequestRouter[RequestId], key: RevisionKey, pod: ServedPod, *, now_s: float) -> None:
    """Start probing an announced pod. Probing ends when a slice lists the pod, or after a bounded time.

    An announced pod of a ScaledWorkload gets requests without a probe.
    """
    until_s = now_s + router.settings.announced_pod_max_s
    if until_s > now_s and router.directory.announce(key, pod, now_s, until_s=until_s):
        router.schedule.schedule_tick(key)
