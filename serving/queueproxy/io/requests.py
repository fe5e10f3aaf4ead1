"""The queue-proxy's decisions about each request that it forwards to the app."""

from collections.abc import Callable

from serving.proxy.forwarding.exchange import Exchange
from serving.proxy.forwarding.phase import ExchangeOutcome
from serving.proxy.http1.lines import header_lines
from serving.proxy.http1.requesthead import is_grpc_call
from serving.queueproxy.io.podrequests import DIRECT, QUEUE_FULL, RETRY, WAITED_TOO_LONG, PodRequests, is_probe
from serving.queueproxy.podspec import PodSpec
from serving.traffic.breaker import Admitted, Queued

_RETRY_LINES = header_lines(*RETRY)


class PodHandler(PodRequests[Exchange]):
    """Decides about the requests of one pod, as a ``Handler`` of the HTTP engine."""

    def __init__(self, spec: PodSpec, *, clock: Callable[[], float]) -> None:
        super().__init__(spec, clock=clock)
        self._app = spec.app

    def begin(self, exchange: Exchange) -> None:
        """A request has come: count it, and let it run, wait or go."""
        origin = DIRECT
        head = exchange.head
        if head.reserved and self._is_believed(head):
            if is_probe(head):
                status, body, headers = self._probe_answer(head)
                exchange.answer(status, body, header_lines(*headers))
                return
            origin = (head.get(b"k-proxy-request") == b"activator", head.get(b"k-original-host"))
        exchange.context = origin
        exchange.timeouts = self._timeouts
        decision = self._arrive(exchange, exchange.started_s, proxied=origin[0])
        if isinstance(decision, Admitted):
            self._run(exchange)
        elif isinstance(decision, Queued):
            exchange.wait_until_s = decision.deadline_s
        else:
            exchange.answer(503, QUEUE_FULL, _RETRY_LINES)

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
        for timed_out in self._expire(max(self._clock(), exchange.wait_until_s)):
            timed_out.request_id.answer(503, WAITED_TOO_LONG, _RETRY_LINES)

    def finish(self, exchange: Exchange) -> None:
        """A request has ended: its slot goes to the request that has waited longest."""
        origin = exchange.context
        if origin is None:
            return
        assert isinstance(origin, tuple)
        now_s = self._clock()
        self.gauges.take(exchange.answer_wire, now_s)
        self.request_metrics.note(exchange.status, now_s - exchange.started_s)
        is_answered = exchange.outcome is ExchangeOutcome.ANSWERED
        for granted in self._leave(exchange, now_s, proxied=origin[0], is_answered=is_answered):
            self._run(granted.request_id)

    def _run(self, exchange: Exchange) -> None:
        origin = exchange.context
        assert isinstance(origin, tuple)
        # A gRPC call exists in HTTP/2 alone, so an app that takes one speaks it, whatever its port is named.
        is_call = exchange.is_http2 and is_grpc_call(exchange.head)
        exchange.forward(self._app, host=origin[1], trusted=origin[0], over_http2=is_call)

    def _is_handed_back(self, exchange: Exchange) -> bool:
        """Break off instead of answering, if an activator made the request and may send it to another pod."""
        origin = exchange.context
        if not (isinstance(origin, tuple) and origin[0] and exchange.head.may_be_repeated):
            return False
        exchange.cut()
        return True
