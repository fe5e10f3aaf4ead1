"""What a queue-proxy knows of its pod's requests, whether it forwards them or runs in the app's process.

``PodRequests`` counts requests, gives them slots or queues them, answers probes, and decides whose headers are trusted:
requests that only our daemons may make (probes, requests that an activator has counted) carry the pod's secret. The order of
steps is that of knative/serving 98e5ef90 pkg/queue; docs/calculations.md lists what differs.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from serving.proxy.forwarding.timeouts import Timeouts
from serving.proxy.http1.requesthead import RequestHead
from serving.queueproxy.gauges import AppGauges
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.request_metrics import RequestMetrics
from serving.traffic.breaker import ADMITTED, Admitted, Breaker, Granted, Queued, Rejected, TimedOut
from serving.traffic.meter import Meter, Report
from serving.wire.tokens import matches, probe_proof

Headers = tuple[tuple[bytes, bytes], ...]
Origin = tuple[bool, bytes | None]
"""Of a request: whether an activator counts it too, and the Host that it had there."""

DIRECT: Origin = (False, None)
TEXT: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),)
RETRY: Headers = (*TEXT, (b"Retry-After", b"1"))
QUEUE_FULL = b"pending request queue full"
WAITED_TOO_LONG = b"waited too long for a free slot"
_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")
_QUEUE = b"queue"
_Request = TypeVar("_Request", bound=Hashable)


class PodRequests(Generic[_Request]):
    """The requests of one pod."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        settings = spec.settings
        self.is_ready = False
        self.is_draining = False
        self.last_request_s = -math.inf
        self.request_metrics = RequestMetrics()
        """What became of the requests that ended."""
        self.gauges = AppGauges()
        """What the app reports of itself."""
        self._secret = spec.secret.encode()
        self._clock = clock
        self._meter = Meter(now_s=clock(), quirks=settings.quirks)
        self._breaker: Breaker[_Request] | None = None
        if settings.slots is not None:
            self._breaker = Breaker(
                capacity=settings.slots, depth_max=settings.queue_depth_max, wait_max_s=settings.queue_wait_max_s
            )
        self._timeouts = Timeouts(
            total_s=settings.request_timeout_s,
            answer_start_s=settings.response_start_timeout_s or math.inf,
            idle_s=settings.idle_timeout_s or math.inf,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._breaker or 'no limit'}, {self._meter!r})"

    @property
    def inside_count(self) -> int:
        """Requests that run or wait."""
        return self._meter.level

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a slot."""
        return self._breaker.waiting_count if self._breaker is not None else 0

    def report(self) -> Report:
        """What happened since the last report; opens the next."""
        return self._meter.report(self._clock())

    def takes_orders_from(self, head: RequestHead) -> bool:
        """Whether the sender may order the pod to drain: without a secret, every sender."""
        return not self._secret or self._is_believed(head)

    def _arrive(self, request: _Request, now_s: float, *, proxied: bool) -> Admitted | Queued | Rejected:
        """Count a request, and admit, queue or reject it."""
        self.last_request_s = now_s
        self._meter.arrive(now_s, proxied=proxied)
        return ADMITTED if self._breaker is None else self._breaker.admit(request, now_s)

    def _expire(self, now_s: float) -> Sequence[TimedOut[_Request]]:
        """The requests that have waited for a slot as long as they may."""
        assert self._breaker is not None
        return self._breaker.expire(now_s)

    def _leave(
        self, request: _Request, now_s: float, *, proxied: bool, is_answered: bool
    ) -> Sequence[Granted[_Request]]:
        """Count a request out; its slot goes to the requests that are returned, which have waited longest."""
        self._meter.leave(now_s, proxied=proxied)
        breaker = self._breaker
        if breaker is None:
            return ()
        return breaker.release(request, now_s) if is_answered else breaker.cancel(request, now_s)

    def _is_believed(self, head: RequestHead) -> bool:
        given = head.get(b"k-pod-secret")
        return given is not None and bool(self._secret) and matches(given, self._secret)

    def _probe_answer(self, head: RequestHead) -> tuple[int, bytes, Headers]:
        """The status, the body and the headers that answer a probe."""
        if self.is_draining:
            return 503, b"shutting down", TEXT
        if head.get(b"k-network-probe") != _QUEUE:
            return 400, b"unexpected probe header value", TEXT
        if not self.is_ready:
            return 503, b"the app is not ready", TEXT
        return 200, _QUEUE, (*TEXT, *self._proof(head))

    def _proof(self, head: RequestHead) -> Headers:
        """Prove who answers to an activator that asks a pod before the cluster lists it as ready."""
        nonce = head.get(b"k-network-hash")
        if nonce is None or not self._secret:
            return ()
        return ((b"K-Network-Hash", probe_proof(self._secret, nonce=nonce.decode("latin-1")).encode()),)


def is_probe(head: RequestHead) -> bool:
    """Whether a trusted request is a probe."""
    if head.get(b"k-network-probe") is not None or head.get(b"k-kubelet-probe") is not None:
        return True
    return (head.get(b"user-agent") or b"").startswith(_PROBE_AGENTS)
