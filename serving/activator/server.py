"""The ingress: each request finds its revision by host, goes to a pod or waits at the desk, and is answered.

One ``Ingress`` handles the requests of both listeners, as ``serving.proxy`` hands them in. It decides nothing about
revisions and pods (``desk.py``), hosts (``routes.py``) or how a pod is reached (``ways.py``); it turns their answers into
forwards and answers, and calls the desk's ``tick`` when it is due. Names that only we may set are never forwarded by
``serving.proxy``; a probe's User-Agent is taken out here.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from serving.activator.desk import Desk
from serving.activator.io.prober import PodProber
from serving.activator.outcome import Go, Outcome, Turned, Wake
from serving.activator.probes import ProbeQuestion, is_probe_agent, probe_answer
from serving.activator.readiness import PodProbe
from serving.activator.revisions import PodFacts, RevisionFacts
from serving.activator.routes import Listener, Routes, Site, choose
from serving.activator.ways import Ways
from serving.metrics.activator import ActivatorMetrics, RevisionRows
from serving.metrics.spans import RequestTrace
from serving.metrics.tracing import Tracer
from serving.model.knative import RevisionKey
from serving.proxy.exchange import Exchange, Timeouts
from serving.proxy.lines import header_lines
from serving.proxy.requesthead import RequestHead
from serving.proxy.traceparent import with_traceparent
from serving.settings.activator import SECRETS_OF_PODS, ActivatorSettings
from serving.wire.tokens import pod_secret, revision_secret

__all__ = ["Ingress"]

_log = logging.getLogger("activator")

_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_RETRY = _TEXT + b"Retry-After: 1\r\n"
_TIMEOUT_TEXT = b"activator request timeout"
_REVISION = b"X-Serving-Revision: %b\r\n"
_COLD_START = b"X-Serving-Cold-Start: true\r\n"
_LISTENERS = {listener.value: listener for listener in Listener}
# More revisions than one activator should know.
_TIMEOUTS_MAX = 65_536

# It may be the request that kills whoever works on it: it must not have all pods of a revision.
_LOSSES_MAX = 2


class _Visit:
    """What we know of a request besides what it says."""

    __slots__ = ("cold_turn", "is_cold", "key", "losses", "rows", "trace", "traceparent", "tries")

    def __init__(self, key: RevisionKey, rows: RevisionRows, traceparent: bytes) -> None:
        self.key = key
        self.rows = rows
        self.traceparent = traceparent
        self.trace: RequestTrace | None = None
        self.cold_turn = 0
        self.tries = 1
        self.losses = 0
        self.is_cold = False


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a head said, for when the same comes again on its connection; ``turn`` is that of the routes."""

    head: RequestHead
    turn: int
    site: Site
    tag: str | None
    traceparent: bytes


