"""The queue-proxy's decisions about each request.

``PodHandler`` counts a request, gives it a slot or queues it, and sends it to the app; a freed slot goes to the request that
has waited longest. Requests that only our daemons may make (probes, requests that an activator has counted) are trusted with
the pod's secret alone. The order of steps is that of knative/serving 98e5ef90 pkg/queue; docs/calculations.md lists what
differs.
"""

import math
from collections.abc import Callable

from serving.proxy.exchange import Exchange
from serving.proxy.lines import header_lines
from serving.proxy.phase import ExchangeOutcome
from serving.proxy.requesthead import RequestHead
from serving.proxy.timeouts import Timeouts
from serving.queueproxy.gauges import AppGauges
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.request_metrics import RequestMetrics
from serving.traffic.breaker import Admitted, Breaker, Queued
from serving.traffic.meter import Meter, Report
from serving.wire.tokens import matches, probe_proof

__all__ = ["PodHandler"]

_TEXT = (b"Content-Type", b"text/plain; charset=utf-8")
_TEXT_LINES = header_lines(_TEXT)
_RETRY = header_lines(_TEXT, (b"Retry-After", b"1"))
_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")
_QUEUE = b"queue"
# Longest time for which a question about readiness is held, in seconds, whatever it asks for.
_READY_WAIT_MAX_S = 60.0
# Time within which an order to stop follows a container's /wait-for-drain, in seconds: else it is that container alone that
# is started again. Source: knative/serving 98e5ef90, pkg/queue/sharedmain.
_STOP_FOLLOWS_S = 1.0
_ORDERS = {b"/drain": b"POST", b"/wait-for-drain": b"GET"}
_HELP = b"there is /healthz, /readyz, /metrics, /drain and /wait-for-drain"
# What is remembered of a request that counts: whether an activator counts it too, and the Host that it came with there.
_DIRECT: tuple[bool, bytes | None] = (False, None)


class PodHandler:
    """Decides about the requests of one pod."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        settings = spec.settings
        self.is_ready = False
        self.is_draining = False
        self.last_request_s = -math.inf
        self.request_metrics = RequestMetrics()
        """What became of the requests that ended."""
        self.gauges = AppGauges()
        """What the app reports of itself."""
        self._app = spec.app
        self._secret = spec.secret.encode()
        self._clock = clock
        self._meter = Meter(now_s=clock(), quirks=settings.quirks)
        self._breaker: Breaker[Exchange] | None = None
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
        return f"PodHandler({self._breaker or 'no limit'}, {self._meter!r})"

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

    def begin(self, exchange: Exchange) -> None:
        """A request has come: count it, and let it run, wait or go."""
        marks = _DIRECT
        head = exchange.head
        if head.reserved and self._is_believed(head):
            if _is_probe(head):
                self._answer_probe(exchange)
                return
            marks = (head.get(b"k-proxy-request") == b"activator", head.get(b"k-original-host"))
        exchange.context = marks
        exchange.timeouts = self._timeouts
        now_s = exchange.started_s
        self.last_request_s = now_s
        self._meter.arrive(now_s, proxied=marks[0])
        breaker = self._breaker
        if breaker is None:
            self._run(exchange)
            return
        decision = breaker.admit(exchange, now_s)
        if isinstance(decision, Admitted):
            self._run(exchange)
        elif isinstance(decision, Queued):
            exchange.wait_until_s = decision.deadline_s
        else:
            exchange.answer(503, b"pending request queue full", _RETRY)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """The app takes no connection."""
        if not self._is_handed_back(exchange):
            exchange.answer(502, b"the app takes no connection: %b" % str(error).encode())

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """The app died before it answered."""
        del reason
        return self._is_handed_back(exchange)

    def overdue(self, exchange: Exchange) -> None:
        """A request has waited for a slot as long as allowed; others may have, too."""
        assert self._breaker is not None
        for timed_out in self._breaker.expire(max(self._clock(), exchange.wait_until_s)):
            timed_out.request_id.answer(503, b"waited too long for a free slot", _RETRY)

    def finish(self, exchange: Exchange) -> None:
        """A request has ended: its slot goes to the request that has waited longest."""
        marks = exchange.context
        if marks is None:
            return
        assert isinstance(marks, tuple)
        now_s = self._clock()
        self.gauges.take(exchange.answer_wire, now_s)
        self.request_metrics.note(exchange.status, now_s - exchange.started_s)
        self._meter.leave(now_s, proxied=marks[0])
        breaker = self._breaker
        if breaker is not None:
            end = breaker.release if exchange.outcome is ExchangeOutcome.ANSWERED else breaker.cancel
            for granted in end(exchange, now_s):
                self._run(granted.request_id)

    def _run(self, exchange: Exchange) -> None:
        marks = exchange.context
        assert isinstance(marks, tuple)
        exchange.forward(self._app, host=marks[1], trusted=marks[0])

    def _is_handed_back(self, exchange: Exchange) -> bool:
        """Break off instead of answering, if an activator made the request and may send it to another pod."""
        marks = exchange.context
        if not (isinstance(marks, tuple) and marks[0] and exchange.head.may_be_repeated):
            return False
        exchange.cut()
        return True

    def takes_orders_from(self, head: RequestHead) -> bool:
        """Whether the sender may order the pod to drain: without a secret, every sender."""
        return not self._secret or self._is_believed(head)

    def _is_believed(self, head: RequestHead) -> bool:
        given = head.get(b"k-pod-secret")
        return given is not None and bool(self._secret) and matches(given, self._secret)

    def _answer_probe(self, exchange: Exchange) -> None:
        if self.is_draining:
            exchange.answer(503, b"shutting down")
        elif exchange.head.get(b"k-network-probe") != _QUEUE:
            exchange.answer(400, b"unexpected probe header value")
        elif self.is_ready:
            exchange.answer(200, _QUEUE, _TEXT_LINES + self._proof_lines(exchange.head))
        else:
            exchange.answer(503, b"the app is not ready")

    def _proof_lines(self, head: RequestHead) -> bytes:
        """Prove who answers to an activator that asks a pod before the cluster lists it as ready."""
        nonce = head.get(b"k-network-hash")
        if nonce is None or not self._secret:
            return b""
        return header_lines((b"K-Network-Hash", probe_proof(self._secret, nonce=nonce.decode("latin-1")).encode()))


def _is_probe(head: RequestHead) -> bool:
    if head.get(b"k-network-probe") is not None or head.get(b"k-kubelet-probe") is not None:
        return True
    return (head.get(b"user-agent") or b"").startswith(_PROBE_AGENTS)
