"""All requests and all revisions of one activator: every event goes in here, and what is to be done comes out.

Input: what the cluster says (revisions and slices, read by ``revisions.py``), what requests do, and the time. Output: what is
to be done (``outcome.py``), and load to report. One ``Holder`` and one ``WakeState`` for each revision that has requests; none for one that is idle.

What is urgent is answered by the call itself. The rest (pokes, flips, requests that have waited too long) is done by
``tick``: call it soon when ``is_stirred``, and at ``next_due_s``. It knows no host, header, connection or clock.
"""

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.hold import Holder, Run
from serving.activator.outcome import Go, Outcome, Turned, TurnReason, Wake
from serving.activator.readiness import PodProbe, UnreadyPods
from serving.activator.revisions import PodFacts, RevisionFacts, SliceFacts, Slices
from serving.activator.wake import Load, WakeFacts, WakeState, calm, reported, wake
from serving.model.knative import RevisionKey, ServingState
from serving.settings.activator import ActivatorSettings
from serving.traffic.breaker import Limit, Queued, Refused

__all__ = ["Desk"]

RequestId = TypeVar("RequestId", bound=Hashable)


class _Entry(Generic[RequestId]):
    """A revision that has requests, or had some a moment ago."""

    __slots__ = ("arrived_count", "due_s", "holder", "pods", "quiet_level", "since_s", "wake_state", "was_refused")

    def __init__(self, holder: Holder[RequestId], now_s: float) -> None:
        self.holder = holder
        self.since_s = now_s
        self.pods: dict[str, PodFacts] = {}
        self.wake_state = WakeState()
        self.arrived_count = 0
        self.quiet_level = 0
        self.was_refused = False
        self.due_s: float | None = None


