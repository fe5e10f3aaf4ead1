"""Finds the user of a request: the holder of a token, or a user named by an authenticating proxy.

A token comes as a bearer token, or in ``/?token=``, which sets a cookie for views only. The query token
(``serving.net.metrics.queries``) shows all data; a token of ``serving token create`` shows its namespaces.
A proxy names the user in a header, which is valid only with the proxy's secret: a client's copy is
ignored, because only the proxy has the secret.
"""

import asyncio
import contextvars
import hashlib
import logging
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from aiohttp import web

from serving.core.model.errors import ClusterError
from serving.core.model.grants import Grant, Role
from serving.core.traffic.wrongtokens import WrongTokens
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import TOKEN_REVIEW
from serving.net.cluster.port import Cluster
from serving.net.metrics.queries import REFUSED_HEADERS, QueryGate, bearer_of, is_same
from serving.tools.dashboard.scope import reviewed_grant

_log = logging.getLogger(__name__)
_K = TypeVar("_K")
_V = TypeVar("_V")
PROXY_SECRET_HEADER = "X-Serving-Proxy-Secret"  # noqa: S105 - the name of a header
EVERYTHING = Grant(user="", role=Role.VIEW)
"""The grant of the query token."""

REVIEW_VALID_S = 5.0
"""Validity of a token review, and interval for rechecking the rights of an open stream, in seconds."""

# Browsers send cookies to all ports of a host: each dashboard therefore has a separate cookie name.
_COOKIE = "serving-view"
_OWN_TOKEN = ("actions/", "logs")
# The form of tokens from ``serving token create``; other texts need no review.
_USER_TOKEN = re.compile(r"[a-z0-9-]{1,40}\.[A-Za-z0-9_-]{43}")
_KEPT_MAX = 1000
_REVIEWS_MAX = 4
_NOTHING = Grant(user="", role=Role.VIEW, namespaces=frozenset())
_grant: contextvars.ContextVar[Grant] = contextvars.ContextVar("dashboard_grant", default=_NOTHING)
_actor: contextvars.ContextVar[Grant | None] = contextvars.ContextVar("dashboard_actor", default=None)


def current_grant() -> Grant:
    """The namespaces that the current request may see, as a grant."""
    return _grant.get()


def current_actor() -> Grant | None:
    """The grant for actions of the current request; None if actions require the dashboard's token."""
    return _actor.get()


class TokenUsers:
    """Finds the users of tokens by TokenReviews, and stores the tokens behind cookies, in memory only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reviewed: OrderedDict[bytes, tuple[Grant | None, float]] = OrderedDict()
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._turns = asyncio.Semaphore(_REVIEWS_MAX)

    async def grant_of(self, token: str) -> Grant | None:
        """The grant of a token's user; None if the API server does not know the token, or does not respond."""
        if not _USER_TOKEN.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        grant, until_s = self._reviewed.get(digest, (None, 0.0))
        if now_s() < until_s:
            return grant
        async with self._turns:
            try:
                grant = reviewed_grant(await self._cluster.create(TOKEN_REVIEW, {"spec": {"token": token}}))
            except ClusterError:
                grant = None
        _store(self._reviewed, digest, (grant, now_s() + REVIEW_VALID_S))
        return grant

    def cookie_for(self, token: str) -> str:
        """The value of a new cookie for a token."""
        value = secrets.token_urlsafe()
        _store(self._tokens, value, token)
        return value

    def token_behind(self, cookie: str) -> str:
        """The token of a cookie; "" for an unknown cookie."""
        return self._tokens.get(cookie, "")


