"""Routes all requests of one activator: events go in, dispatches and rejections come out.

Input: what the cluster says (revisions and slices), what requests do, and the time. Output: dispatches, rejections, wakes and
probes (``readiness.py``), and load to report. A call returns what is urgent. The rest (pokes, flips, probes, requests that have
waited too long) is done by ``tick``: call it soon while ``schedule.has_pending_work``, and at ``next_due_s``. The router knows
no host, header, connection or clock.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from serving.activator.queueing.active import ActiveRevision
from serving.activator.queueing.readiness import Dispatch, PodProbe, Rejection, RejectionReason, RoutingOutcome
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedSlice
from serving.activator.queueing.table import RevisionTable
from serving.activator.queueing.wake import RevisionLoad
from serving.model.knative import RevisionKey
from serving.traffic.breaker import Queued

RequestId = TypeVar("RequestId", bound=Hashable)
RequestId_contra = TypeVar("RequestId_contra", bound=Hashable, contravariant=True)


class SlotBook(Protocol[RequestId_contra]):
    """Shares the slots of pods with other processes of this machine; the router asks it around each event."""

    def rights(self, key: RevisionKey, pods: Iterable[str]) -> Mapping[str, int] | None:
        """This process's slots of each pod; None where pods have no limit."""

    def is_trading(self, key: RevisionKey) -> bool:
        """Whether any process has asked for slots of a revision; if not, the end of a request concerns no other."""

    def before_finish(self, key: RevisionKey, request: RequestId_contra, now_s: float) -> None:
        """A request is about to end: its slot may pass to another process."""

    def settle(self, key: RevisionKey, now_s: float) -> None:
        """Requests of a revision came, ended or began: give slots away or ask for some."""

    def due(self, now_s: float) -> Collection[RevisionKey]:
        """Revisions to settle now although nothing happened."""

    def next_due_s(self) -> float | None:
        """When one is next due; None while none will be."""

    def return_unused(self) -> None:
        """Give slots of pods that are gone back to their owners."""


