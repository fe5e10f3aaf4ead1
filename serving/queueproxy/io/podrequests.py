"""Counts and queues the requests of one pod.

``PodRequests`` counts requests, gives them slots or queues them, responds to probes, and decides which headers are
trusted. Probes, and requests that an activator has counted, must have the pod's secret. The order of steps is that of
knative/serving 98e5ef90 pkg/queue; docs/calculations.md lists the differences.
"""

import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from serving.core.model.loadmetric import TOKENS_GAUGE
from serving.core.model.stat import GAUGES_MAX
from serving.core.traffic.meter import Meter, Report
from serving.core.traffic.places import ADMITTED, Admitted, Granted, Queued, Rejected
from serving.net.proxy.forwarding.policy import Timeouts
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.wire.tokens import matches, probe_proof
from serving.queueproxy.gauges import AppGauges
from serving.queueproxy.metrics import RequestMetrics
from serving.queueproxy.podspec import PodSpec

if TYPE_CHECKING:
    from serving.core.model.slo import SloMeter
    from serving.core.traffic.admission import Admission
    from serving.core.traffic.openrequests import RequestView
    from serving.queueproxy.io.dormant import Dormancy
    from serving.queueproxy.tokens import TokenMeter

Headers = tuple[tuple[bytes, bytes], ...]
Origin = tuple[bool, bytes | None, float]
"""A request's origin: whether an activator also counts it, its original Host, and how long it was held, in seconds."""

DIRECT: Origin = (False, None, 0.0)
TEXT: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),)
RETRY: Headers = (*TEXT, (b"Retry-After", b"1"))
QUEUE_FULL = b"pending request queue full"
GUARDED = b"this pod takes requests of activators only: its service limits its callers\n"
NO_ACTIVATOR = b"this pod takes requests of activators only, over TLS\n"
WAITED_TOO_LONG = b"waited too long for a free slot"
_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")
_QUEUE = b"queue"
# The lowest status of a server error.
_FIRST_ERROR = 500
# The longest time that an activator holds a request, ten days in seconds.
_HELD_DIGITS_MAX = 9
_Request = TypeVar("_Request", bound=Hashable)


