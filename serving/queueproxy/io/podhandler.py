"""Executes the decisions about the requests of one pod: forwards, queues, rejects, and cuts off slow readers."""

import asyncio
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from serving.core.model.identities import ACTIVATOR
from serving.core.traffic.places import Admitted, Granted, Queued, Rejected
from serving.net.proxy.forwarding.exchange import UNDELIVERED, Exchange
from serving.net.proxy.forwarding.phase import ExchangeOutcome
from serving.net.proxy.forwarding.policy import member_of
from serving.net.proxy.http1.lines import header_lines
from serving.net.proxy.http1.pool import AppConnector, Pool, connection_failure
from serving.net.proxy.http1.rendering import render_pod_wait
from serving.net.proxy.http1.requesthead import is_grpc_call
from serving.queueproxy.gauges import REQUEST_REPORT
from serving.queueproxy.io.podrequests import (
    DIRECT,
    GUARDED,
    NO_ACTIVATOR,
    QUEUE_FULL,
    RETRY,
    TEXT,
    WAITED_TOO_LONG,
    Origin,
    PodRequests,
    is_probe,
    origin_of,
)
from serving.queueproxy.io.readiness import listener_check
from serving.queueproxy.podspec import PodSpec

if TYPE_CHECKING:
    from serving.core.traffic.openrequests import RequestView
    from serving.core.traffic.prompttokens import RequestTokens
    from serving.queueproxy.tokens import TokenMeter

OUT_OF_MEMORY = b"the app ran out of memory while it handled the request"
_RETRY_LINES = header_lines(*RETRY)


