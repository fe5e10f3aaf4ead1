"""The ingress: finds the revision of each request, then forwards, queues or rejects the request.

One ``Ingress`` handles the requests of both listeners of ``serving.net.proxy``. It executes decisions of others:
``router.py`` chooses revisions and pods, ``routes.py`` resolves hosts, and ``slices.py`` has the endpoints of pods.
``serving.net.proxy`` never forwards reserved header names. The ingress removes the User-Agent of a probe.
"""

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence

from serving.activator.io.access import AccessGate, TokenGate, client_of
from serving.activator.io.forwarding import RevisionTimeouts, Ticker
from serving.activator.io.knownhead import KnownHead, known_head, marks_of, named_revision, without_agent
from serving.activator.io.placeholder import respond_early, respond_with
from serving.activator.io.prober import PodProber
from serving.activator.io.recorder import RequestRecorder
from serving.activator.io.visit import Visit
from serving.activator.queueing.failures import ACTIVATOR, APP, QUEUE_PROXY
from serving.activator.queueing.outcome import Dispatch, Rejection, RevisionWake, RoutingOutcome
from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.router import RequestRouter, announce
from serving.activator.queueing.slices import PodEndpoints, ServedPod
from serving.activator.routing.probes import ProbeQuestion, is_probe_agent, probe_response
from serving.activator.routing.routes import Routes
from serving.activator.routing.sites import Listener, Site, choose, new_session
from serving.core.model.knative import RevisionKey
from serving.core.model.responses import TEXT_PLAIN
from serving.core.model.routepolicy import OPEN_POLICY
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.clientpods import ClientPods
from serving.core.traffic.clients import ClientLoad, Clients
from serving.core.traffic.policy import position_of, session_number, share_of
from serving.core.traffic.prefixes import Prompt, read_prompt
from serving.net.aio.clock import wall_s
from serving.net.metrics.activator import ActivatorMetrics
from serving.net.metrics.tracing import Tracer
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.phase import ExchangeOutcome
from serving.net.proxy.forwarding.policy import member_of
from serving.net.proxy.forwarding.sharing import client_line
from serving.net.proxy.http1.requesthead import with_traceparent
from serving.net.wire.tokens import prompt_secret

_log = logging.getLogger("activator")

_RETRY = TEXT_PLAIN + b"Retry-After: 1\r\n"
_REVISION = b"X-Serving-Revision: %b\r\n"
_COLD_START = b"X-Serving-Cold-Start: true\r\n"
_LISTENERS = {listener.value: listener for listener in Listener}
# The request itself may crash its pods, for example by its memory use, so it gets one more pod, never a third.
_LOSSES_MAX = 1


