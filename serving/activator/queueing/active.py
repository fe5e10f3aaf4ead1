"""A revision with requests, now or a moment ago, and the detection of its silent pods.

Input: its requests, its pods and its settings as they change, with the time. Output: dispatches, rejections, and whether to
wake it. One exists for each revision with requests; none for an idle one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from serving.activator.queueing.readiness import Dispatch, Rejection, RejectionReason, RevisionWake, SilentPod
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.throttler import RevisionThrottler, Started
from serving.activator.queueing.wake import RevisionLoad, WakeInput, WakeState, calm, reported, wake
from serving.model.knative import RevisionKey, ServingState
from serving.settings.activator import ActivatorSettings
from serving.traffic.breaker import Queued, QueueLimit, Rejected
from serving.traffic.ejection import EjectionReport

RequestId = TypeVar("RequestId", bound=Hashable)

# As many requests of a pod must wait; a pod of fewer slots is given more time instead.
_REQUESTS_MIN = 3
_FEW_FACTOR = 4
# With each look the slowest answer counts 1 % less: half of it after 69 s.
_SLOWEST_DECAY = 0.99
# How much longer than the slowest answer so far a request must wait.
_SLOW_FACTOR = 2


class SilenceWatch(Generic[RequestId]):
    """Detects pods that answer nothing, by comparing the requests of one revision between two calls."""

    __slots__ = ("_alive_s", "_begun", "_looked_s", "_slowest_s", "_unanswered")

    def __init__(self) -> None:
        # Requests without an answer: their pod, and when they were first seen.
        self._unanswered: dict[RequestId, tuple[str, float]] = {}
        self._begun: set[RequestId] = set()
        self._alive_s: dict[str, float] = {}
        self._slowest_s = 0.0
        self._looked_s = 0.0

    def __repr__(self) -> str:
        return f"SilenceWatch({len(self._unanswered)} without an answer, slowest {self._slowest_s:g} s)"

    def look(
        self,
        in_flight: Mapping[RequestId, str],
        answered_s: Mapping[str, float],
        now_s: float,
        *,
        has_begun: Callable[[RequestId], bool],
        slots_per_pod: int,
        after_s: float,
    ) -> list[str]:
        """The silent pods, those with the most requests first.

        ``in_flight`` is the pod of each request, ``answered_s`` when each pod last ended a request with an answer.
        ``has_begun`` says whether the answer to a request has begun. ``slots_per_pod`` is 0 without a limit.
        """
        begun = {request for request in in_flight if has_begun(request)}
        self._alive_s = {**self._alive_s, **answered_s} | {in_flight[one]: now_s for one in begun - self._begun}
        self._learn(in_flight, begun, now_s)
        self._unanswered = {
            request: self._unanswered.get(request, (pod, now_s))
            for request, pod in in_flight.items()
            if request not in begun
        }
        self._begun, self._looked_s = begun, now_s
        needed = min(_REQUESTS_MIN, slots_per_pod or _REQUESTS_MIN)
        patience_s = max(after_s, self._slowest_s * _SLOW_FACTOR) * (1 if needed == _REQUESTS_MIN else _FEW_FACTOR)
        since_s = now_s - patience_s
        waiting = Counter(pod for pod, seen_s in self._unanswered.values() if seen_s <= since_s)
        self._alive_s = {pod: at_s for pod, at_s in self._alive_s.items() if at_s > since_s}
        if not self._alive_s:
            return []
        return [pod for pod, count in waiting.most_common() if count >= needed and pod not in self._alive_s]

    def _learn(self, in_flight: Mapping[RequestId, str], begun: set[RequestId], now_s: float) -> None:
        """Note how long requests took that were answered since the last look.

        A request that is gone was answered, or given up by its client: it counts if its pod has answered at all since then.
        """
        self._slowest_s *= _SLOWEST_DECAY
        for request, (pod, seen_s) in self._unanswered.items():
            is_gone = request not in in_flight and self._alive_s.get(pod, 0.0) >= self._looked_s
            if is_gone or request in begun:
                self._slowest_s = max(self._slowest_s, now_s - seen_s)


class ActiveRevision(Generic[RequestId]):
    """The requests of one revision. ``random`` gives numbers from 0 to below 1."""

    __slots__ = (
        "_arrived_count",
        "_has_rejected",
        "_quiet_level",
        "_silence",
        "_since_s",
        "_wake_state",
        "key",
        "pods",
        "throttler",
    )

    def __init__(
        self, key: RevisionKey, settings: ActivatorSettings, *, random: Callable[[], float], now_s: float
    ) -> None:
        self.key = key
        self.throttler: RevisionThrottler[RequestId] = RevisionThrottler(settings=settings, random=random, now_s=now_s)
        self.pods: dict[str, ServedPod] = {}
        self._since_s = now_s
        self._wake_state = WakeState()
        self._arrived_count = 0
        self._quiet_level = 0
        self._has_rejected = False
        self._silence = SilenceWatch[RequestId]()

    def __repr__(self) -> str:
        return f"ActiveRevision({self.key[1]}, {self.throttler!r})"

    def arrive(
        self,
        request: RequestId,
        revision: ServedRevision | None,
        now_s: float,
        *,
        weight_bytes: int,
        session: int | None = None,
    ) -> tuple[Dispatch[RequestId] | Queued | Rejection[RequestId], bool]:
        """Return the decision about a new request, and whether the revision needs a tick soon."""
        if revision is not None and not self.pods and (rejection := _rejected_at_once(request, revision)) is not None:
            self._has_rejected = rejection.reason is RejectionReason.FAILED
            return rejection, True
        answer = self.throttler.arrive(request, now_s, weight_bytes=weight_bytes, session=session)
        if isinstance(answer, Rejected):
            return _queue_full(request, answer), False
        self._arrived_count += 1
        if isinstance(answer, Queued):
            return answer, True
        return Dispatch(request=request, pod=self.pods[answer.address]), self.throttler.level > self._quiet_level

    def finish(self, request: RequestId, now_s: float, *, is_answered: bool) -> Sequence[Dispatch[RequestId]]:
        """End a request; return the requests that begin."""
        started = self.throttler.finish(request, now_s, is_answered=is_answered)
        if self._wake_state.known_waiting_count and not self.throttler.waiting_count:
            self._wake_state = calm(self._wake_state)
        return self.dispatches(started) if started else ()

    def set_pods(
        self, pods: dict[str, ServedPod], now_s: float, *, container_concurrency: int, slots: Mapping[str, int] | None
    ) -> list[Dispatch[RequestId]]:
        """Replace the usable pods; return the requests that begin."""
        self.pods = pods
        started = self.throttler.set_pods(pods, now_s, container_concurrency=container_concurrency, slots=slots)
        return self.dispatches(started)

    def dispatches(self, started: Sequence[Started[RequestId]]) -> list[Dispatch[RequestId]]:
        """The dispatches of requests that begin."""
        return [Dispatch(request=one.request, pod=self.pods[one.address], waited_s=one.waited_s) for one in started]

    def expire(
        self, revision: ServedRevision | None, now_s: float, settings: ActivatorSettings
    ) -> list[Rejection[RequestId]]:
        """Reject requests whose queue timeout has expired."""
        text = f"no pod was free within {settings.queue_wait_max_s:g} s"
        if revision is not None and revision.delay is not None:
            text = f"{text}: {revision.delay}"
        expired = self.throttler.expire(now_s)
        return [Rejection(request=request, reason=RejectionReason.WAITED, text=text) for request in expired]

    def reject_hopeless(
        self, revision: ServedRevision | None, now_s: float, settings: ActivatorSettings
    ) -> tuple[list[Rejection[RequestId]], float | None]:
        """Reject all queued requests if the revision cannot serve them; also return the deadline of an unknown revision."""
        if revision is None:
            until_s = self._since_s + settings.revision_wait_max_s
            if now_s < until_s:
                return [], until_s
            return self.reject_waiting(now_s, reason=RejectionReason.UNKNOWN, text=_unknown(self.key)), None
        if revision.failure is None or self.pods or not self.throttler.waiting_count:
            return [], None
        self._has_rejected = True
        return self.reject_waiting(now_s, reason=RejectionReason.FAILED, text=_failed(revision)), None

    def remove(self, container_concurrency: int, now_s: float) -> list[Rejection[RequestId]]:
        """Remove a deleted revision: running requests continue, queued ones are rejected."""
        self.set_pods({}, now_s, container_concurrency=container_concurrency, slots=None)
        return self.reject_waiting(now_s, reason=RejectionReason.UNKNOWN, text=_unknown(self.key))

    def reject_waiting(self, now_s: float, *, reason: RejectionReason, text: str) -> list[Rejection[RequestId]]:
        """Reject all requests that wait."""
        self._wake_state = calm(self._wake_state)
        waiting = self.throttler.expire(now_s, all_waiting=True)
        return [Rejection(request=request, reason=reason, text=text) for request in waiting]

    def wake(
        self, revision: ServedRevision, now_s: float, settings: ActivatorSettings
    ) -> tuple[Sequence[RevisionWake], float | None]:
        """Whether to wake the revision now, and when to ask again without news."""
        has_rejected, self._has_rejected = self._has_rejected, False
        seen = WakeInput(
            level=self.throttler.level,
            waiting_count=self.throttler.waiting_count,
            arrived_count=self._arrived_count,
            serving_state=revision.serving_state,
            desired_count=max(revision.desired_count, len(self.pods)),
            # One of two activators gets half of the requests.
            target_concurrency=revision.target_concurrency / settings.count,
            has_rejected=has_rejected,
        )
        self._wake_state, decision = wake(self._wake_state, seen, settings, now_s=now_s)
        self._quiet_level = decision.quiet_level
        if not decision.flip and decision.poke is None:
            return (), decision.next_wake_s
        woken = RevisionWake(
            key=self.key, flip=decision.flip, poke=decision.poke, resource_version=revision.resource_version
        )
        return (woken,), decision.next_wake_s

    def eject_silent(
        self, now_s: float, settings: ActivatorSettings, *, has_begun: Callable[[RequestId], bool]
    ) -> list[SilentPod[RequestId]]:
        """Eject pods that answer nothing while others do; return all silent pods with their requests."""
        pods = self.throttler.pods
        if pods is None:
            return []
        in_flight = self.throttler.address_of
        silent = self._silence.look(
            in_flight,
            pods.answered_s,
            now_s,
            has_begun=has_begun,
            slots_per_pod=pods.slots_per_pod,
            after_s=settings.eject_after_silence_s,
        )
        ejected = {address for address in silent if self.throttler.eject_silent(address, now_s)}
        # A request may have been on its way to a pod when that was ejected.
        return [
            SilentPod(key=self.key, pod=self.pods[address], is_new=address in ejected, requests=requests)
            for address in sorted(pods.silent)
            if (requests := tuple(one for one, pod in in_flight.items() if pod == address and not has_begun(one)))
        ]

    def ejections(self, now_s: float, *, wall_s: float) -> list[EjectionReport]:
        """Pods without a response since their last failure; ``wall_s`` is now in seconds since the epoch."""
        pods = self.throttler.pods
        if pods is None or not pods.ejections:
            return []
        in_flight, ahead_s = pods.in_flight, wall_s - now_s
        return [
            EjectionReport(
                revision=self.key[1],
                pod=self.pods[address].name,
                address=address,
                is_silent=one.is_silent,
                failure_count=one.failure_count,
                in_flight_count=in_flight.get(address, 0),
                since_wall_s=one.since_s + ahead_s,
                until_wall_s=None if one.until_s is None else one.until_s + ahead_s,
            )
            for address, one in sorted(pods.ejections.items())
        ]

    def report(self, now_s: float, settings: ActivatorSettings) -> RevisionLoad | None:
        """Close the period of reports: its load, or None if there was none and no request is inside."""
        level, report = self.throttler.level, self.throttler.report(now_s)
        self._wake_state, load = reported(
            self._wake_state,
            report,
            level=level,
            waiting_count=self.throttler.waiting_count,
            period_s=settings.report_period_s,
        )
        self._arrived_count = 0
        return load if level or report.concurrency or report.request_count else None

    def forget_reports(self) -> None:
        """Report and poke from the beginning, after the autoscaler has restarted."""
        state = self._wake_state
        self._wake_state = WakeState(flip_due_s=state.flip_due_s, flip_count=state.flip_count)


def _rejected_at_once(request: RequestId, revision: ServedRevision) -> Rejection[RequestId] | None:
    """A rejection without a wait, for a revision without pods."""
    if revision.serving_state is ServingState.RETIRED:
        text = f"revision {revision.key[1]} is retired"
        return Rejection(request=request, reason=RejectionReason.RETIRED, text=text)
    if revision.failure is not None:
        return Rejection(request=request, reason=RejectionReason.FAILED, text=_failed(revision))
    return None


def _queue_full(request: RequestId, rejected: Rejected) -> Rejection[RequestId]:
    is_count = rejected.limited_by is QueueLimit.COUNT
    reason = RejectionReason.QUEUE_COUNT if is_count else RejectionReason.QUEUE_BYTES
    text = f"pending request queue full: {rejected.depth} requests with {rejected.depth_bytes} bytes wait already"
    return Rejection(request=request, reason=reason, text=text)


def _failed(revision: ServedRevision) -> str:
    return f"revision {revision.key[1]} cannot serve: {revision.failure}"


def _unknown(key: RevisionKey) -> str:
    return f"there is no revision {key[1]}"
