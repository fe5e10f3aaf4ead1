"""All revisions with requests, what the cluster says about them, and when to look at which.

The router and the slot broker work on one table: the router moves requests, the broker changes how many slots of a pod this
process may use. It decides nothing itself.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from serving.activator.queueing.active import ActiveRevision
from serving.activator.queueing.directory import RevisionDirectory
from serving.activator.queueing.outcome import SilentPod
from serving.activator.queueing.schedule import TickSchedule
from serving.activator.queueing.throttler import RevisionThrottler
from serving.model.knative import RevisionKey
from serving.settings.activator import ActivatorSettings
from serving.traffic.ejection import EjectionReport

RequestId = TypeVar("RequestId", bound=Hashable)


class RevisionTable(Generic[RequestId]):
    """See the module. ``random`` gives numbers from 0 to below 1."""

    __slots__ = ("_random", "active", "directory", "schedule", "settings")

    def __init__(self, settings: ActivatorSettings, *, random: Callable[[], float]) -> None:
        self.settings = settings
        """Replaced while it runs; queues keep the bounds that they have."""
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
        """A revision gets its first request."""
        opened = self.active[key] = ActiveRevision[RequestId](key, self.settings, random=self._random, now_s=now_s)
        return opened

    def close(self, key: RevisionKey) -> None:
        """A revision is idle."""
        del self.active[key]
        self.directory.unready.forget(key)
        self.schedule.forget(key)

    def eject_silent(self, now_s: float, *, has_begun: Callable[[RequestId], bool]) -> list[SilentPod[RequestId]]:
        """Eject the pods that answer nothing although others of their revision do."""
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
        """The pods of a namespace that have failed and not answered since."""
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
