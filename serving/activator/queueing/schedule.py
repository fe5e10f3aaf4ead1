"""When the router has to look at which revision.

Input: revisions with news, and the time at which a revision is due without news. Output: the revisions to look at now, and
when the next is due. A revision has one due time; an earlier one replaces a later one.
"""

import heapq

from serving.model.knative import RevisionKey


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
        """Look at a revision soon."""
        self._pending.add(key)

    def schedule_at(self, key: RevisionKey, due_s: float) -> None:
        """Look at a revision at a time, or before."""
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
