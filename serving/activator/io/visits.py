"""Keeps the ingress's notes on a request, and edits its head."""

import asyncio
import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.activator.io.forwarding import Ticker
from serving.activator.io.knownhead import KnownHead
from serving.activator.io.placeholder import (
    PLACEHOLDER_AFTER_S,
    PLACEHOLDER_HEADERS,
    placeholder_page,
    wants_placeholder,
)
from serving.activator.queueing.failures import RequestFacts
from serving.activator.queueing.router import RequestRouter
from serving.activator.routing.probes import is_probe_agent
from serving.activator.routing.sites import (
    CALLER,
    OWN_AUTHORIZATION,
    AccessRule,
    Site,
    access_refusal,
    caller_refusal,
    new_session,
)
from serving.core.model.knative import RevisionKey
from serving.core.traffic.clients import ClientLoad, Clients
from serving.core.traffic.wrongtokens import WrongTokens
from serving.net.metrics.activator import ActivatorMetrics, RevisionRows
from serving.net.metrics.spans import RequestTrace
from serving.net.metrics.tracing import Tracer
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.sharing import view_of
from serving.net.proxy.http1.requesthead import RequestHead, with_traceparent
from serving.net.wire.tokens import access_token, read_caller_token

if TYPE_CHECKING:
    from serving.activator.io.jwtcheck import JwtChecker

_log = logging.getLogger(__name__)


class Visit:
    """The activator's notes on a request, besides its head."""

    __slots__ = (
        *("client", "cold_turn", "facts", "is_cold", "is_grpc", "key"),
        *("losses", "rows", "trace", "traceparent", "tries"),
    )

    def __init__(self, key: RevisionKey, rows: RevisionRows, known: KnownHead, *, client: ClientLoad) -> None:
        self.key = key
        self.client = client
        self.rows = rows
        self.traceparent = known.traceparent
        self.is_grpc = known.is_grpc
        self.trace: RequestTrace | None = None
        self.cold_turn = 0
        self.tries = 1
        self.losses = 0
        self.is_cold = False
        self.facts: RequestFacts | None = None

    def noted(self) -> RequestFacts:
        """The facts about this request, created on first use: only waiting or failed requests have them."""
        if self.facts is None:
            self.facts = RequestFacts()
        return self.facts


def _sender_of(exchange: Exchange) -> ClientLoad | None:
    visit = exchange.context
    return visit.client if isinstance(visit, Visit) else None


VIEW = view_of(_sender_of)
"""Requests as the queue sees them."""


def held_notes(
    router: RequestRouter[Exchange], ticker: Ticker[Exchange], clock: Callable[[], float]
) -> Callable[[Exchange], None]:
    """Return a callback for responses held by their clients: it bounds these clients."""

    def note(exchange: Exchange) -> None:
        visit = exchange.context
        if isinstance(visit, Visit) and (throttler := router.throttlers.get(visit.key)) is not None:
            throttler.shared.note(exchange, clock(), is_unread=exchange.is_held)
            router.schedule.schedule_tick(visit.key)
            ticker.schedule()

    return note


def named_revision(head: RequestHead) -> tuple[list[bytes], list[bytes]]:
    """Return the headers of a Gateway that name the revision."""
    return [*head.values(b"knative-serving-namespace")], [*head.values(b"knative-serving-revision")]


