"""Decides which pods of a machine start next.

The start of a program uses a core for tenths of a second. If many pods start concurrently, all become ready late, and
ready pods get no core. So only a few pods have a turn at a time.

Requests wait for the first pod of a revision, so first pods start before all others, in order of arrival. An additional
pod starts when the first pod's turn has ended, at most ``LEAD_MAX_S`` later. During a burst of first pods, additional
pods wait for the end of the burst, at most ``PATIENCE_S``. Most additional pods are no longer wanted by then, and never
start. One of ``SHARE_TURNS`` turns is for an additional pod that has waited that long.
"""

from collections import Counter, deque

import msgspec

LEAD_MAX_S = 0.05
"""How long the first pod of a revision starts alone, in seconds. By then small programs are ready."""

BURST_S = 0.5
"""A burst lasts while at least one first pod per start slot has arrived within this time, in seconds."""

PATIENCE_S = 10.0
"""How long an additional pod waits for the end of a burst, in seconds."""

SHARE_TURNS = 4
"""Of this many start slots one is for an additional pod that has waited ``PATIENCE_S``."""


class PodStart(msgspec.Struct, kw_only=True, eq=False):
    """One pod to start. ``is_first``: no other pod of its revision has started. ``StartQueue`` sets it and the time."""

    revision: str
    is_first: bool = False
    arrived_s: float = 0.0


class StartQueue:
    """The pods of a machine that wait for a start slot or have one. At most ``turn_count`` have a slot."""

    def __init__(self, turn_count: int) -> None:
        self._turn_count = turn_count
        # Both in order of arrival.
        self._firsts: list[PodStart] = []
        self._others: list[PodStart] = []
        self._running: list[PodStart] = []
        # Pods that have begun, until they are removed, by revision.
        self._begun: dict[str, list[PodStart]] = {}
        # Start slots of each revision since no pod has waited.
        self._had: Counter[str] = Counter()
        self._firsts_s: deque[float] = deque(maxlen=turn_count)
        # First pods that have begun since the last additional one.
        self._since_other = 0

    @property
    def waiting_count(self) -> int:
        """The number of pods that wait for a start slot."""
        return len(self._firsts) + len(self._others)

    def add(self, pod: PodStart, *, now_s: float) -> None:
        """Queue a pod for a start slot. A pod is added again if its slot ended before the pod was prepared."""
        is_new = pod not in self._begun.get(pod.revision, ())
        self.remove(pod)
        pod.arrived_s = now_s
        pod.is_first = self._has_no_first(pod.revision)
        (self._firsts if pod.is_first else self._others).append(pod)
        if pod.is_first and is_new:
            self._firsts_s.append(now_s)

    def adopt(self, pod: PodStart) -> None:
        """Record a running pod, which needs no start slot."""
        self._begun.setdefault(pod.revision, []).append(pod)

    def end(self, pod: PodStart) -> None:
        """End the start slot of a pod. A pod without a slot is ignored."""
        if pod in self._running:
            self._running.remove(pod)
            if not self.waiting_count:
                self._had.clear()

    def remove(self, pod: PodStart) -> None:
        """Remove a pod that has ended or been deleted; unknown pods are ignored."""
        self.end(pod)
        for waiting in (self._firsts, self._others):
            if pod in waiting:
                waiting.remove(pod)
        begun = self._begun.get(pod.revision, [])
        if pod in begun:
            begun.remove(pod)
        if not begun:
            self._begun.pop(pod.revision, None)
        following = next((other for other in self._others if other.revision == pod.revision), None)
        if following is not None and self._has_no_first(pod.revision):
            following.is_first = True
            self._others.remove(following)
            self._firsts.append(following)

    def begin(self, *, now_s: float) -> list[PodStart]:
        """Give free start slots to waiting pods; return these pods."""
        started = []
        while len(self._running) < self._turn_count and (pod := self._next(now_s)) is not None:
            (self._firsts if pod.is_first else self._others).remove(pod)
            self._running.append(pod)
            self.adopt(pod)
            self._had[pod.revision] += 1
            self._since_other = self._since_other + 1 if pod.is_first else 0
            started.append(pod)
        return started

    def due_s(self, *, now_s: float) -> float | None:
        """The time at which a call of ``begin`` may start a pod although nothing else happens; None means never."""
        if len(self._running) >= self._turn_count or not self._others:
            return None
        times_s = [self._others[0].arrived_s + PATIENCE_S]
        times_s += [self._firsts_s[0] + BURST_S] if self._is_burst(now_s) else []
        leads_s = (other.arrived_s + LEAD_MAX_S for other in self._others)
        times_s += [next((time_s for time_s in leads_s if time_s > now_s), 0.0)]
        return min((time_s for time_s in times_s if time_s > now_s), default=None)

    def _next(self, now_s: float) -> PodStart | None:
        oldest = self._others[0] if self._others else None
        if oldest is not None and now_s < oldest.arrived_s + PATIENCE_S:
            oldest = None
        if not all(pod.is_first for pod in self._running):
            # One at a time in a burst.
            oldest = None
        if self._firsts:
            has_share = oldest is not None and self._since_other >= SHARE_TURNS - 1
            return oldest if has_share else self._firsts[0]
        if oldest is not None or self._is_burst(now_s):
            return oldest
        followers = (other for other in self._others if self._may_follow(other, now_s))
        return min(followers, key=lambda pod: self._had[pod.revision], default=None)

    def _may_follow(self, pod: PodStart, now_s: float) -> bool:
        leads = any(running.is_first and running.revision == pod.revision for running in self._running)
        return not leads or now_s >= pod.arrived_s + LEAD_MAX_S

    def _is_burst(self, now_s: float) -> bool:
        return len(self._firsts_s) == self._turn_count and now_s < self._firsts_s[0] + BURST_S

    def _has_no_first(self, revision: str) -> bool:
        return revision not in self._begun and all(first.revision != revision for first in self._firsts)