class RequestRouter(Generic[RequestId]):
    """Routes requests to pods. Calls with an unknown request do nothing; ``slots`` is None without peer processes."""

    def __init__(self, table: RevisionTable[RequestId], *, slots: SlotBook[RequestId] | None = None) -> None:
        self.table = table
        self.directory = table.directory
        self.schedule = table.schedule
        self._active = table.active
        self._slots = slots

    def __repr__(self) -> str:
        waiting_count = sum(waiting_count for _, _, waiting_count in self.table.inside())
        return (
            f"RequestRouter({len(self.directory.keys)} revisions, {len(self._active)} with requests, "
            f"{self.table.level - waiting_count} run, {waiting_count} wait)"
        )

    def set_revision(self, revision: ServedRevision, now_s: float) -> RoutingOutcome[RequestId]:
        """Add or update a revision."""
        is_new = self.directory.set_revision(revision)
        active = self._active.get(revision.key)
        if active is None:
            return RoutingOutcome()
        return self._outcome(active, now_s, dispatches=self._set_pods(active, now_s) if is_new else ())

    def remove_revision(self, key: RevisionKey, now_s: float) -> RoutingOutcome[RequestId]:
        """Remove a deleted revision. Running requests continue; queued ones are rejected."""
        removed = self.directory.remove_revision(key)
        active = self._active.get(key)
        if active is None or removed is None:
            return RoutingOutcome()
        return RoutingOutcome(rejections=active.remove(removed.container_concurrency, now_s))

    def set_slice(self, found: ServedSlice, now_s: float) -> RoutingOutcome[RequestId]:
        """Add or update a slice; queued requests go to its pods, oldest first."""
        return self._pods_changed(self.directory.slices.set(found), now_s)

    def remove_slice(self, key: str, now_s: float) -> RoutingOutcome[RequestId]:
        """Remove a slice, by its namespace and name with a slash."""
        revision = self.directory.slices.remove(key)
        return RoutingOutcome() if revision is None else self._pods_changed([revision], now_s)

    def arrive(
        self, key: RevisionKey, request: RequestId, now_s: float, *, weight_bytes: int = 0, session: int | None = None
    ) -> Dispatch[RequestId] | Queued | Rejection[RequestId]:
        """Dispatch, queue or reject a request; it takes ``weight_bytes`` while queued, and prefers its session's pod."""
        active = self._active.get(key)
        if active is None:
            active = self.table.open(key, now_s)
            self._set_pods(active, now_s)
        # With pods the decision does not depend on the revision's state.
        revision = None if active.pods else self.directory.revision(key)
        answer, is_news = active.arrive(request, revision, now_s, weight_bytes=weight_bytes, session=session)
        if is_news:
            self.schedule.schedule_tick(key)
        return answer

    def finish(
        self, key: RevisionKey, request: RequestId, now_s: float, *, is_answered: bool = True
    ) -> Sequence[Dispatch[RequestId]]:
        """End a request, with the pod's response or without; return the requests that begin."""
        active = self._active.get(key)
        if active is None:
            return ()
        if self._slots is None or not self._slots.is_trading(key):
            return active.finish(request, now_s, is_answered=is_answered)
        self._slots.before_finish(key, request, now_s)
        dispatches = active.finish(request, now_s, is_answered=is_answered)
        self._slots.settle(key, now_s)
        return dispatches

    def requeue(self, key: RevisionKey, request: RequestId, now_s: float) -> Sequence[Dispatch[RequestId]]:
        """Requeue a request whose pod was gone or died before its response; return the requests that begin."""
        active = self._active.get(key)
        if active is None:
            return ()
        self.schedule.schedule_tick(key)
        return active.dispatches(active.throttler.requeue(request, now_s))

    def probed(self, probe: PodProbe, now_s: float, *, is_ready: bool) -> RoutingOutcome[RequestId]:
        """Take the result of a readiness probe; a ready pod gets queued requests."""
        has_changed = self.directory.unready.answered(probe, now_s, is_ready=is_ready)
        self.schedule.schedule_tick(probe.key)
        return self._pods_changed([probe.key], now_s) if has_changed else RoutingOutcome()

    def tick(self, now_s: float) -> RoutingOutcome[RequestId]:
        """Do what is due."""
        keys = self.schedule.take_due(now_s)
        if self._slots is not None:
            keys.update(self._slots.due(now_s))
        outcomes = [self._attend(active, now_s) for key in keys if (active := self._active.get(key)) is not None]
        if self._slots is not None:
            for key in keys:
                self._slots.settle(key, now_s)
        return RoutingOutcome(
            dispatches=[dispatch for one in outcomes for dispatch in one.dispatches],
            rejections=[rejection for one in outcomes for rejection in one.rejections],
            wakes=[wake for one in outcomes for wake in one.wakes],
            probes=[probe for one in outcomes for probe in one.probes],
        )

    def next_due_s(self) -> float | None:
        """When ``tick`` is next due without news, perhaps with nothing to do; None without a deadline."""
        dues_s = (self.schedule.next_due_s(), self._slots.next_due_s() if self._slots is not None else None)
        return min((due_s for due_s in dues_s if due_s is not None), default=None)

    def report(self, now_s: float) -> list[tuple[RevisionKey, RevisionLoad]]:
        """Close the period of reports: the load of each revision that has any. Idle ones are dropped."""
        loads: list[tuple[RevisionKey, RevisionLoad]] = []
        for key, active in list(self._active.items()):
            load = active.report(now_s, self.table.settings)
            if load is None:
                self.table.close(key)
            else:
                loads.append((key, load))
                self.schedule.schedule_tick(key)
        if self._slots is not None:
            self._slots.return_unused()
        return loads

    def resend_all(self) -> None:
        """Report all load once more: the autoscaler at the other end of the connection is a new process."""
        for key, active in self._active.items():
            active.forget_reports()
            self.schedule.schedule_tick(key)

    def reject_all(self, now_s: float, text: str) -> list[Rejection[RequestId]]:
        """Reject all queued requests at shutdown."""
        return [
            one
            for active in self._active.values()
            for one in active.reject_waiting(now_s, reason=RejectionReason.SHUT_DOWN, text=text)
        ]

    def validate(self) -> None:
        """Assert the invariants; tests call it after every step."""
        for key, active in self._active.items():
            active.throttler.validate()
            assert self.directory.revision(key) is None or active.pods == self.directory.pods_of(key), self

    def _set_pods(self, active: ActiveRevision[RequestId], now_s: float) -> list[Dispatch[RequestId]]:
        """Give a revision its pods. The capacity of pods is unknown until the revision is."""
        revision = self.directory.revision(active.key)
        if revision is None:
            return []
        self.directory.watch_unready(active.key, now_s, is_on=self.table.settings.probe_unready_pods)
        pods = self.directory.pods_of(active.key)
        slots = None if self._slots is None else self._slots.rights(active.key, pods)
        return active.set_pods(pods, now_s, container_concurrency=revision.container_concurrency, slots=slots)

    def _pods_changed(self, keys: Iterable[RevisionKey], now_s: float) -> RoutingOutcome[RequestId]:
        dispatches: list[Dispatch[RequestId]] = []
        for key in keys:
            active = self._active.get(key)
            if active is not None:
                dispatches += self._set_pods(active, now_s)
                self.schedule.schedule_tick(key)
        return RoutingOutcome(dispatches=dispatches)

    def _attend(self, active: ActiveRevision[RequestId], now_s: float) -> RoutingOutcome[RequestId]:
        """Run everything that is due for one revision: timeouts, readmitted pods, probes, and the wake."""
        rejections = active.expire(self.directory.revision(active.key), now_s, self.table.settings)
        dispatches = active.dispatches(active.throttler.readmit(now_s))
        is_waiting = active.throttler.waiting_count > 0
        probes = self.directory.unready.due(active.key, now_s, is_waiting=is_waiting)
        return self._outcome(active, now_s, dispatches=dispatches, rejections=rejections, probes=probes)

    def _outcome(
        self,
        active: ActiveRevision[RequestId],
        now_s: float,
        *,
        dispatches: Sequence[Dispatch[RequestId]],
        rejections: Sequence[Rejection[RequestId]] = (),
        probes: Sequence[PodProbe] = (),
    ) -> RoutingOutcome[RequestId]:
        """Complete an outcome with the revision's wake and probes, and schedule the next tick."""
        revision, settings = self.directory.revision(active.key), self.table.settings
        hopeless, unknown_until_s = active.reject_hopeless(revision, now_s, settings)
        wakes, wake_due_s = ((), None) if revision is None else active.wake(revision, now_s, settings)
        is_waiting = active.throttler.waiting_count > 0
        probe_due_s = self.directory.unready.next_due_s(active.key, is_waiting=is_waiting)
        dues_s = (unknown_until_s, wake_due_s, active.throttler.next_due_s(), probe_due_s)
        due_s = min((due_s for due_s in dues_s if due_s is not None), default=math.inf)
        # Each report looks at all revisions: what is further away would only pile up.
        if due_s <= now_s + 2 * settings.report_period_s:
            self.schedule.schedule_at(active.key, due_s)
        return RoutingOutcome(dispatches=dispatches, rejections=[*rejections, *hopeless], wakes=wakes, probes=probes)