class AccessGate:
    """Rejects requests that break the access rule of their route. ``key`` is the cluster key."""

    def __init__(self, key: bytes, clients: Clients, metrics: ActivatorMetrics) -> None:
        self._key = key
        self._clients = clients
        self._metrics = metrics
        self._wrong = WrongTokens()

    def is_refused(self, exchange: Exchange, rule: AccessRule, *, now_s: float) -> bool:
        """Reject a request, or let it through. ``now_s`` is seconds since the epoch."""
        if rule.is_private and self._refuse_without_token(exchange, rule, now_s):
            return True
        tokens = [*exchange.head.values(CALLER)]
        refusal = caller_refusal(rule, tokens, read=lambda text: read_caller_token(self._key, text, now_s=now_s))
        if refusal is not None:
            exchange.respond(refusal.status, refusal.text, refusal.headers)
        return refusal is not None

    def _refuse_without_token(self, exchange: Exchange, rule: AccessRule, now_s: float) -> bool:
        """Reject a request without the token of a private service; otherwise strip our own header."""
        head = exchange.head
        own, usual = [*head.values(OWN_AUTHORIZATION)], [*head.values(b"authorization")]
        token = access_token(self._key, namespace=rule.namespace, route=rule.route, version=rule.version)
        refusal = access_refusal(rule, token, own=own, usual=usual)
        if refusal is None:
            if own:
                exchange.head = head.without(lambda line: line.name == OWN_AUTHORIZATION)
            return False
        wait_s = self._note_wrong(exchange, rule, now_s) if own or usual else 0.0
        if wait_s:
            headers = b"Content-Type: text/plain; charset=utf-8\r\nRetry-After: %d\r\n" % math.ceil(wait_s)
            exchange.respond(429, b"too many wrong tokens from one address\n", headers)
        else:
            exchange.respond(refusal.status, refusal.text, refusal.headers)
        return True

    def _note_wrong(self, exchange: Exchange, rule: AccessRule, now_s: float) -> float:
        address = client_of(exchange, self._clients).address
        wrong = self._wrong.note(address, now_s)
        self._metrics.wrong_tokens.inc()
        if wrong.is_news:
            _log.warning("access.guessed", extra={"client": address, "service": f"{rule.namespace}/{rule.route}"})
        return wrong.wait_s


class TokenGate:
    """Checks JSON Web Tokens. The checker is created, and its modules imported, on first use."""

    def __init__(self) -> None:
        self._checker: JwtChecker | None = None

    def admits(self, exchange: Exchange, rule: AccessRule, *, again: Callable[[Exchange], None]) -> bool:
        """Whether a request is admitted; see ``JwtChecker``."""
        if self._checker is None:
            from serving.activator.io.jwtcheck import JwtChecker  # noqa: PLC0415 - as said

            self._checker = JwtChecker()
        return self._checker.admits(exchange, rule, again=again)


def begin_session(exchange: Exchange) -> tuple[int, bytes]:
    """Return a new session, and the header line that gives it to the client."""
    return new_session(os.urandom(16), is_secure=exchange.peer.scheme_of(exchange.head) == b"https")


def respond_early(exchange: Exchange, visit: Visit, site: Site) -> None:
    """Send a page, or the beginning of a stream, while a request waits for its first pod."""
    if not (exchange.is_waiting and visit.is_cold):
        return
    if site.policy.has_placeholder and exchange.request_complete:
        _offer_placeholder(exchange, visit, service=site.route.partition("/")[2])
    if site.policy.has_start_events and not visit.is_grpc:
        _offer_events(exchange)


def _offer_events(exchange: Exchange) -> None:
    from serving.net.proxy.forwarding.earlyevents import begin_events, wants_events  # noqa: PLC0415 - few routes have them

    if wants_events(exchange.head, exchange.body.peek()):
        begin_events(exchange, later=asyncio.get_running_loop().call_later)


def _offer_placeholder(exchange: Exchange, visit: Visit, *, service: str) -> None:
    """Show a browser a page, unless a pod takes the request soon."""

    def show() -> None:
        if exchange.is_waiting and visit.is_cold:
            exchange.respond(503, placeholder_page(service), PLACEHOLDER_HEADERS + exchange.response_headers)

    if wants_placeholder(exchange.head.method, exchange.head.get(b"accept")):
        asyncio.get_running_loop().call_later(PLACEHOLDER_AFTER_S, show)


def begin_trace(tracer: Tracer, exchange: Exchange, visit: Visit) -> None:
    """Generate trace ids for a request to be traced, and pass them to the pod."""
    visit.trace = tracer.begin(visit.traceparent)
    if visit.trace is not None:
        visit.traceparent = visit.trace.traceparent
        exchange.head = with_traceparent(exchange.head, visit.traceparent)


def without_agent(head: RequestHead) -> RequestHead:
    """A head without a User-Agent that a queue-proxy would take for a probe's."""
    return head.without(lambda line: line.name == b"user-agent" and is_probe_agent(line.value))


def client_of(exchange: Exchange, clients: Clients) -> ClientLoad:
    """Return the load of a request's client: the connection's peer, unless a trusted proxy names another."""
    peer = exchange.peer
    if peer.is_trusted:
        return clients.load_of(peer.address.decode(), [*exchange.head.values(b"x-forwarded-for")])
    load = peer.load = clients.load_of(peer.address.decode(), ())
    return load
