"""Counts, queues and forwards the requests of one pod.

``PodRequests`` counts requests, gives them slots or queues them, responds to probes, and decides which headers are trusted:
requests that only our daemons may make (probes, requests that an activator has counted) carry the pod's secret. The order of
steps is that of knative/serving 98e5ef90 pkg/queue; docs/calculations.md lists what differs.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from serving.model.identities import ACTIVATOR
from serving.model.loadmetric import TOKENS_GAUGE
from serving.model.stat import GAUGES_MAX
from serving.proxy.forwarding.attempt import UNDELIVERED
from serving.proxy.forwarding.exchange import Exchange
from serving.proxy.forwarding.phase import ExchangeOutcome
from serving.proxy.forwarding.policy import Timeouts
from serving.proxy.http1.lines import header_lines
from serving.proxy.http1.pool import AppConnector, Pool
from serving.proxy.http1.rendering import render_pod_wait
from serving.proxy.http1.requesthead import RequestHead, is_grpc_call
from serving.queueproxy.gauges import REQUEST_REPORT, AppGauges
from serving.queueproxy.metrics import RequestMetrics
from serving.queueproxy.podspec import PodSpec
from serving.traffic.breaker import ADMITTED, Admitted, Breaker, Granted, Queued, Rejected, TimedOut
from serving.traffic.meter import Meter, Report
from serving.wire.tokens import matches, probe_proof

if TYPE_CHECKING:
    from serving.model.slo import SloMeter
    from serving.queueproxy.io.dormant import Dormancy
    from serving.queueproxy.tokens import TokenMeter

Headers = tuple[tuple[bytes, bytes], ...]
Origin = tuple[bool, bytes | None, float]
"""The origin of a request: whether an activator counts it too, its original Host, and for how many seconds it was held."""

DIRECT: Origin = (False, None, 0.0)
TEXT: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"),)
RETRY: Headers = (*TEXT, (b"Retry-After", b"1"))
QUEUE_FULL = b"pending request queue full"
GUARDED = b"this pod takes requests of activators only: its service limits its callers\n"
NO_ACTIVATOR = b"this pod takes requests of activators only, over TLS\n"
OUT_OF_MEMORY = b"the app ran out of memory while it handled the request"
WAITED_TOO_LONG = b"waited too long for a free slot"
_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")
_QUEUE = b"queue"
# The first status that is an error of a server.
_FIRST_ERROR = 500
# An activator holds nothing for longer than ten days.
_HELD_DIGITS_MAX = 9
_Request = TypeVar("_Request", bound=Hashable)

_RETRY_LINES = header_lines(*RETRY)


class PodRequests(Generic[_Request]):
    """The requests of one pod."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        settings = spec.settings
        self.is_ready = False
        self.is_draining = False
        self.last_request_s = -math.inf
        self.dormancy: Dormancy | None = None
        """Freezes the app while it is idle; None where it always runs."""
        self.request_metrics = RequestMetrics()
        """Results of ended requests."""
        self.gauges = AppGauges(spec.gauges)
        """Gauges reported by the app."""
        self.slo = _meter_of(spec.slo) if spec.slo else None
        """Counts requests by how late they are; None without a goal."""
        self.tokens: TokenMeter | None = None
        """Counts tokens in flight; None where nothing depends on them, or the app gets its bodies itself."""
        self._secret = spec.secret.encode()
        self.is_guarded = spec.is_guarded
        self._clock = clock
        self._meter = Meter(now_s=clock(), quirks=settings.quirks)
        self._breaker: Breaker[_Request] | None = None
        if settings.slots is not None:
            self._breaker = Breaker(
                capacity=settings.slots, depth_max=settings.queue_depth_max, wait_max_s=settings.queue_wait_max_s
            )
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
        return self._breaker.waiting_count if self._breaker is not None else 0

    def report(self) -> Report:
        """Close the period since the last report, and open the next."""
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
        """Leave the time for which the app slept out of the next report."""
        self._meter.skip_idle()

    def wake(self, *, is_held: bool = False, then: Callable[[], None] = lambda: None) -> None:
        """Make the app run, and keep it awake for a while if it is held; ``then`` is called once it runs."""
        if self.dormancy is None:
            then()
            return
        self.dormancy.wake(is_held=is_held)
        self.dormancy.run(then)

    def takes_orders_from(self, head: RequestHead) -> bool:
        """Whether the sender may order the pod to drain: without a secret, every sender."""
        return not self._secret or self._is_believed(head)

    def _arrive(self, request: _Request, now_s: float, *, proxied: bool, held_s: float) -> Admitted | Queued | Rejected:
        """Count a request, which an activator held for ``held_s`` seconds, and admit, queue or reject it."""
        self.last_request_s = now_s
        self._meter.arrive(now_s, proxied=proxied)
        decision = ADMITTED if self._breaker is None else self._breaker.admit(request, now_s)
        if isinstance(decision, Rejected):
            self._turn_away()
        elif decision is ADMITTED:
            self._end_wait(held_s)
        return decision

    def _end_wait(self, waited_s: float) -> None:
        """Count the wait of a request that runs now."""
        if self.slo is not None and self.slo.slo.is_wait:
            self.slo.note(waited_s)

    def _turn_away(self) -> None:
        """Count a request that gets no place as late, whatever the goal is."""
        if self.slo is not None:
            self.slo.note(math.inf)

    def _end(self, status: int, took_s: float, held_s: float) -> None:
        """Count a request that ended with a status. Errors of the app say nothing of its speed."""
        self.request_metrics.note(status, took_s)
        if self.slo is not None and not self.slo.slo.is_wait and 0 < status < _FIRST_ERROR:
            self.slo.note(took_s + held_s)

    def _expire(self, now_s: float) -> Sequence[TimedOut[_Request]]:
        """Remove and return requests whose wait for a slot has expired."""
        assert self._breaker is not None
        expired = self._breaker.expire(now_s)
        for _ in expired:
            self._turn_away()
        return expired

    def _leave(
        self, request: _Request, now_s: float, *, proxied: bool, has_response: bool
    ) -> Sequence[Granted[_Request]]:
        """Stop counting a request; return the requests that get its slot, longest wait first."""
        self._meter.leave(now_s, proxied=proxied)
        breaker = self._breaker
        if breaker is None:
            return ()
        return breaker.release(request, now_s) if has_response else breaker.cancel(request, now_s)

    def _is_believed(self, head: RequestHead) -> bool:
        given = head.get(b"k-pod-secret")
        return given is not None and bool(self._secret) and matches(given, self._secret)

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
        """Prove this pod's identity to an activator that probes before the cluster lists the pod as ready."""
        nonce = head.get(b"k-network-hash")
        if nonce is None or not self._secret:
            return ()
        return ((b"K-Network-Hash", probe_proof(self._secret, nonce=nonce.decode("latin-1")).encode()),)


