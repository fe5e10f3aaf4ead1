"""Records ended requests from the ingress's facts, and serves the records as JSON."""

from collections.abc import Callable, Mapping

import msgspec

from serving.activator.io.visit import Visit
from serving.activator.queueing.failures import RequestEnd, RequestFacts, failure_of, pod_wait_s
from serving.activator.queueing.router import RequestRouter
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.requesthistory import RequestHistory, RequestRecord, printable
from serving.net.aio.clock import wall_s
from serving.net.metrics.activator import trace_id_of
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.phase import ExchangeOutcome

# HTTP methods have at most 17 characters.
_METHOD_MAX = 20
_SERVER_ERROR = 500
# Read once: an enum attribute costs 60 ns.
_ANSWERED = ExchangeOutcome.ANSWERED


class RequestRecorder:
    """Selects and stores records of ended requests."""

    def __init__(
        self,
        settings: ActivatorSettings,
        router: RequestRouter[Exchange],
        *,
        clock: Callable[[], float],
    ) -> None:
        self.history = RequestHistory(settings.recorded_requests_max)
        self.has_queries = settings.record_queries
        self._router = router
        self._clock = clock

    def reconfigure(self, settings: ActivatorSettings) -> None:
        """Apply new settings; existing records stay until they are replaced."""
        self.history.records_max, self.has_queries = settings.recorded_requests_max, settings.record_queries

    def end(self, exchange: Exchange, visit: Visit, *, duration_s: float, at_s: float) -> None:
        """Record a request that ended at ``at_s``, if it failed, is slow, or is due for the sample."""
        is_failed = exchange.response.status >= _SERVER_ERROR or exchange.outcome is not _ANSWERED
        if (is_failed or self.history.is_due(visit.key, duration_s, at_s)) and self.history.records_max:
            self.history.record(visit.key[0], self._record(exchange, visit, duration_s=duration_s, at_s=at_s), at_s)

    def reports(self, parts: Mapping[str, str]) -> str:
        """Recorded requests as JSON; ``parts`` are a namespace and a service or revision."""
        return msgspec.json.encode(self.history.reports(parts["namespace"], parts["name"], self._clock())).decode()

    def _record(self, exchange: Exchange, visit: Visit, *, duration_s: float, at_s: float) -> RequestRecord:
        facts, head, response = visit.facts or RequestFacts(), exchange.head, exchange.response
        limits = exchange.timeouts
        address, throttler = exchange.upstream_text, self._router.throttlers.get(visit.key)
        known = throttler and throttler.pods.get(address)
        due_s = limits.due_s(exchange.started_s, written_s=response.written_s, has_begun=bool(response.status))
        assert exchange.outcome is not None
        end = RequestEnd(
            outcome=exchange.outcome,
            status=response.status,
            response_lines=response.marks,
            is_sent=bool(address),
            is_unread=response.is_unread,
            is_overdue=due_s <= at_s,
            timeout_text=limits.text.decode("utf-8", "replace").strip(),
        )
        failed_by, why = failure_of(end, facts)
        is_cold = facts.is_cold or visit.is_cold
        # A request without a pod has waited all the time.
        waited_s = min(facts.waited_s, duration_s) if address else duration_s
        start_s = min(waited_s, facts.start_s if address else duration_s * is_cold)
        queued_s = min(pod_wait_s(response.marks), max(0.0, duration_s - waited_s))
        return RequestRecord(
            service=self._router.directory.configuration_of(visit.key),
            revision=visit.key[1],
            at_wall_s=round(wall_s(), 3),
            method=printable(head.method, _METHOD_MAX),
            path=printable(head.target if self.has_queries else head.target.partition(b"?")[0]),
            status=response.status,
            failed_by=failed_by,
            why=printable(why.encode()),
            is_cold=is_cold,
            waited_s=waited_s - start_s,
            start_s=start_s,
            queued_s=queued_s,
            app_s=max(0.0, duration_s - waited_s - queued_s),
            duration_s=duration_s,
            pod=known.name if known else address,
            trace_id=trace_id_of(visit.traceparent) or "",
            request_id=response.error_id,
        )
