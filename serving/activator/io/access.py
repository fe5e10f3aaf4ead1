"""Rejects requests that violate the access rule of their route."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.activator.routing.sites import CALLER, OWN_AUTHORIZATION, AccessRule, access_refusal, caller_refusal
from serving.core.traffic.clients import ClientLoad, Clients
from serving.core.traffic.wrongtokens import WrongTokens
from serving.net.metrics.activator import ActivatorMetrics
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.wire.tokens import access_token, read_caller_token

if TYPE_CHECKING:
    from serving.activator.io.jwtcheck import JwtChecker

_log = logging.getLogger(__name__)


class AccessGate:
    """Rejects requests that violate the access rule of their route. ``key`` is the cluster key."""

    def __init__(self, key: bytes, clients: Clients, metrics: ActivatorMetrics) -> None:
        self._key = key
        self._clients = clients
        self._metrics = metrics
        self._wrong = WrongTokens()

    def is_refused(self, exchange: Exchange, rule: AccessRule, *, now_s: float) -> bool:
        """Reject a request if its rule requires it; return whether it was rejected.

        ``now_s`` is seconds since the epoch.
        """
        if rule.is_private and self._refuse_without_token(exchange, rule, now_s):
            return True
        tokens = [*exchange.head.values(CALLER)]
        refusal = caller_refusal(rule, tokens, read=lambda text: read_caller_token(self._key, text, now_s=now_s))
        if refusal is not None:
            exchange.respond(refusal.status, refusal.text, refusal.headers)
        return refusal is not None

    def _refuse_without_token(self, exchange: Exchange, rule: AccessRule, now_s: float) -> bool:
        """Reject a request that lacks the token of a private service; return whether it was rejected.

        The token is removed from an admitted request, so that the app does not see it.
        """
        head = exchange.head
        own, usual = [*head.values(OWN_AUTHORIZATION)], [*head.values(b"authorization")]
        token = access_token(self._key, namespace=rule.namespace, route=rule.route, version=rule.version)
        refusal = access_refusal(rule, token, own=own, usual=usual)
        if refusal is None:
            if own:
                exchange.head = head.without(lambda line: line.name == OWN_AUTHORIZATION)
            return False
        wait_s = self._record_wrong(exchange, rule, now_s) if own or usual else 0.0
        if wait_s:
            headers = b"Content-Type: text/plain; charset=utf-8\r\nRetry-After: %d\r\n" % math.ceil(wait_s)
            exchange.respond(429, b"too many wrong tokens from one address\n", headers)
        else:
            exchange.respond(refusal.status, refusal.text, refusal.headers)
        return True

    def _record_wrong(self, exchange: Exchange, rule: AccessRule, now_s: float) -> float:
        address = client_of(exchange, self._clients).address
        wrong = self._wrong.record(address, now_s)
        self._metrics.wrong_tokens.inc()
        if wrong.is_news:
            _log.warning("access.guessed", extra={"client": address, "service": f"{rule.namespace}/{rule.route}"})
        return wrong.wait_s


class TokenGate:
    """Checks JSON Web Tokens. It creates the checker, and imports its modules, on first use."""

    def __init__(self) -> None:
        self._checker: JwtChecker | None = None

    def admits(self, exchange: Exchange, rule: AccessRule, *, again: Callable[[Exchange], None]) -> bool:
        """Whether a request is admitted now.

        False: it was rejected, or waits for signing keys. ``again`` is called with it after that wait.
        """
        if self._checker is None:
            from serving.activator.io.jwtcheck import JwtChecker  # noqa: PLC0415 - as said

            self._checker = JwtChecker()
        return self._checker.admits(exchange, rule, again=again)


def client_of(exchange: Exchange, clients: Clients) -> ClientLoad:
    """The load of a request's client: the connection's peer, or the client that a trusted proxy names."""
    peer = exchange.peer
    if peer.is_trusted:
        return clients.load_of(peer.address.decode(), [*exchange.head.values(b"x-forwarded-for")])
    load = peer.load = clients.load_of(peer.address.decode(), ())
    return load