class Ingress:
    """The handler of requests from both listeners, for ``serving.net.proxy.HttpServer``.

    ``draw`` returns random numbers in [0, 1). ``on_wake`` receives the revisions to wake. ``key`` is the cluster key.
    ``endpoints`` has the addresses of pods. ``tracer`` creates spans of sampled requests, and is None without a
    collector.
    """

    def __init__(  # noqa: PLR0913 - what it is wired with
        self,
        settings: ActivatorSettings,
        router: RequestRouter[Exchange],
        routes: Routes,
        *,
        key: bytes,
        endpoints: PodEndpoints,
        prober: PodProber,
        metrics: ActivatorMetrics,
        tracer: Tracer | None,
        draw: Callable[[], float],
        clock: Callable[[], float],
        on_wake: Callable[[Sequence[RevisionWake]], None],
    ) -> None:
        self.router = router
        self.routes = routes
        self.metrics = metrics
        self.counts: Counter[str] = Counter()
        self.is_draining = False
        self._settings = settings
        self._draw = draw
        self._clock = clock
        self._on_wake = on_wake
        self._endpoints = endpoints
        self._prober = prober
        self._tracer = tracer
        self._tokens = TokenGate()
        self._prompt_secret = prompt_secret(key)
        self._clients = Clients(member_of(settings.http.trusted_proxies))
        self._client_pods = ClientPods()
        self._access = AccessGate(key, self._clients, metrics)
        self._timeouts = RevisionTimeouts(router.directory.revision, unknown_s=settings.queue_wait_max_s)
        self.ticker = Ticker(router, apply=self.apply, clock=clock)
        self.recorder = RequestRecorder(settings, router, clock=clock)

    def reconfigure(self, settings: ActivatorSettings) -> None:
        """Apply changed live settings; existing queues keep their bounds."""
        self._settings = settings
        self.router.settings = settings
        self.recorder.reconfigure(settings)

    # Called by serving.net.proxy.

    def begin(self, exchange: Exchange) -> None:
        """Find the revision of a request, and dispatch or queue the request."""
        known = exchange.peer.known
        if not (isinstance(known, KnownHead) and known.head is exchange.head and known.turn == self.routes.turn):
            understood = self._interpret(exchange)
            if understood is None:
                return
            known = understood
        session, headers = (known.session, b"") if not known.starts_session else _begin_session(exchange)
        draw = self._draw if session is None else functools.partial(share_of, session)
        key = choose(known.site, tag=known.tag, draw=draw)
        client = exchange.peer.load
        if not isinstance(client, ClientLoad):
            client = client_of(exchange, self._clients)
        if 0 < self._settings.requests_per_address_max <= client.request_count:
            self.counts["refused-address"] += 1
            exchange.respond(429, b"too many requests at once from one address\n", _RETRY)
            return
        client.request_count += 1
        visit = exchange.context = Visit(key, self.metrics.of(key), known, client=client, session=session)
        if self._tracer is not None:
            self._begin_trace(self._tracer, exchange, visit)
        if self._settings.tell_revision:
            headers += _REVISION % key[1].encode()
        exchange.response_headers = headers
        exchange.is_timed = self._settings.tell_timing
        exchange.timeouts = self._timeouts.of(key)
        if exchange.body.is_complete:
            self._arrive(exchange, visit)
            if known.site.policy is not OPEN_POLICY:
                respond_early(exchange, visit)
        elif exchange.await_body():
            self.body_ready(exchange)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Handle a refused connection to a pod or its app: send the request to another pod, or requeue it."""
        self.counts["pod-unreachable"] += 1
        self.metrics.unreachable.inc()
        if not self._requeue(exchange):
            visit = exchange.context
            assert isinstance(visit, Visit)
            text = f"revision {visit.key[1]}: no connection to a pod in {visit.tries} tries"
            # The error contains a pod's address, which clients must not see.
            visit.noted().fail(QUEUE_PROXY, f"{text}: {error}")
            exchange.respond(502, text.encode(), TEXT_PLAIN + exchange.response_headers)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Handle a pod that ended before its response was complete; return whether the request is retried.

        The request itself may have ended the pod. It is therefore retried only if its client marked it as repeatable,
        and only a few times.
        """
        self.counts["pod-lost"] += 1
        self.metrics.lost.inc()
        visit = exchange.context
        assert isinstance(visit, Visit)
        visit.losses += 1
        visit.noted().fail(APP, f"{reason}: the app or its pod ended")
        is_repeatable = exchange.head.is_marked_repeatable and visit.losses <= _LOSSES_MAX
        return is_repeatable and self._requeue(exchange)

    def overdue(self, exchange: Exchange) -> None:
        """Never called: the router itself rejects requests that have waited too long."""
        raise AssertionError(exchange)

    def body_ready(self, exchange: Exchange) -> None:
        """Dispatch a request once enough of its body has arrived.

        A request with an incomplete body may use only its client's share of the slots.
        """
        visit = exchange.context
        assert isinstance(visit, Visit)
        self._arrive(exchange, visit, None if exchange.body.is_complete else visit.client)
        if visit.site.policy is not OPEN_POLICY:
            respond_early(exchange, visit)

    def body_complete(self, exchange: Exchange) -> None:
        """Admit a request that waits for its client's share of the slots.

        Only requests with incomplete bodies are limited to this share, so the wait ends with the last byte of the body.
        """
        visit = exchange.context
        if isinstance(visit, Visit):
            admission = self.router.complete(visit.key, exchange, self._clock())
            if isinstance(admission, Dispatch):
                self._dispatch(admission)
            elif admission is not None:
                self._reject(admission)
            self.ticker.schedule()

    def reading_changed(self, exchange: Exchange) -> None:
        """Start or stop the deadline for a client that does not read its response."""
        visit = exchange.context
        if isinstance(visit, Visit):
            self.router.record_reading_pause(visit.key, exchange, self._clock(), is_held=exchange.response.is_held)
            self.ticker.schedule()

    def finish(self, exchange: Exchange) -> None:
        """Count an ended request, and dispatch queued requests to the released slot."""
        visit = exchange.context
        if visit is None:
            self.metrics.unmatched.inc()
        else:
            assert isinstance(visit, Visit)
            visit.client.request_count -= 1
            at_s = self._clock()
            took_s = at_s - exchange.started_s
            status = exchange.response.status
            visit.rows.ended(status, took_s, at_s=at_s, traceparent=visit.traceparent)
            self.recorder.end(exchange, visit, duration_s=took_s, at_s=at_s)
            if visit.trace is not None and self._tracer is not None:
                self._tracer.end(visit.trace, exchange, key=visit.key, status=status, try_count=visit.tries, at_s=at_s)
            if exchange.body.is_awaited:
                return
            has_response = exchange.outcome is ExchangeOutcome.ANSWERED
            for dispatch in self.router.finish(visit.key, exchange, at_s, has_response=has_response):
                self._dispatch(dispatch)

    # Called by background loops.

    def apply(self, outcome: RoutingOutcome[Exchange]) -> None:
        """Execute the router's decisions: dispatches, rejections, wakes and probes."""
        for dispatch in outcome.dispatches:
            self._dispatch(dispatch)
        for rejection in outcome.rejections:
            self._reject(rejection)
        if outcome.wakes:
            self._on_wake(outcome.wakes)
        if outcome.probes:
            self._prober.start(outcome.probes)
        for exchange in outcome.cuts:
            self.counts["cut-unread"] += 1
            exchange.cut()
        for (namespace, revision), error in outcome.failures:
            extra = {"namespace": namespace, "revision": revision, "error": str(error)}
            _log.error("revision.undecided", extra=extra, exc_info=error)
        self.ticker.schedule()

    def eject_silent(self) -> None:
        """Eject silent pods, and send their repeatable requests to other pods."""
        for silent in self.router.eject_silent(
            self._clock(), has_begun=lambda exchange: bool(exchange.response.status)
        ):
            moved_count = 0
            for exchange in silent.requests:
                visit = exchange.context
                assert isinstance(visit, Visit)
                # Only once per request: a slow request must not run on every pod.
                if not visit.losses and visit.tries < self._settings.pod_tries_max and exchange.withdraw():
                    visit.losses += 1
                    moved_count += self._requeue(exchange)
            if silent.is_new:
                self.metrics.silent.inc()
                extra = {"namespace": silent.key[0], "revision": silent.key[1], "pod": silent.pod.name}
                waiting = {"unanswered": len(silent.requests), "moved": moved_count}
                _log.warning("pod.silent", extra={**extra, "address": silent.pod.address, **waiting})
        self.ticker.schedule()

    def close(self) -> None:
        """Reject all queued requests, and stop ticking."""
        for rejection in self.router.reject_all(self._clock(), "shutting down"):
            self._reject(rejection)
        self.ticker.close()

    def probed(self, probe: PodProbe, is_ready: bool) -> None:  # noqa: FBT001 - a callback
        """Process the result of a probe."""
        self.apply(self.router.probed(probe, self._clock(), is_ready=is_ready))

    def announced(self, key: RevisionKey, pod: ServedPod) -> None:
        """Start probing a pod that an autoscaler announces as ready. A ScaledWorkload's pod gets requests unprobed."""
        announce(self.router, key, pod, now_s=self._clock())
        self.ticker.schedule()

    def report_all(self) -> None:
        """Report all load again. Called when the connected autoscaler is a new process."""
        self.router.resend_all()
        self.ticker.schedule()

    def _interpret(self, exchange: Exchange) -> KnownHead | None:
        """Parse a new request's head; None if the request was already answered."""
        head = exchange.head
        named = named_revision(head) if head.reserved else None
        host = exchange.peer.full_host(head.host.decode("latin-1"))
        site = self.routes.find(
            _LISTENERS[exchange.listener], host, named=named, target=head.target, values=head.values
        )
        marks = marks_of(head)
        _, agent, _ = marks
        is_probe = is_probe_agent(agent)
        if (site is None or head.reserved or is_probe) and self._is_own_response(exchange, site, agent=agent):
            return None
        assert site is not None
        access = site.access
        if access is None:
            if self._settings.deny_by_default and exchange.listener == Listener.INNER:
                self.counts["refused-access"] += 1
                text = b"service %b has no allow-from, and callers are denied by default\n" % site.route.encode()
                exchange.respond(403, text, TEXT_PLAIN)
                return None
        elif self._access.is_refused(exchange, access, now_s=wall_s()):
            self.counts["refused-access"] += 1
            return None
        elif access.jwt is not None and not self._tokens.admits(exchange, access, again=self.begin):
            self.counts["refused-access"] += not exchange.is_waiting
            return None
        if not site.revisions:
            # The condition's message may quote the app's log, so clients must not see it either.
            exchange.respond(503, f"service {site.route} is not ready\n".encode(), _RETRY)
            return None
        known = known_head(head, site, marks, turn=self.routes.turn)
        if is_probe:
            exchange.head = without_agent(exchange.head)
        elif exchange.head is head and (access is None or access.is_lasting):
            exchange.peer.known = known
        return known

    def _is_own_response(self, exchange: Exchange, site: Site | None, *, agent: bytes) -> bool:
        """Answer a probe or a request for an unknown host; return whether the request was one."""
        head = exchange.head
        question = ProbeQuestion(
            network_probe=head.get(b"k-network-probe"),
            user_agent=agent,
            target=head.target,
            listener=_LISTENERS[exchange.listener],
        )
        response = probe_response(question, site=site, digest_of=self.routes.digest_of, is_draining=self.is_draining)
        if response is not None:
            exchange.respond(response.status, response.body)
        elif site is None:
            if head.host:
                exchange.respond(404, b"no service has the host %b\n" % head.host)
            else:
                exchange.respond(400, b"Host is missing, which names the service\n")
        return response is not None or site is None

    def _requeue(self, exchange: Exchange) -> bool:
        """Requeue a request and eject its pod; return False if the request has no tries left.

        A pod without a readiness probe is listed as ready before its app listens. While a ScaledWorkload's pod starts,
        tries are therefore limited by time and not by count.
        """
        visit = exchange.context
        assert isinstance(visit, Visit)
        if visit.tries >= self._settings.pod_tries_max and not self._is_starting(exchange, visit):
            return False
        visit.tries += 1
        for dispatch in self.router.requeue(visit.key, exchange, self._clock()):
            self._dispatch(dispatch)
        self.ticker.schedule()
        return True

    def _is_starting(self, exchange: Exchange, visit: Visit) -> bool:
        revision = self.router.directory.revision(visit.key)
        waited_s = self._clock() - exchange.started_s
        if revision is None or not revision.is_workload:
            return False
        return waited_s < revision.bounded(self._settings).queue_wait_max_s

    def _arrive(self, exchange: Exchange, visit: Visit, client: ClientLoad | None = None) -> None:
        session: int | Prompt | None = visit.session
        affinity = visit.site.policy.affinity
        if affinity is not None and affinity.by_prefix:
            session = self._prompt_of(exchange)
        elif affinity is not None and affinity.client_s:
            session = self._session_of_client(visit)
        response = self.router.arrive(
            visit.key,
            exchange,
            self._clock(),
            weight_bytes=self._weight_of(exchange),
            session=session,
            client=client,
        )
        if isinstance(response, Dispatch):
            self._dispatch(response)
        elif isinstance(response, Rejection):
            self._reject(response)
        else:
            visit.is_cold = not self.router.directory.pods_of(visit.key)
            visit.cold_turn = visit.rows.cold_turn
            if visit.trace is not None:
                visit.trace.is_queued, visit.trace.is_cold = True, visit.is_cold
        self.ticker.schedule()

    def _session_of_client(self, visit: Visit) -> int:
        """The position of the client's pod on the ring, or of its address if the pod is gone."""
        client = visit.client.address
        address = self._client_pods.pod_of(visit.key, client, self._clock())
        return position_of(address) if self.router.has_pod(visit.key, address) else session_number(client.encode())

    def _prompt_of(self, exchange: Exchange) -> Prompt:
        """The prompt in the part of the body that has arrived; the request does not wait for more."""
        head = exchange.head
        if head.method != b"POST":
            return Prompt()
        body = exchange.body.peek()
        length = len(body) if head.content_length is None else head.content_length
        return read_prompt(head.target, body, length=length, secret=self._prompt_secret)

    def _weight_of(self, exchange: Exchange) -> int:
        """The most memory that a queued request may use: its head, and the buffered part of its body."""
        head, held_max = exchange.head, self._settings.http.body_held_bytes_max
        if not head.has_body:
            return exchange.weight_bytes
        body_bytes = held_max if head.chunked else min(head.content_length or 0, held_max)
        return max(exchange.weight_bytes, len(head.wire) + body_bytes)

    def _dispatch(self, dispatch: Dispatch[Exchange]) -> None:
        exchange = dispatch.request
        visit = exchange.context
        assert isinstance(visit, Visit)
        if dispatch.waited_s:
            visit.noted().waited_s += dispatch.waited_s
            visit.rows.waited(dispatch.waited_s, traceparent=visit.traceparent)
            if visit.trace is not None:
                visit.trace.grant(self._clock())
        if visit.is_cold:
            visit.is_cold, visit.noted().is_cold = False, True
            at_s = self._clock()
            waited_s = at_s - exchange.started_s
            visit.rows.started_cold(waited_s, visit.cold_turn, at_s=at_s, traceparent=visit.traceparent)
            visit.noted().start_s = max(0.0, visit.rows.cold_until_s - exchange.started_s)
            if visit.trace is not None:
                visit.trace.cold_until_s = visit.rows.cold_until_s
            if self._settings.tell_cold_start:
                exchange.response_headers += _COLD_START
        if dispatch.prefix is not None:
            visit.rows.matched(dispatch.prefix)
        if (affinity := visit.site.policy.affinity) is not None and affinity.client_s:
            until_s = self._clock() + affinity.client_s
            self._client_pods.record(visit.key, visit.client.address, dispatch.pod.address, until_s=until_s)
        endpoint = self._endpoints.to(dispatch.pod, visit.key)
        lines = endpoint.lines
        if dispatch.waited_s and lines:
            # The pod needs the whole latency for the latency goal.
            lines += b"K-Held-Ms: %d\r\n" % (1000 * dispatch.waited_s)
        lines += client_line(visit.client.address) if exchange.peer.is_trusted else b""
        # Trailers, cancellation and flow control of a gRPC call pass end to end.
        exchange.forward(endpoint.address, extra=lines, over_http2=visit.is_grpc and exchange.is_http2)

    def _reject(self, rejection: Rejection[Exchange]) -> None:
        exchange = rejection.request
        visit = exchange.context
        assert isinstance(visit, Visit)
        if rejection.fallback is not None:
            self.counts["fallback"] += 1
            facts = visit.noted()
            facts.waited_s += self._clock() - exchange.started_s
            if visit.is_cold:
                facts.is_cold, facts.start_s = True, facts.waited_s
            visit.key, visit.is_cold = rejection.fallback, False
            self._arrive(exchange, visit)
            return
        visit.noted().fail(ACTIVATOR, ": ".join(filter(None, (rejection.text, rejection.detail))))
        if visit.trace is not None:
            visit.trace.refused = rejection.reason
        if rejection.placeholder is not None:
            self.counts["placeholder"] += 1
            respond_with(exchange, rejection.placeholder)
            return
        self.counts[f"refused-{rejection.reason}"] += 1
        visit.rows.refused(rejection.reason)
        exchange.respond(503, f"{rejection.text}\n".encode(), _RETRY + exchange.response_headers)

    def _begin_trace(self, tracer: Tracer, exchange: Exchange, visit: Visit) -> None:
        """Generate trace ids for a sampled request, and pass them to the pod."""
        visit.trace = tracer.begin(visit.traceparent)
        if visit.trace is not None:
            visit.traceparent = visit.trace.traceparent
            exchange.head = with_traceparent(exchange.head, visit.traceparent)


def _begin_session(exchange: Exchange) -> tuple[int, bytes]:
    """Return the number of a new session, and the Set-Cookie line for its client."""
    return new_session(os.urandom(16), is_secure=exchange.peer.scheme_of(exchange.head) == b"https")