class PodRequests(Generic[_Request]):
    """The requests of one pod: counts, slots and queue."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        settings = spec.settings
        self.is_ready = False
        self.is_draining = False
        self.last_request_s = -math.inf
        self.dormancy: Dormancy | None = None
        """Freezes the app while it is idle; None if the app always runs."""
        self.request_metrics = RequestMetrics()
        """Counts ended requests."""
        self.gauges = AppGauges(spec.gauges)
        """The gauges reported by the app."""
        self.slo = _meter_of(spec.slo) if spec.slo else None
        """Counts requests by latency; None without a latency goal."""
        self.tokens: TokenMeter[_Request] | None = None
        """Counts tokens in flight; None if nothing uses them, or if the app reads its bodies itself."""
        self._secret = spec.secret.encode()
        self.is_guarded = spec.is_guarded
        self._clock = clock
        self._meter = Meter(now_s=clock(), quirks=settings.quirks)
        self._slots: Admission[_Request] | None = None
        if settings.slots is not None:
            from serving.core.traffic import admission  # noqa: PLC0415 - where pods have slots only

            terms = admission.AdmissionTerms(
                share_max=settings.open_share_max,
                unread_wait_max_s=settings.unread_wait_max_s,
                depth_max=settings.queue_depth_max,
                wait_max_s=settings.queue_wait_max_s,
            )
            self._slots = admission.Admission(terms, capacity=settings.slots, view=self._view())
        self._timeouts = Timeouts(
            total_s=settings.request_timeout_s,
            response_start_s=settings.response_start_timeout_s or math.inf,
            idle_s=settings.idle_timeout_s or math.inf,
        )

    @property
    def inside_count(self) -> int:
        """Requests that run or wait."""
        return self._meter.level

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a slot."""
        slots = self._slots
        return 0 if slots is None else slots.waiting_count + slots.parked_count

    def report(self) -> Report:
        """Close the current report period, and open the next."""
        return self._meter.report(self._clock())

    def current_gauges(self) -> Mapping[str, float]:
        """The gauges of the app, and the mean tokens in flight since the last call."""
        now_s = self._clock()
        gauges = self.gauges.current(now_s)
        if self.tokens is None:
            return gauges
        others = itertools.islice(gauges.items(), GAUGES_MAX - 1)
        return {**dict(others), TOKENS_GAUGE: self.tokens.report(now_s)}

    @contextlib.asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        """Wait until the app runs, and keep it awake for a probe."""
        async with contextlib.nullcontext() if self.dormancy is None else self.dormancy.probing():
            yield

    def skip_idle(self) -> None:
        """Exclude the time in which the app was dormant from the next report."""
        self._meter.skip_idle()

    def wake(self, *, is_held: bool = False, then: Callable[[], None] = lambda: None) -> None:
        """Make the app run, and keep it running for a while if ``is_held``; then call ``then``."""
        if self.dormancy is None:
            then()
            return
        self.dormancy.wake(is_held=is_held)
        self.dormancy.run(then)

    def takes_orders_from(self, head: RequestHead) -> bool:
        """Whether the sender may make the pod drain or wake. Without a secret, every sender may."""
        return not self._secret or self._is_believed(head)

    def _view(self) -> "RequestView[_Request]":
        """How the slots read facts from a request, such as its client. By default, a request has no client."""
        from serving.core.traffic.openrequests import RequestView  # noqa: PLC0415 - as above

        return RequestView()

    def _arrive(
        self, request: _Request, now_s: float, *, proxied: bool, held_s: float, client: Hashable = None
    ) -> Admitted | Queued | Rejected:
        """Count a request, and admit, queue or reject it. An activator has queued it for ``held_s`` seconds.

        ``client`` is the sender of a request whose body is incomplete.
        """
        self.last_request_s = now_s
        self._meter.arrive(now_s, proxied=proxied)
        decision = ADMITTED if self._slots is None else self._slots.arrive(request, now_s, client=client)
        if isinstance(decision, Rejected):
            self._turn_away()
        elif decision is ADMITTED:
            self._end_wait(held_s)
        return decision

    def _end_wait(self, waited_s: float) -> None:
        """Count the wait of a request that now runs."""
        if self.slo is not None and self.slo.slo.is_wait:
            self.slo.record(waited_s)

    def _turn_away(self) -> None:
        """Count a rejected request as late for the latency goal."""
        if self.slo is not None:
            self.slo.record(math.inf)

    def _end(self, status: int, took_s: float, held_s: float) -> None:
        """Count a request that ended with ``status`` after ``took_s`` seconds.

        For the latency goal, the ``held_s`` seconds in the activator's queue are added. Errors of the app are not
        counted for this goal, because they would count as fast responses.
        """
        self.request_metrics.record(status, took_s)
        if self.slo is not None and not self.slo.slo.is_wait and 0 < status < _FIRST_ERROR:
            self.slo.record(took_s + held_s)

    def _expire(self, now_s: float) -> Sequence[_Request]:
        """Remove and return requests whose wait for a slot has expired."""
        assert self._slots is not None
        expired = self._slots.expire(now_s)
        for _ in expired:
            self._turn_away()
        return expired

    def _release(
        self, request: _Request, now_s: float, *, proxied: bool, has_response: bool
    ) -> Sequence[Granted[_Request]]:
        """Stop counting a request; return the requests that get its slot, longest wait first."""
        self._meter.exit(now_s, proxied=proxied)
        return () if self._slots is None else self._slots.end(request, now_s, has_response=has_response)

    def _is_believed(self, head: RequestHead) -> bool:
        secret = head.get(b"k-pod-secret")
        return secret is not None and bool(self._secret) and matches(secret, self._secret)

    def _probe_response(self, head: RequestHead) -> tuple[int, bytes, Headers]:
        """The status, body and headers of the response to a probe."""
        if self.is_draining:
            return 503, b"shutting down", TEXT
        if head.get(b"k-network-probe") != _QUEUE:
            return 400, b"unexpected probe header value", TEXT
        if not self.is_ready:
            return 503, b"the app is not ready", TEXT
        return 200, _QUEUE, (*TEXT, *self._proof(head))

    def _proof(self, head: RequestHead) -> Headers:
        """The proof of this pod's identity. An activator needs it before the cluster lists the pod as ready."""
        nonce = head.get(b"k-network-hash")
        if nonce is None or not self._secret:
            return ()
        return ((b"K-Network-Hash", probe_proof(self._secret, nonce=nonce.decode("latin-1")).encode()),)


def is_probe(head: RequestHead) -> bool:
    """Whether a trusted request is a probe."""
    if head.get(b"k-network-probe") is not None or head.get(b"k-kubelet-probe") is not None:
        return True
    return (head.get(b"user-agent") or b"").startswith(_PROBE_AGENTS)


def _meter_of(goal: str) -> "SloMeter":
    from serving.core.model.slo import SloMeter, read_slo  # noqa: PLC0415 - where there is a goal only

    return SloMeter(read_slo(goal))


def origin_of(head: RequestHead) -> Origin:
    """Whether a trusted request came through an activator, its original Host, and its time in the activator's queue."""
    held_ms = head.get(b"k-held-ms") or b""
    held_s = int(held_ms) / 1000 if held_ms.isdigit() and len(held_ms) <= _HELD_DIGITS_MAX else 0.0
    return head.get(b"k-proxy-request") == b"activator", head.get(b"k-original-host"), held_s