class PodHandler(PodRequests[Exchange]):
    """The ``Handler`` of one pod's requests in the HTTP engine."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        self._trusts = member_of(spec.settings.http.trusted_proxies)
        super().__init__(spec, clock=clock)
        self._reader_check: asyncio.TimerHandle | None = None
        self.tokens = _tokens_from(clock()) if spec.counts_tokens else None
        self._app = spec.app
        self._tcp_ports = spec.tcp_ports
        self._check = listener_check(spec)
        self._http = spec.settings.http
        self._relays: Pool | None = None
        self._extra = header_lines(REQUEST_REPORT) if spec.gauges else b""
        # A certificate of another pod passes the handshake too, but only activators may send requests.
        self._is_guarded = spec.settings.inner_tls.is_strict
        self._oom_folders = spec.oom_folders
        self._oom_kill_count = 0
        self._oom_at_s = self._shared_crash_s = -math.inf

    def begin(self, exchange: Exchange) -> None:
        """Count a new request, then run, queue or reject it."""
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
        if exchange.body.is_complete:
            self._admit(exchange, exchange.started_s)
        elif exchange.await_body():
            self._admit(exchange, self._clock())

    def _admit(self, exchange: Exchange, now_s: float) -> None:
        if self.tokens is not None:
            self.tokens.arrive(exchange, _tokens_in(exchange), now_s)
        proxied, _, held_s = _origin(exchange)
        client = None if exchange.body.is_complete or self._slots is None else self._client_of(exchange)
        self._carry_out(exchange, self._arrive(exchange, now_s, proxied=proxied, held_s=held_s, client=client))

    def _carry_out(self, exchange: Exchange, decision: Admitted | Queued | Rejected) -> None:
        if isinstance(decision, Admitted):
            self._run(exchange)
        elif isinstance(decision, Queued):
            exchange.wait_until_s = decision.deadline_s
            self._check_readers_in(0.0)
        else:
            exchange.respond(503, QUEUE_FULL, _RETRY_LINES)

    def body_ready(self, exchange: Exchange) -> None:
        """Admit a request once enough of its body has arrived."""
        self._admit(exchange, self._clock())

    def body_complete(self, exchange: Exchange) -> None:
        """Stop counting a request against its client's share of the slots, because its body is complete.

        The share limits only requests with incomplete bodies. A request that waited for it may now run.
        """
        decision = None if self._slots is None else self._slots.complete(exchange, self._clock())
        if decision is not None:
            self._carry_out(exchange, decision)

    def reading_changed(self, exchange: Exchange) -> None:
        """Start or stop the deadline for a client that does not read its response."""
        if self._slots is not None and exchange.context is not None:
            self._slots.record_reading(exchange, self._clock(), is_unread=exchange.response.is_held)
            self._check_readers_in(0.0)

    def _view(self) -> "RequestView[Exchange]":
        from serving.net.proxy.forwarding.sharing import view_of  # noqa: PLC0415 - where pods have slots only

        return view_of(self._client_of)

    def _client_of(self, exchange: Exchange) -> str | None:
        """The client of a request; None if the pod has no secret.

        The client may be named by an activator, which the pod recognises by the secret only.
        """
        if not self._secret or exchange.context is None:
            return None
        from serving.net.proxy.forwarding.sharing import client_behind  # noqa: PLC0415 - as above

        return client_behind(exchange, is_of_activator=_is_proxied(exchange), trusts=self._trusts)

    def _check_readers_in(self, delay_s: float) -> None:
        """Check slow readers after ``delay_s`` seconds, if there are any."""
        if self._slots is not None and self._slots.has_slow_clients:
            if self._reader_check is not None:
                self._reader_check.cancel()
            self._reader_check = asyncio.get_running_loop().call_later(delay_s, self._check_readers)

    def _check_readers(self) -> None:
        assert self._slots is not None
        now_s = self._clock()
        for exchange in self._slots.late_readers(now_s):
            exchange.cut()
        self._grant(self._slots.refresh(now_s))
        self._check_readers_in(self._slots.readers_check_s)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Handle an app that refuses the connection: an activator sends the request to another pod."""
        # Without the error's text, which contains the app's address.
        text = b"the app accepts no connection: %b" % connection_failure(error).encode()
        if _is_proxied(exchange):
            exchange.respond(503, text, header_lines(*TEXT) + UNDELIVERED)
        else:
            exchange.respond(502, text)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Handle an app that ended before its response was complete; return whether the response is already handled.

        False: the caller sends an error response. This is for a request that was alone in the app, because it may have
        caused the end, and for requests that may not be repeated. A request that its client marked as repeatable is cut
        off, and the activator sends it to another pod. After an OOM kill all requests get an error response.
        """
        del reason
        now_s = self._clock()
        if self.inside_count - self.waiting_count > 1:
            # Other requests of the same crash end one by one, so the last one is not alone.
            self._shared_crash_s = now_s
        is_suspect = exchange.started_s > self._shared_crash_s
        if self._is_out_of_memory(exchange):
            exchange.respond(502, OUT_OF_MEMORY)
            return True
        if is_suspect or not (_is_proxied(exchange) and exchange.head.is_marked_repeatable):
            return False
        exchange.cut()
        return True

    def overdue(self, exchange: Exchange) -> None:
        """Reject requests whose wait for a slot has expired."""
        for late in self._expire(max(self._clock(), exchange.wait_until_s)):
            late.respond(503, WAITED_TOO_LONG, _RETRY_LINES)

    def finish(self, exchange: Exchange) -> None:
        """Pass the slot of an ended request to the longest-waiting request."""
        origin = exchange.context
        if origin is None:
            return
        assert isinstance(origin, tuple)
        now_s = self._clock()
        self.gauges.record_headers(exchange.response.wire, now_s)
        self._end(exchange.response.status, now_s - exchange.started_s, origin[2])
        if exchange.body.is_awaited:
            return
        if self.tokens is not None:
            self.tokens.exit(exchange, now_s)
        has_response = exchange.outcome is ExchangeOutcome.ANSWERED
        self._grant(self._release(exchange, now_s, proxied=origin[0], has_response=has_response))
        if self.dormancy is not None and not self._meter.level:
            self.dormancy.went_idle()

    def _grant(self, granted: Sequence[Granted[Exchange]]) -> None:
        """Run requests that waited."""
        for request in granted:
            self._end_wait(request.waited_s + _origin(request.request_id)[2])
            request.request_id.response_headers += render_pod_wait(request.waited_s)
            self._run(request.request_id)

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
        # gRPC needs HTTP/2, so the app speaks HTTP/2 regardless of its port's name.
        is_call = exchange.is_http2 and is_grpc_call(exchange.head)
        exchange.forward(self._app, host=origin[1], extra=self._extra, trusted=origin[0], over_http2=is_call)

    def _relay(self, exchange: Exchange) -> bool:
        """Relay a TCP connection; return False if the request is not for a relay."""
        from serving.net.proxy.forwarding.relay import RelayPool, relay_port  # noqa: PLC0415 - most pods take no TCP

        port = relay_port(exchange.head)
        if port is None:
            return False
        if self._relays is None:
            connector = AppConnector(None if self._check is None else self._check.require)
            self._relays = RelayPool(self._http, clock=self._clock, connector=connector)
        exchange.forward((self._app[0], self._tcp_ports.get(port, self._app[1])), pool=self._relays)
        return True

    def _is_out_of_memory(self, exchange: Exchange) -> bool:
        """Whether an OOM kill of the app interrupted the request."""
        if not self._oom_folders:
            return False
        from serving.queueproxy.io.processes import oom_kill_count  # noqa: PLC0415 - where there are cgroups only

        kill_count = oom_kill_count(self._oom_folders)
        if kill_count > self._oom_kill_count:
            self._oom_at_s = self._clock()
        self._oom_kill_count = kill_count
        return exchange.started_s <= self._oom_at_s


def _tokens_from(now_s: float) -> "TokenMeter[Exchange]":
    from serving.queueproxy.tokens import TokenMeter  # noqa: PLC0415 - before model servers only

    return TokenMeter(now_s, sent_bytes_of=_sent_bytes_of)


def _sent_bytes_of(exchange: Exchange) -> int:
    return exchange.response.body_bytes


def _tokens_in(exchange: Exchange) -> "RequestTokens":
    """The tokens of a request. A body without Content-Length is not awaited, so it counts no tokens."""
    from serving.core.traffic.prompttokens import NO_TOKENS, tokens_of  # noqa: PLC0415 - as above

    head = exchange.head
    if head.method != b"POST" or head.content_length is None:
        return NO_TOKENS
    return tokens_of(head.target, exchange.body.peek(), length=head.content_length)


def _origin(exchange: Exchange) -> Origin:
    origin = exchange.context
    return origin if isinstance(origin, tuple) else DIRECT


def _is_proxied(exchange: Exchange) -> bool:
    """Whether an activator sent the request."""
    return bool(_origin(exchange)[0])
