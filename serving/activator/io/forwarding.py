"""Forwards requests to pods with the activator's credentials.

Caches timeouts per revision, and schedules router ticks.
"""

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from serving.activator.queueing.outcome import RoutingOutcome
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.router import RequestRouter
from serving.activator.queueing.slices import ServedPod
from serving.core.model.knative import RevisionKey
from serving.core.settings.activator import SECRETS_OF_PODS
from serving.net.proxy.forwarding.policy import Timeouts
from serving.net.proxy.http1.lines import header_lines
from serving.net.wire.tokens import pod_secret, revision_secret

_TEXT = b"activator request timeout"
# About 2 MB, regardless of how many pods come and go. Recreating a dropped record takes microseconds.
_KNOWN_MAX = 2_048
RequestId = TypeVar("RequestId", bound=Hashable)


class PodCredentials:
    """Derives the secrets of pods from the cluster key.

    ``secrets_of`` says whether each pod has its own secret, or all pods of a revision share one.
    """

    def __init__(
        self, key: bytes, *, secrets_of: str, revision: Callable[[RevisionKey], ServedRevision | None]
    ) -> None:
        self._key = key
        self._are_of_pods = secrets_of == SECRETS_OF_PODS
        self._revision = revision

    def secret(self, pod: ServedPod, key: RevisionKey) -> str:
        """The secret that a pod shares with the activators; "" if the pod's name or its revision is unknown."""
        if self._are_of_pods:
            return pod_secret(self._key, namespace=pod.namespace, pod=pod.name) if pod.name else ""
        revision = self._revision(key)
        known = revision is not None and revision.uid
        return revision_secret(self._key, namespace=key[0], uid=known) if known else ""

    def lines(self, pod: ServedPod, key: RevisionKey) -> bytes:
        """The header lines added to requests for a pod; none for a ScaledWorkload's app."""
        revision = self._revision(key)
        if revision is not None and revision.is_workload:
            return b""
        secret = self.secret(pod, key)
        secret_lines = [(b"K-Pod-Secret", secret.encode())] if secret else []
        return header_lines((b"K-Proxy-Request", b"activator"), *secret_lines)


class RevisionTimeouts:
    """Caches the timeouts of each revision. ``unknown_s`` is the total timeout of an unknown revision."""

    def __init__(self, revision: Callable[[RevisionKey], ServedRevision | None], *, unknown_s: float) -> None:
        self._revision = revision
        self._unknown = Timeouts(total_s=unknown_s, text=_TEXT)
        self._known: dict[RevisionKey, tuple[ServedRevision, Timeouts]] = {}

    def of(self, key: RevisionKey) -> Timeouts:
        """The timeouts for requests to a revision."""
        revision = self._revision(key)
        if revision is None:
            return self._unknown
        known = self._known.get(key)
        if known is not None and known[0] is revision:
            return known[1]
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        timeouts = Timeouts(
            total_s=revision.timeout_s,
            response_start_s=math.inf
            if revision.response_start_timeout_s is None
            else revision.response_start_timeout_s,
            idle_s=math.inf if revision.idle_timeout_s is None else revision.idle_timeout_s,
            text=_TEXT,
        )
        self._known[key] = (revision, timeouts)
        return timeouts


class Ticker(Generic[RequestId]):
    """Calls ``tick`` of one router when work is due; ``apply`` executes the outcome."""

    def __init__(
        self,
        router: RequestRouter[RequestId],
        *,
        apply: Callable[[RoutingOutcome[RequestId]], None],
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._apply = apply
        self._clock = clock
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._later_s = math.inf

    def schedule(self) -> None:
        """Schedule a tick at the end of this event loop iteration if anything changed.

        Simultaneous requests share the tick.
        """
        if self._soon is None and self._router.schedule.has_pending_work:
            self._soon = asyncio.get_running_loop().call_soon(self._tick)

    def close(self) -> None:
        """Stop ticking."""
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()

    def _tick(self) -> None:
        self._soon = None
        try:
            self._apply(self._router.tick(self._clock()))
        finally:
            self._arm()

    def _arm(self) -> None:
        """Set the timer for the next due tick."""
        due_s = self._router.schedule.next_due_s()
        if due_s is not None and due_s != self._later_s:
            if self._later is not None:
                self._later.cancel()
            self._later_s = due_s
            self._later = asyncio.get_running_loop().call_later(max(0.0, due_s - self._clock()), self._tick_later)

    def _tick_later(self) -> None:
        self._later = None
        self._later_s = math.inf
        self._tick()
