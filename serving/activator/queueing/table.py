"""The tables of the router: known revisions and slices, revisions with requests, and the tick schedule.

The router and the slot broker work on one table: the router moves requests, the broker changes how many slots of a pod this
process may use. It decides nothing itself.
"""

import heapq
from collections.abc import Callable, Collection, Hashable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from serving.activator.queueing.active import ActiveRevision
from serving.activator.queueing.readiness import SilentPod, UnreadyPods
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod, SliceIndex
from serving.activator.queueing.throttler import RevisionThrottler
from serving.model.knative import RevisionKey
from serving.settings.activator import ActivatorSettings
from serving.traffic.ejection import EjectionReport


class RevisionDirectory:
    """All revisions and slices. ``slices`` and ``unready`` change by calls of their own."""

    __slots__ = ("_revisions", "slices", "unready")

    def __init__(self) -> None:
        self._revisions: dict[RevisionKey, ServedRevision] = {}
        self.slices = SliceIndex()
        self.unready = UnreadyPods()

    def __repr__(self) -> str:
        return f"RevisionDirectory({len(self._revisions)} revisions, {self.slices!r}, {self.unready!r})"

    @property
    def keys(self) -> AbstractSet[RevisionKey]:
        """All known revisions."""
        return self._revisions.keys()

    def revision(self, key: RevisionKey) -> ServedRevision | None:
        """A revision; None while it is not known."""
        return self._revisions.get(key)

    def set_revision(self, revision: ServedRevision) -> bool:
        """Add or update a revision; whether it is new."""
        is_new = revision.key not in self._revisions
        self._revisions[revision.key] = revision
        return is_new

    def remove_revision(self, key: RevisionKey) -> ServedRevision | None:
        """Remove a revision and return it."""
        self.unready.forget(key)
        return self._revisions.pop(key, None)

    def slot_count(self, key: RevisionKey) -> int:
        """The concurrency limit of a pod; 0 without a limit or for an unknown revision."""
        revision = self._revisions.get(key)
        return 0 if revision is None else revision.container_concurrency

    def pods_of(self, key: RevisionKey) -> dict[str, ServedPod]:
        """The pods of a revision that may get requests, by address."""
        return self.slices.pods_of(key) | self.unready.confirmed(key)

    def watch_unready(self, key: RevisionKey, now_s: float, *, is_on: bool) -> None:
        """Follow the not-ready pods of a revision with requests, or none unless ``is_on`` and a probe can tell."""
        revision = self._revisions.get(key)
        is_probed = is_on and revision is not None and not revision.kubelet_decides
        self.unready.set_pods(key, self.slices.unready_of(key) if is_probed else {}, now_s)


class TickSchedule:
    """The revisions to look at, now and later."""

    __slots__ = ("_due_s", "_heap", "_pending")

    def __init__(self) -> None:
        self._pending: set[RevisionKey] = set()
        self._due_s: dict[RevisionKey, float] = {}
        # Only what equals the revision's due time counts; the rest is out of date.
        self._heap: list[tuple[float, RevisionKey]] = []

    def __repr__(self) -> str:
        return f"TickSchedule({len(self._pending)} pending, {len(self._due_s)} due later)"

    @property
    def has_pending_work(self) -> bool:
        """Whether a revision has news, so that a tick is due soon."""
        return bool(self._pending)

    def schedule_tick(self, key: RevisionKey) -> None:
        """Schedule a tick of a revision soon."""
        self._pending.add(key)

    def schedule_at(self, key: RevisionKey, due_s: float) -> None:
        """Schedule a tick of a revision at ``due_s`` at the latest."""
        known_s = self._due_s.get(key)
        if known_s is None or due_s < known_s:
            self._due_s[key] = due_s
            heapq.heappush(self._heap, (due_s, key))

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision."""
        self._due_s.pop(key, None)

    def take_due(self, now_s: float) -> set[RevisionKey]:
        """The revisions with news, and those that are due."""
        keys, self._pending = self._pending, set()
        while self._heap and self._heap[0][0] <= now_s:
            due_s, key = heapq.heappop(self._heap)
            if self._due_s.get(key) == due_s:
                del self._due_s[key]
                keys.add(key)
        return keys

    def next_due_s(self) -> float | None:
        """When a revision is next due without news; that tick may find nothing to do."""
        return self._heap[0][0] if self._heap else None


RequestId = TypeVar("RequestId", bound=Hashable)


class RevisionTable(Generic[RequestId]):
    """All revisions with requests. ``random`` gives numbers from 0 to below 1."""

    __slots__ = ("_random", "active", "directory", "schedule", "settings")

    def __init__(self, settings: ActivatorSettings, *, random: Callable[[], float]) -> None:
        self.settings = settings
        """May be replaced at run time; existing queues keep their bounds."""
        self.directory = RevisionDirectory()
        self.schedule = TickSchedule()
        self.active: dict[RevisionKey, ActiveRevision[RequestId]] = {}
        self._random = random

    def __repr__(self) -> str:
        return f"RevisionTable({len(self.active)} active, {self.directory!r}, {self.schedule!r})"

    @property
    def keys(self) -> Collection[RevisionKey]:
        """All known revisions, and those that have requests."""
        return self.directory.keys | self.active.keys()

    @property
    def level(self) -> int:
        """Requests inside, of all revisions."""
        return sum(one.throttler.level for one in self.active.values())

    def inside(self) -> list[tuple[RevisionKey, int, int]]:
        """Each revision that has requests: how many are inside, and how many of those wait."""
        return [(key, one.throttler.level, one.throttler.waiting_count) for key, one in self.active.items()]

    def open(self, key: RevisionKey, now_s: float) -> ActiveRevision[RequestId]:
        """Add a revision at its first request."""
        opened = self.active[key] = ActiveRevision[RequestId](key, self.settings, random=self._random, now_s=now_s)
        return opened

    def close(self, key: RevisionKey) -> None:
        """Remove an idle revision."""
        del self.active[key]
        self.directory.unready.forget(key)
        self.schedule.forget(key)

    def eject_silent(self, now_s: float, *, has_begun: Callable[[RequestId], bool]) -> list[SilentPod[RequestId]]:
        """Eject pods that answer nothing while others of their revision do."""
        if not self.settings.eject_after_silence_s:
            return []
        found = [
            silent
            for active in self.active.values()
            for silent in active.eject_silent(now_s, self.settings, has_begun=has_begun)
        ]
        for silent in found:
            self.schedule.schedule_tick(silent.key)
        return found

    def ejections(self, namespace: str, now_s: float, *, wall_s: float) -> list[EjectionReport]:
        """Pods of a namespace without a response since their last failure."""
        return [
            report
            for key, active in self.active.items()
            if key[0] == namespace
            for report in active.ejections(now_s, wall_s=wall_s)
        ]

    def throttler(self, key: RevisionKey) -> RevisionThrottler[RequestId] | None:
        """The requests of a revision; None without any."""
        active = self.active.get(key)
        return None if active is None else active.throttler

    def in_flight(self, key: RevisionKey) -> dict[str, int]:
        """Requests of a revision on each pod that has any from here."""
        throttler = self.throttler(key)
        return {} if throttler is None or throttler.pods is None else throttler.pods.in_flight