class Desk(Generic[RequestId]):
    """See the module. ``random`` gives numbers from 0 to below 1. Calls for requests that are not inside do nothing."""

    def __init__(self, settings: ActivatorSettings, *, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._facts: dict[RevisionKey, RevisionFacts] = {}
        self._slices = Slices()
        self._unready = UnreadyPods()
        self._entries: dict[RevisionKey, _Entry[RequestId]] = {}
        self._stirred: set[RevisionKey] = set()
        # When to look at a revision without news. Only what equals its entry's due_s counts, the rest is out of date.
        self._due: list[tuple[float, RevisionKey]] = []
        # The slots of pods that are ours, where they are shared (``slots/desk.py``).
        self._slots_of: Callable[[RevisionKey, Iterable[str]], Mapping[str, int] | None] | None = None

    def reconfigure(self, settings: ActivatorSettings) -> None:
        """Wake and wait with these settings from now on; queues keep the bounds that they have."""
        self._settings = settings

    def __repr__(self) -> str:
        running_count = sum(entry.holder.running_count for entry in self._entries.values())
        waiting_count = sum(entry.holder.waiting_count for entry in self._entries.values())
        return (
            f"Desk({len(self._facts)} revisions, {len(self._entries)} with requests, {running_count} run, "
            f"{waiting_count} wait)"
        )

    @property
    def is_stirred(self) -> bool:
        """Whether ``tick`` should be called soon."""
        return bool(self._stirred)

    @property
    def level(self) -> int:
        """Requests inside, of all revisions."""
        return sum(entry.holder.level for entry in self._entries.values())

    @property
    def keys(self) -> Collection[RevisionKey]:
        """All revisions that there are, and those that have requests."""
        return self._facts.keys() | self._entries.keys()

    def inside(self) -> list[tuple[RevisionKey, int, int]]:
        """Each revision that has requests: how many are inside, and how many of those wait."""
        return [(key, entry.holder.level, entry.holder.waiting_count) for key, entry in self._entries.items()]

    def facts_of(self, key: RevisionKey) -> RevisionFacts | None:
        """What is known of a revision."""
        return self._facts.get(key)

    def pods_of(self, key: RevisionKey) -> dict[str, PodFacts]:
        """The pods of a revision that may be given requests, by address."""
        entry = self._entries.get(key)
        return dict(entry.pods) if entry else self._slices.pods_of(key)

    def set_revision(self, facts: RevisionFacts, now_s: float) -> Outcome[RequestId]:
        """A revision is new or has changed."""
        before = self._facts.get(facts.key)
        self._facts[facts.key] = facts
        entry = self._entries.get(facts.key)
        if entry is None:
            return Outcome()
        go = self._set_pods(facts.key, entry, now_s) if before is None else ()
        return self._with(facts.key, entry, now_s, go=go)

    def remove_revision(self, key: RevisionKey, now_s: float) -> Outcome[RequestId]:
        """A revision is gone. What runs, runs on; what waits is refused."""
        known = self._facts.pop(key, None)
        entry = self._entries.get(key)
        if entry is None or known is None:
            return Outcome()
        entry.pods = {}
        self._unready.forget(key)
        entry.holder.set_pods((), now_s, container_concurrency=known.container_concurrency)
        return Outcome(turned=self._give_up(entry, now_s, reason=TurnReason.UNKNOWN, text=_gone(key)))

    def set_slice(self, facts: SliceFacts, now_s: float) -> Outcome[RequestId]:
        """A slice is new or has changed; who waited runs by it, oldest first."""
        return self._pods_changed(self._slices.set(facts), now_s)

    def remove_slice(self, key: str, now_s: float) -> Outcome[RequestId]:
        """A slice is gone, by its namespace and name with a slash."""
        revision = self._slices.remove(key)
        return Outcome() if revision is None else self._pods_changed([revision], now_s)

    def arrive(
        self, key: RevisionKey, request: RequestId, now_s: float, *, weight_bytes: int = 0
    ) -> Go[RequestId] | Queued | Turned[RequestId]:
        """A new request for a revision; it takes up ``weight_bytes`` while it waits."""
        entry = self._entries.get(key) or self._open(key, now_s)
        if not entry.pods and (turned := self._turned_at_once(key, request)) is not None:
            entry.was_refused = turned.reason is TurnReason.FAILED
            self._stirred.add(key)
            return turned
        answer = entry.holder.arrive(request, now_s, weight_bytes=weight_bytes)
        if isinstance(answer, Refused):
            return _queue_full(request, answer)
        entry.arrived_count += 1
        if isinstance(answer, Queued):
            self._stirred.add(key)
            return answer
        if entry.holder.level > entry.quiet_level:
            self._stirred.add(key)
        return Go(request=request, pod=entry.pods[answer.address])

    def finish(self, key: RevisionKey, request: RequestId, now_s: float) -> Sequence[Go[RequestId]]:
        """A request has ended, in whatever way, or its client has left; who runs instead."""
        entry = self._entries.get(key)
        if entry is None:
            return ()
        runs = entry.holder.finish(request, now_s)
        if entry.wake_state.known_waiting_count and not entry.holder.waiting_count:
            entry.wake_state = calm(entry.wake_state)
        return [_go(entry, run) for run in runs] if runs else ()

    def come_back(self, key: RevisionKey, request: RequestId, now_s: float) -> Sequence[Go[RequestId]]:
        """The pod of a request was not there, or died before it answered; who runs by it."""
        entry = self._entries.get(key)
        if entry is None:
            return ()
        go = [_go(entry, run) for run in entry.holder.come_back(request, now_s)]
        self._stirred.add(key)
        return go

    def probed(self, probe: PodProbe, now_s: float, *, is_ready: bool) -> Outcome[RequestId]:
        """Take the answer of a pod that is listed as not ready; requests that wait go to it if it is ready."""
        has_changed = self._unready.answered(probe, now_s, is_ready=is_ready)
        self._stirred.add(probe.key)
        return self._pods_changed([probe.key], now_s) if has_changed else Outcome()

    def tick(self, now_s: float) -> Outcome[RequestId]:
        """Do what is due."""
        keys, self._stirred = self._stirred, set()
        while self._due and self._due[0][0] <= now_s:
            due_s, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is not None and entry.due_s == due_s:
                entry.due_s = None
                keys.add(key)
        outcomes = [self._attend(key, entry, now_s) for key in keys if (entry := self._entries.get(key)) is not None]
        return Outcome(
            go=[go for one in outcomes for go in one.go],
            turned=[turned for one in outcomes for turned in one.turned],
            wakes=[wake for one in outcomes for wake in one.wakes],
            probes=[probe for one in outcomes for probe in one.probes],
        )

    def next_due_s(self) -> float | None:
        """When ``tick`` is next due without news; it may find nothing to do. None: not before there are any."""
        return self._due[0][0] if self._due else None

    def report(self, now_s: float) -> list[tuple[RevisionKey, Load]]:
        """Close the period of reports: the load of each revision that has any. Idle ones are forgotten."""
        loads: list[tuple[RevisionKey, Load]] = []
        for key, entry in list(self._entries.items()):
            holder = entry.holder
            report = holder.report(now_s)
            entry.wake_state, load = reported(
                entry.wake_state,
                report,
                level=holder.level,
                waiting_count=holder.waiting_count,
                period_s=self._settings.report_period_s,
            )
            entry.arrived_count = 0
            # Nothing inside now, nothing in the period.
            if not holder.level and not report.concurrency and not report.request_count:
                del self._entries[key]
                self._unready.forget(key)
            else:
                loads.append((key, load))
                self._stirred.add(key)
        return loads

    def told_nobody(self) -> None:
        """The autoscaler is a new one and knows nothing: tell it anew."""
        for key, entry in self._entries.items():
            state = entry.wake_state
            entry.wake_state = WakeState(flip_due_s=state.flip_due_s, flip_count=state.flip_count)
            self._stirred.add(key)

    def give_up_all(self, now_s: float, text: str) -> list[Turned[RequestId]]:
        """Refuse all who wait: we are shutting down."""
        entries = list(self._entries.values())
        return [one for entry in entries for one in self._give_up(entry, now_s, reason=TurnReason.SHUT_DOWN, text=text)]

    def validate(self) -> None:
        """Assert what holds between any two calls; tests call it after every step."""
        for key, entry in self._entries.items():
            entry.holder.validate()
            assert key not in self._facts or entry.pods == self._pods_to_use(key), self
            assert entry.due_s is None or (entry.due_s, key) in self._due, self

    def _open(self, key: RevisionKey, now_s: float) -> _Entry[RequestId]:
        entry = self._entries[key] = _Entry[RequestId](
            Holder(settings=self._settings, random=self._random, now_s=now_s), now_s
        )
        self._set_pods(key, entry, now_s)
        return entry

    def _set_pods(self, key: RevisionKey, entry: _Entry[RequestId], now_s: float) -> list[Go[RequestId]]:
        """Tell a holder its pods; before the revision is known nobody can say how many requests they take."""
        facts = self._facts.get(key)
        if facts is None:
            return []
        is_probed = self._settings.probe_unready_pods and not facts.kubelet_decides
        self._unready.set_pods(key, self._slices.unready_of(key) if is_probed else {}, now_s)
        entry.pods = self._pods_to_use(key)
        slots = self._slots_of(key, entry.pods) if self._slots_of else None
        runs = entry.holder.set_pods(entry.pods, now_s, container_concurrency=facts.container_concurrency, slots=slots)
        return [_go(entry, run) for run in runs]

    def _pods_to_use(self, key: RevisionKey) -> dict[str, PodFacts]:
        return self._slices.pods_of(key) | self._unready.confirmed(key)

    def _pods_changed(self, keys: Iterable[RevisionKey], now_s: float) -> Outcome[RequestId]:
        go: list[Go[RequestId]] = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                go += self._set_pods(key, entry, now_s)
                self._stirred.add(key)
        return Outcome(go=go)

    def _turned_at_once(self, key: RevisionKey, request: RequestId) -> Turned[RequestId] | None:
        """A refusal without a wait, for a revision without pods."""
        facts = self._facts.get(key)
        if facts is None:
            return None
        if facts.serving_state is ServingState.RETIRED:
            return Turned(request=request, reason=TurnReason.RETIRED, text=f"revision {key[1]} is retired")
        if facts.failure is not None:
            return Turned(request=request, reason=TurnReason.FAILED, text=_failed(facts))
        return None

    def _attend(self, key: RevisionKey, entry: _Entry[RequestId], now_s: float) -> Outcome[RequestId]:
        """Look at one revision: who has waited too long, which pods to try again, whether to wake it."""
        text = self._waited_too_long(key)
        turned = [
            Turned(request=request, reason=TurnReason.WAITED, text=text) for request in entry.holder.expire(now_s)
        ]
        go = [_go(entry, run) for run in entry.holder.revive(now_s)]
        probes = self._unready.due(key, now_s, is_waiting=entry.holder.waiting_count > 0)
        return msgspec.structs.replace(self._with(key, entry, now_s, go=go, turned=turned), probes=probes)

    def _waited_too_long(self, key: RevisionKey) -> str:
        facts = self._facts.get(key)
        text = f"no pod was free within {self._settings.queue_wait_max_s:g} s"
        return text if facts is None or facts.delay is None else f"{text}: {facts.delay}"

    def _with(
        self,
        key: RevisionKey,
        entry: _Entry[RequestId],
        now_s: float,
        *,
        go: Sequence[Go[RequestId]],
        turned: Sequence[Turned[RequestId]] = (),
    ) -> Outcome[RequestId]:
        """What is to be done for a revision besides; and when to look again."""
        facts, holder = self._facts.get(key), entry.holder
        unknown_until_s = None
        if facts is None:
            unknown_until_s = entry.since_s + self._settings.revision_wait_max_s
            if unknown_until_s <= now_s:
                unknown_until_s = None
                turned = [*turned, *self._give_up(entry, now_s, reason=TurnReason.UNKNOWN, text=_gone(key))]
        elif facts.failure is not None and not entry.pods and holder.waiting_count:
            entry.was_refused = True
            turned = [*turned, *self._give_up(entry, now_s, reason=TurnReason.FAILED, text=_failed(facts))]
        wakes, wake_due_s = self._wake(key, entry, now_s)
        probe_due_s = self._unready.next_due_s(key, is_waiting=holder.waiting_count > 0)
        dues_s = [s for s in (unknown_until_s, wake_due_s, holder.next_wake_s(), probe_due_s) if s is not None]
        due_s = min(dues_s, default=math.inf)
        # Each report stirs all entries: what is further away would only pile up.
        if due_s <= now_s + 2 * self._settings.report_period_s and (entry.due_s is None or due_s < entry.due_s):
            entry.due_s = due_s
            heapq.heappush(self._due, (due_s, key))
        return Outcome(go=go, turned=turned, wakes=wakes)

    def _wake(self, key: RevisionKey, entry: _Entry[RequestId], now_s: float) -> tuple[Sequence[Wake], float | None]:
        facts = self._facts.get(key)
        if facts is None:
            return (), None
        was_refused, entry.was_refused = entry.was_refused, False
        seen = WakeFacts(
            level=entry.holder.level,
            waiting_count=entry.holder.waiting_count,
            arrived_count=entry.arrived_count,
            serving_state=facts.serving_state,
            desired_count=max(facts.desired_count, len(entry.pods)),
            target_concurrency=facts.target_concurrency / self._settings.count,
            was_refused=was_refused,
        )
        entry.wake_state, decision = wake(entry.wake_state, seen, self._settings, now_s=now_s)
        entry.quiet_level = decision.quiet_level
        if not decision.flip and decision.poke is None:
            return (), decision.next_wake_s
        woken = Wake(key=key, flip=decision.flip, poke=decision.poke, resource_version=facts.resource_version)
        return (woken,), decision.next_wake_s

    def _give_up(
        self, entry: _Entry[RequestId], now_s: float, *, reason: TurnReason, text: str
    ) -> list[Turned[RequestId]]:
        entry.wake_state = calm(entry.wake_state)
        return [Turned(request=request, reason=reason, text=text) for request in entry.holder.give_up(now_s)]


def _go(entry: _Entry[RequestId], run: Run[RequestId]) -> Go[RequestId]:
    return Go(request=run.request, pod=entry.pods[run.address], waited_s=run.waited_s)


def _queue_full(request: RequestId, refused: Refused) -> Turned[RequestId]:
    reason = TurnReason.QUEUE_COUNT if refused.limited_by is Limit.COUNT else TurnReason.QUEUE_BYTES
    text = f"pending request queue full: {refused.depth} requests with {refused.depth_bytes} bytes wait already"
    return Turned(request=request, reason=reason, text=text)


def _failed(facts: RevisionFacts) -> str:
    return f"revision {facts.key[1]} cannot serve: {facts.failure}"


def _gone(key: RevisionKey) -> str:
    return f"there is no revision {key[1]}"