class Viewers:
    """Finds the grant of each request. Without ``queries`` all users see everything, except users behind a proxy.

    A proxy sends the user's name in ``header``, and ``secret``; ``users`` has the grants. A ``header`` of "" disables
    users behind a proxy. ``tokens`` finds users by their tokens; None disables such users.
    """

    def __init__(
        self,
        queries: QueryGate | None = None,
        *,
        header: str = "",
        secret: str = "",
        users: Mapping[str, Grant] = MappingProxyType({}),
        tokens: TokenUsers | None = None,
    ) -> None:
        self._queries = queries
        self._header = header
        self._secret = secret
        self._users = users
        self._tokens = tokens
        self._wrong = WrongTokens()

    async def admit(self, request: web.Request) -> web.Response | None:
        """Set the request's grant. Return a response that rejects the request or sets the cookie, else None."""
        # One task serves all requests of a connection: each request begins without the rights of the previous one.
        _grant.set(_NOTHING)
        _actor.set(None)
        if self._header and is_same(request.headers.get(PROXY_SECRET_HEADER, ""), self._secret):
            return self._admit_user(request)
        if self._queries is None:
            _grant.set(EVERYTHING)
            return None
        if await self._is_user(request):
            return None
        if _has_own_gate(request):
            # This path rejects all tokens except the dashboard's.
            _grant.set(EVERYTHING)
            return None
        return await self._refusal(request, self._queries)

    async def _is_user(self, request: web.Request) -> bool:
        """Set the grant of the user whose token is in the header or, for views, in the cookie; return whether set."""
        if self._tokens is None:
            return False
        grant = await self._tokens.grant_of(bearer_of(request.headers.getall("Authorization", [])))
        _actor.set(grant)
        if grant is None and not _has_own_gate(request):
            behind = self._tokens.token_behind(request.cookies.get(_cookie_of(request), ""))
            # A link with another token replaces the cookie.
            grant = None if "token" in request.query else await self._tokens.grant_of(behind)
        if grant is not None:
            _grant.set(grant)
        return grant is not None

    def _admit_user(self, request: web.Request) -> web.Response | None:
        names = request.headers.getall(self._header, [])
        if len(names) != 1 or not names[0].strip():
            text = f"the proxy must name one user in {self._header}; it names {len(names)}\n"
            return web.Response(status=401, text=text)
        grant = self._users.get(names[0].strip())
        if grant is None:
            text = f"the user {names[0].strip()} is not one of proxy-users of config-dashboard\n"
            return web.Response(status=403, text=text)
        _grant.set(grant)
        _actor.set(grant)
        return None

    async def _refusal(self, request: web.Request, queries: QueryGate) -> web.Response | None:
        cookie, view, token = _cookie_of(request), queries.view(), request.query.get("token")
        if request.path == "/" and token is not None:
            value = view if is_same(token, queries.token()) else ""
            if not value and self._tokens is not None and await self._tokens.grant_of(token) is not None:
                value = self._tokens.cookie_for(token)
            if value:
                # The redirect removes the token from the address, where users could copy it.
                response = web.Response(status=303, headers={"Location": "/"})
                response.set_cookie(cookie, value, httponly=True, samesite="Lax")
                return response
        objection = queries.objection(request.headers.getall("Authorization", []))
        if is_same(request.cookies.get(cookie, ""), view) or not objection:
            _grant.set(EVERYTHING)
            return None
        if token is not None or "Authorization" in request.headers:
            wrong = self._wrong.record(request.remote or "", now_s())
            if wrong.is_news:
                _log.warning("dashboard.guessed", extra={"client": request.remote})
            if wrong.wait_s:
                headers = {"Retry-After": str(math.ceil(wrong.wait_s))}
                return web.Response(status=429, text="too many wrong tokens from one address\n", headers=headers)
        text = f"{objection}`serving dashboard` prints the link that opens this page.\n"
        return web.Response(status=401, text=text, headers=REFUSED_HEADERS)


def _has_own_gate(request: web.Request) -> bool:
    """Whether the request is for logs or an action, which require the dashboard's token."""
    return request.path.removeprefix("/").startswith(_OWN_TOKEN)


def _cookie_of(request: web.Request) -> str:
    return f"{_COOKIE}-{request.url.port}"


def _store(cache: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > _KEPT_MAX:
        cache.popitem(last=False)