def is_probe(head: RequestHead) -> bool:
    """Whether a trusted request is a probe."""
    if head.get(b"k-network-probe") is not None or head.get(b"k-kubelet-probe") is not None:
        return True
    return (head.get(b"user-agent") or b"").startswith(_PROBE_AGENTS)


class PodHandler(PodRequests[Exchange]):
    """Decides about the requests of one pod, as a ``Handler`` of the HTTP engine."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        super().__init__(spec, clock=clock)
        self.tokens = _tokens_from(clock()) if spec.counts_tokens else None
        self._app, self._tcp_ports = spec.app, spec.tcp_ports
        self._http = spec.settings.http
        self._relays: Pool | None = None
        self._extra = header_lines(REQUEST_REPORT) if spec.gauges else b""
        # A pod's certificate passes the handshake too; requests come from activators only.
        self._is_guarded = spec.settings.inner_tls.is_strict
        self._oom_folders = spec.oom_folders
        self._oom_kill_count = 0
        self._oom_at_s = -math.inf

    def begin(self, exchange: Exchange) -> None:
        """Count a new request, and run, queue or reject it."""
        if self._is_guarded and exchange.peer.identity != ACTIVATOR:
            exchange.respond(403, NO_ACTIVATOR)
            return
        origin = DIRECT
        head = exchange.head
        if head.reserved and self._is_believed(head):
            if is_probe(head):
                status, body, headers = self._probe_response(head)
                exchange.respond(status, body, header_lines(*headers))
                return
            origin = origin_of(head)
        if self.is_guarded and not origin[0]:
            exchange.respond(403, GUARDED, header_lines(*TEXT))
            return
        exchange.context = origin
        exchange.timeouts = self._timeouts
        if exchange.request_complete:
            self._admit(exchange, exchange.started_s)
        else:
            exchange.await_body(lambda: self._admit(exchange, self._clock()))

    def _admit(self, exchange: Exchange, now_s: float) -> None:
        if self.tokens is not None:
            self.tokens.arrive(exchange, _tokens_in(exchange), now_s)
        proxied, _, held_s = _origin(exchange)
        decision = self._arrive(exchange, now_s, proxied=proxied, held_s=held_s)
        if isinstance(decision, Admitted):
            self._run(exchange)
        elif isinstance(decision, Queued):
            exchange.wait_until_s = decision.deadline_s
        else:
            exchange.respond(503, QUEUE_FULL, _RETRY_LINES)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Handle an app that accepts no connection: let an activator send the request to another pod."""
        text = b"the app takes no connection: %b" % str(error).encode()
        if _is_proxied(exchange):
            exchange.respond(503, text, header_lines(*TEXT) + UNDELIVERED)
        else:
            exchange.respond(502, text)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Handle an app that died before it responded.

        A repeatable request of an activator is cut off: the activator sends it to another pod. After an OOM kill it is
        answered instead, because it may be what took the memory.
        """
        del reason
        if self._is_out_of_memory(exchange):
            exchange.respond(502, OUT_OF_MEMORY)
            return True
        if not (_is_proxied(exchange) and exchange.head.may_be_repeated):
            return False
        exchange.cut()
        return True

    def overdue(self, exchange: Exchange) -> None:
        """Reject requests with an expired wait for a slot."""
        for timed_out in self._expire(max(self._clock(), exchange.wait_until_s)):
            timed_out.request_id.respond(503, WAITED_TOO_LONG, _RETRY_LINES)

    def finish(self, exchange: Exchange) -> None:
        """Pass the slot of an ended request to the longest waiting one."""
        origin = exchange.context
        if origin is None:
            return
        assert isinstance(origin, tuple)
        now_s = self._clock()
        self.gauges.take(exchange.response_wire, now_s)
        self._end(exchange.status, now_s - exchange.started_s, origin[2])
        if exchange.awaits_body:
            return
        if self.tokens is not None:
            self.tokens.leave(exchange, now_s)
        has_response = exchange.outcome is ExchangeOutcome.ANSWERED
        for granted in self._leave(exchange, now_s, proxied=origin[0], has_response=has_response):
            self._end_wait(granted.waited_s + _origin(granted.request_id)[2])
            granted.request_id.response_headers += render_pod_wait(granted.waited_s)
            self._run(granted.request_id)
        if self.dormancy is not None and not self._meter.level:
            self.dormancy.went_idle()

    def _run(self, exchange: Exchange) -> None:
        if self.dormancy is None:
            self._forward(exchange)
        else:
            self.dormancy.run(functools.partial(self._forward_awake, exchange, self._clock()))

    def _forward_awake(self, exchange: Exchange, since_s: float) -> None:
        exchange.response_headers += render_pod_wait(self._clock() - since_s)
        self._forward(exchange)

    def _forward(self, exchange: Exchange) -> None:
        origin = _origin(exchange)
        if exchange.head.upgrade is not None and origin[0] and self._relay(exchange):
            return
        # A gRPC call exists in HTTP/2 alone, so an app that takes one speaks it, whatever its port is named.
        is_call = exchange.is_http2 and is_grpc_call(exchange.head)
        exchange.forward(self._app, host=origin[1], extra=self._extra, trusted=origin[0], over_http2=is_call)

    def _relay(self, exchange: Exchange) -> bool:
        """Relay a TCP connection; False if the request is none."""
        from serving.proxy.forwarding.relay import RelayPool, relay_port  # noqa: PLC0415 - most pods take no TCP

        port = relay_port(exchange.head)
        if port is None:
            return False
        if self._relays is None:
            self._relays = RelayPool(self._http, clock=self._clock)
            self._relays.connector = AppConnector()
        exchange.forward((self._app[0], self._tcp_ports.get(port, self._app[1])), pool=self._relays)
        return True

    def _is_out_of_memory(self, exchange: Exchange) -> bool:
        """Whether the app was killed for its memory while it handled the request."""
        if not self._oom_folders:
            return False
        from serving.queueproxy.io.processes import oom_kill_count  # noqa: PLC0415 - where there are cgroups only

        kill_count = oom_kill_count(self._oom_folders)
        if kill_count > self._oom_kill_count:
            self._oom_at_s = self._clock()
        self._oom_kill_count = kill_count
        return exchange.started_s <= self._oom_at_s


def _meter_of(goal: str) -> "SloMeter":
    from serving.model.slo import SloMeter, read_slo  # noqa: PLC0415 - where there is a goal only

    return SloMeter(read_slo(goal))


def _tokens_from(now_s: float) -> "TokenMeter":
    from serving.queueproxy.tokens import TokenMeter  # noqa: PLC0415 - before model servers only

    return TokenMeter(now_s)


def _tokens_in(exchange: Exchange) -> int:
    """The tokens of a request. A body without Content-Length is not waited for, and counts none."""
    from serving.queueproxy.tokens import tokens_of  # noqa: PLC0415 - as above

    head = exchange.head
    if head.method != b"POST" or head.content_length is None:
        return 0
    return tokens_of(head.target, exchange.body.peek(), length=head.content_length)


def origin_of(head: RequestHead) -> Origin:
    """The origin of a request whose sender is believed."""
    held = head.get(b"k-held-ms") or b""
    held_s = int(held) / 1000 if held.isdigit() and len(held) <= _HELD_DIGITS_MAX else 0.0
    return head.get(b"k-proxy-request") == b"activator", head.get(b"k-original-host"), held_s


def _origin(exchange: Exchange) -> Origin:
    origin = exchange.context
    return origin if isinstance(origin, tuple) else DIRECT


def _is_proxied(exchange: Exchange) -> bool:
    """Whether an activator sent the request."""
    return bool(_origin(exchange)[0])
