"""Computes when the router is next due: ``next_deadline_s`` for one revision, ``TickSchedule`` for all.

Each part of the router reports its next due time, and sets no timer. After each tick of a revision the earliest
of these times is scheduled.
"""

import heapq
import math
from collections.abc import Hashable
from typing import TypeVar

from serving.activator.queueing.readiness import RevisionDirectory
from serving.activator.queueing.throttler import RevisionThrottler
from serving.core.model.knative import RevisionKey
from serving.core.settings.activator import ActivatorSettings

RequestId = TypeVar("RequestId", bound=Hashable)


def next_deadline_s(
    throttler: RevisionThrottler[RequestId],
    directory: RevisionDirectory,
    settings: ActivatorSettings,
    *,
    wake_due_s: float | None,
    now_s: float,
) -> float:
    """When a revision needs a tick if nothing else happens; infinity: never. ``wake_due_s`` is its next wake."""
    key, admission = throttler.key, throttler.admission
    is_unknown = directory.revision(key) is None and not directory.is_gone(key)
    dues_s = (
        throttler.since_s + settings.revision_wait_max_s if is_unknown else None,
        wake_due_s,
        admission.expires_s(),
        now_s + admission.readers_check_s if admission.is_watching_readers else None,
        throttler.ejected.pause_ends_s(),
        throttler.ejected.probe_due_s() if throttler.waiting_count else None,
        directory.unready.probe_due_s(key, is_waiting=throttler.waiting_count > 0),
        directory.announced.next_end_s(key),
    )
    return min((due_s for due_s in dues_s if due_s is not None), default=math.inf)


class TickSchedule:
    """The ticks of revisions, due now or later."""

    __slots__ = ("_due_s", "_heap", "_pending")

    def __init__(self) -> None:
        self._pending: set[RevisionKey] = set()
        self._due_s: dict[RevisionKey, float] = {}
        # Entries that differ from the revision's due time are obsolete.
        self._heap: list[tuple[float, RevisionKey]] = []

    @property
    def has_pending_work(self) -> bool:
        """Whether ``schedule_tick`` was called since the last ``pop_due``."""
        return bool(self._pending)

    def schedule_tick(self, key: RevisionKey) -> None:
        """Schedule a tick of a revision soon."""
        self._pending.add(key)

    def schedule_at(self, key: RevisionKey, due_s: float) -> None:
        """Schedule a tick of a revision, at ``due_s`` at the latest."""
        known_s = self._due_s.get(key)
        if known_s is None or due_s < known_s:
            self._due_s[key] = due_s
            heapq.heappush(self._heap, (due_s, key))

    def forget(self, key: RevisionKey) -> None:
        """Drop a revision."""
        self._due_s.pop(key, None)

    def pop_due(self, now_s: float) -> set[RevisionKey]:
        """Remove and return the revisions scheduled by ``schedule_tick``, and those whose scheduled time has come."""
        keys, self._pending = self._pending, set()
        while self._heap and self._heap[0][0] <= now_s:
            due_s, key = heapq.heappop(self._heap)
            if self._due_s.get(key) == due_s:
                del self._due_s[key]
                keys.add(key)
        return keys

    def next_due_s(self) -> float | None:
        """The earliest time from ``schedule_at``, also of a tick that was superseded since; None without one."""
        return self._heap[0][0] if self._heap else None