class Ingress:
    """A handler for ``serving.proxy.HttpServer``, on listeners named as ``Listener``.

    ``draw`` gives numbers from 0 to below 1. ``on_wake`` is told which revisions to wake. ``key`` is the cluster key.
    """

    def __init__(  # noqa: PLR0913 - what it is wired with
        self,
        settings: ActivatorSettings,
        desk: Desk[Exchange],
        routes: Routes,
        *,
        key: bytes,
        draw: Callable[[], float],
        clock: Callable[[], float],
        on_wake: Callable[[Sequence[Wake]], None],
    ) -> None:
        self.desk = desk
        self.routes = routes
        self.counts: Counter[str] = Counter()
        self.is_draining = False
        self._settings = settings
        self._key = key
        self._draw = draw
        self._clock = clock
        self._on_wake = on_wake
        self.metrics = ActivatorMetrics(
            configuration_of=self._configuration_of,
            keys=lambda: self.desk.keys,
            inside=self.desk.inside,
            has_old_names=settings.metrics_old_names,
        )
        self.tracer: Tracer | None = None
        """Makes spans of some requests; None while nobody wants them."""
        self._ways = Ways(settings.pod_address_override, lines_to=self._lines_to)
        self.prober = PodProber(lambda probe: self._ways.to(probe.pod, probe.key).address, self.secret_of, self._probed)
        self._timeouts: dict[RevisionKey, tuple[RevisionFacts, Timeouts]] = {}
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._later_s = math.inf

    def __repr__(self) -> str:
        return f"Ingress({self.desk!r}, {self.routes!r})"

    def reconfigure(self, settings: ActivatorSettings) -> None:
        """Answer with these settings from now on, as far as they may change."""
        self._settings = settings
        self.desk.reconfigure(settings)

    # What the engine calls.

    def begin(self, exchange: Exchange) -> None:
        """Find the revision of a request, and a pod or a place in the queue."""
        known = exchange.peer.known
        if not (isinstance(known, _Known) and known.head is exchange.head and known.turn == self.routes.turn):
            understood = self._understand(exchange)
            if understood is None:
                return
            known = understood
        key = choose(known.site, tag=known.tag, draw=self._draw)
        visit = exchange.context = _Visit(key, self.metrics.of(key), known.traceparent)
        if self.tracer is not None:
            _begin_trace(self.tracer, exchange, visit)
        if self._settings.tell_revision:
            exchange.answer_headers = _REVISION % key[1].encode()
        exchange.is_timed = self._settings.tell_timing
        exchange.timeouts = self._timeouts_of(key)
        self._arrive(exchange, visit)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """A pod is gone and has seen nothing of the request: on to another, or back to the head of the queue."""
        self.counts["pod-unreachable"] += 1
        self.metrics.unreachable.inc()
        if not self._goes_elsewhere(exchange):
            visit = exchange.context
            assert isinstance(visit, _Visit)
            text = f"revision {visit.key[1]}: no connection to any of {visit.tries} pods: {error}"
            exchange.answer(502, text.encode(), _TEXT + exchange.answer_headers)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """A pod died before it answered: on to another, or back to the head of the queue."""
        del reason
        self.counts["pod-lost"] += 1
        self.metrics.lost.inc()
        visit = exchange.context
        assert isinstance(visit, _Visit)
        visit.losses += 1
        return visit.losses <= _LOSSES_MAX and self._goes_elsewhere(exchange)

    def overdue(self, exchange: Exchange) -> None:
        """Never: waits end by the desk's own time."""
        raise AssertionError(exchange)

    def finish(self, exchange: Exchange) -> None:
        """A request has ended: whoever is next runs."""
        visit = exchange.context
        if visit is None:
            self.metrics.unmatched.inc()
        else:
            assert isinstance(visit, _Visit)
            at_s = self._clock()
            visit.rows.ended(exchange.status, at_s - exchange.started_s, at_s=at_s, traceparent=visit.traceparent)
            if visit.trace is not None and self.tracer is not None:
                self.tracer.end(visit.trace, exchange, key=visit.key, try_count=visit.tries, at_s=at_s)
            go = self.desk.finish(visit.key, exchange, at_s)
            if go:
                self._send_all(go)

    # What the loops call.

    def apply(self, outcome: Outcome[Exchange]) -> None:
        """Do what the desk says."""
        self._send_all(outcome.go)
        for turned in outcome.turned:
            self._refuse(turned)
        if outcome.wakes:
            self._on_wake(outcome.wakes)
        if outcome.probes:
            self.prober.start(outcome.probes)
        self.tick_soon()

    def tick_soon(self) -> None:
        """Have a tick at the end of this turn of the loop, so that requests that came together are looked at once."""
        if self._soon is None and self.desk.is_stirred:
            self._soon = asyncio.get_running_loop().call_soon(self._tick)

    def _probed(self, probe: PodProbe, is_ready: bool) -> None:  # noqa: FBT001 - a callback
        self.apply(self.desk.probed(probe, self._clock(), is_ready=is_ready))

    def close(self) -> None:
        """Refuse all who wait; no more ticks."""
        for turned in self.desk.give_up_all(self._clock(), "shutting down"):
            self._refuse(turned)
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()

    def _understand(self, exchange: Exchange) -> _Known | None:
        """Look at a head that did not come before; None when it is answered already."""
        head = exchange.head
        named = _named(head) if head.reserved else None
        site = self.routes.find(_LISTENERS[exchange.listener], head.host.decode("latin-1"), named=named)
        tag, agent, traceparent = _tag_agent_and_trace(head)
        is_marked = head.reserved or is_probe_agent(agent)
        if (site is None or is_marked) and self._is_answered(exchange, site, agent=agent):
            return None
        assert site is not None
        known = _Known(head=head, turn=self.routes.turn, site=site, tag=tag, traceparent=traceparent)
        if is_probe_agent(agent):
            exchange.head = _without_agent(head)
        else:
            exchange.peer.known = known
        return known

    def _is_answered(self, exchange: Exchange, site: Site | None, *, agent: bytes) -> bool:
        """Answer what is a probe, or for nobody."""
        head = exchange.head
        question = ProbeQuestion(
            network_probe=head.get(b"k-network-probe"),
            user_agent=agent,
            target=head.target,
            listener=_LISTENERS[exchange.listener],
        )
        answer = probe_answer(question, site=site, digest_of=self.routes.digest_of, is_draining=self.is_draining)
        if answer is not None:
            exchange.answer(answer.status, answer.body)
        elif site is None:
            exchange.answer(404, b"no service has the host %b\n" % (head.host or b'""'))
        return answer is not None or site is None

    def _goes_elsewhere(self, exchange: Exchange) -> bool:
        """Let go of the pod of a request, which is left alone for a moment; whether another one may be tried."""
        visit = exchange.context
        assert isinstance(visit, _Visit)
        if visit.tries >= self._settings.pod_tries_max:
            return False
        visit.tries += 1
        self._send_all(self.desk.come_back(visit.key, exchange, self._clock()))
        self.tick_soon()
        return True

    def _arrive(self, exchange: Exchange, visit: _Visit) -> None:
        weight_bytes = self._weight_of(exchange)
        answer = self.desk.arrive(visit.key, exchange, self._clock(), weight_bytes=weight_bytes)
        if isinstance(answer, Go):
            self._send(answer)
        elif isinstance(answer, Turned):
            self._refuse(answer)
        else:
            visit.is_cold = not self.desk.pods_of(visit.key)
            visit.cold_turn = visit.rows.cold_turn
            if visit.trace is not None:
                visit.trace.is_queued, visit.trace.is_cold = True, visit.is_cold
        self.tick_soon()

    def _weight_of(self, exchange: Exchange) -> int:
        """What a request takes up at most while it waits: its head, and as much of its body as is read by then."""
        head, held_max = exchange.head, self._settings.http.body_held_bytes_max
        if not head.has_body:
            return exchange.weight_bytes
        body_bytes = held_max if head.chunked else min(head.content_length or 0, held_max)
        return max(exchange.weight_bytes, len(head.wire) + body_bytes)

    def _send_all(self, go: Sequence[Go[Exchange]]) -> None:
        for one in go:
            self._send(one)

    def _send(self, go: Go[Exchange]) -> None:
        exchange = go.request
        visit = exchange.context
        assert isinstance(visit, _Visit)
        if go.waited_s:
            visit.rows.waited(go.waited_s, traceparent=visit.traceparent)
            if visit.trace is not None:
                visit.trace.grant(self._clock())
        if visit.is_cold:
            visit.is_cold = False
            at_s = self._clock()
            waited_s = at_s - exchange.started_s
            visit.rows.started_cold(waited_s, visit.cold_turn, at_s=at_s, traceparent=visit.traceparent)
            if visit.trace is not None:
                visit.trace.cold_until_s = visit.rows.cold_until_s
            if self._settings.tell_cold_start:
                exchange.answer_headers += _COLD_START
        way = self._ways.to(go.pod, visit.key)
        exchange.forward(way.address, extra=way.lines)

    def secret_of(self, pod: PodFacts, key: RevisionKey) -> str:
        """The secret that a pod of a revision shares with activators; "" while it is not known."""
        if self._settings.secrets_of == SECRETS_OF_PODS:
            return pod_secret(self._key, namespace=pod.namespace, pod=pod.name) if pod.name else ""
        facts = self.desk.facts_of(key)
        return revision_secret(self._key, namespace=key[0], uid=facts.uid) if facts is not None and facts.uid else ""

    def _lines_to(self, pod: PodFacts, key: RevisionKey) -> bytes:
        """Headers that authenticate the activator to the pod."""
        secret = self.secret_of(pod, key)
        lines = [(b"K-Pod-Secret", secret.encode())] if secret else []
        return header_lines((b"K-Proxy-Request", b"activator"), *lines)

    def _refuse(self, turned: Turned[Exchange]) -> None:
        exchange = turned.request
        self.counts[f"refused-{turned.reason}"] += 1
        visit = exchange.context
        assert isinstance(visit, _Visit)
        visit.rows.refused(turned.reason)
        if visit.trace is not None:
            visit.trace.refused = turned.reason
        exchange.answer(503, f"{turned.text}\n".encode(), _RETRY + exchange.answer_headers)

    def _configuration_of(self, key: RevisionKey) -> str:
        facts = self.desk.facts_of(key)
        return "" if facts is None else facts.configuration

    def _timeouts_of(self, key: RevisionKey) -> Timeouts:
        facts = self.desk.facts_of(key)
        if facts is None:
            return Timeouts(total_s=self._settings.queue_wait_max_s, text=_TIMEOUT_TEXT)
        known = self._timeouts.get(key)
        if known is not None and known[0] is facts:
            return known[1]
        if len(self._timeouts) >= _TIMEOUTS_MAX:
            self._timeouts.clear()
        timeouts = Timeouts(
            total_s=facts.timeout_s,
            answer_start_s=math.inf if facts.response_start_timeout_s is None else facts.response_start_timeout_s,
            idle_s=math.inf if facts.idle_timeout_s is None else facts.idle_timeout_s,
            text=_TIMEOUT_TEXT,
        )
        self._timeouts[key] = (facts, timeouts)
        return timeouts

    def _tick(self) -> None:
        self._soon = None
        self.apply(self.desk.tick(self._clock()))
        due_s = self.desk.next_due_s()
        if due_s is not None and due_s != self._later_s:
            if self._later is not None:
                self._later.cancel()
            self._later_s = due_s
            self._later = asyncio.get_running_loop().call_later(max(0.0, due_s - self._clock()), self._tick_later)

    def _tick_later(self) -> None:
        self._later, self._later_s = None, math.inf
        self._tick()


def _named(head: RequestHead) -> tuple[list[bytes], list[bytes]]:
    return [*head.values(b"knative-serving-namespace")], [*head.values(b"knative-serving-revision")]


def _tag_agent_and_trace(head: RequestHead) -> tuple[str | None, bytes, bytes]:
    tag, agent, trace = None, b"", b""
    for line in head.lines:
        if line.name == b"user-agent":
            agent = line.value
        elif line.name == b"knative-serving-tag":
            tag = line.value.decode("latin-1")
        elif line.name == b"traceparent":
            trace = line.value
    return tag, agent, trace


def _begin_trace(tracer: Tracer, exchange: Exchange, visit: _Visit) -> None:
    """Draw ids for a request that is to be traced, and tell the pod; any other goes on as it came."""
    visit.trace = tracer.begin(visit.traceparent)
    if visit.trace is not None:
        visit.traceparent = visit.trace.traceparent
        exchange.head = with_traceparent(exchange.head, visit.traceparent)


def _without_agent(head: RequestHead) -> RequestHead:
    """A head without a User-Agent that the pod would believe."""
    return head.without(lambda line: line.name == b"user-agent" and is_probe_agent(line.value))
