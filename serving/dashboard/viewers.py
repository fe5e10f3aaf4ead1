"""Finds the user of a request: the holder of the query token, or a user whom an authenticating proxy names.

The query token (``serving.metrics.queries``) comes as a bearer token, or as the cookie that ``/?token=`` sets and that opens views alone.
A proxy names the user in a header, which counts only with the proxy's secret beside it: a copy that a client sends is
ignored, because only the proxy has the secret.
"""

import contextvars
from collections.abc import Mapping
from types import MappingProxyType

from aiohttp import web

from serving.metrics.queries import REFUSED_HEADERS, QueryGate, is_same
from serving.model.grants import Grant, Role

PROXY_SECRET_HEADER = "X-Serving-Proxy-Secret"  # noqa: S105 - the name of a header
EVERYTHING = Grant(user="", role=Role.VIEW)
"""What the query token shows."""

# Browsers send cookies to all ports of a host: each dashboard has a name of its own.
_COOKIE = "serving-view"
# The dashboard's own token is enough for them.
_OWN_TOKEN = ("actions/", "logs")


_NOTHING = Grant(user="", role=Role.VIEW, namespaces=frozenset())
_grant: contextvars.ContextVar[Grant] = contextvars.ContextVar("dashboard_grant", default=_NOTHING)
_actor: contextvars.ContextVar[Grant | None] = contextvars.ContextVar("dashboard_actor", default=None)


def current_grant() -> Grant:
    """The grant with which the current request sees the dashboard."""
    return _grant.get()


def current_actor() -> Grant | None:
    """The grant with which the current request acts without the dashboard's token; None if only the token counts."""
    return _actor.get()


class Viewers:
    """Finds the grant of each request. Without ``queries`` everything is shown to all but a proxy's users.

    ``header`` names the user if ``secret`` comes with it; ``users`` has their grants. A ``header`` of "" takes no users.
    """

    def __init__(
        self,
        queries: QueryGate | None = None,
        *,
        header: str = "",
        secret: str = "",
        users: Mapping[str, Grant] = MappingProxyType({}),
    ) -> None:
        self._queries = queries
        self._header = header
        self._secret = secret
        self._users = users

    def admit(self, request: web.Request) -> web.Response | None:
        """Set the request's grant; return a response to refuse it or to set the cookie, else None."""
        # One task serves all requests of a connection: each begins without the rights of the one before.
        _grant.set(_NOTHING)
        _actor.set(None)
        if self._header and is_same(request.headers.get(PROXY_SECRET_HEADER, ""), self._secret):
            return self._admit_user(request)
        refused = None
        if self._queries is not None and not request.path.removeprefix("/").startswith(_OWN_TOKEN):
            refused = self._refusal(request, self._queries)
        if refused is None:
            _grant.set(EVERYTHING)
        return refused

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

    def _refusal(self, request: web.Request, queries: QueryGate) -> web.Response | None:
        cookie, view, given = f"{_COOKIE}-{request.url.port}", queries.view(), request.query.get("token")
        if request.path == "/" and given is not None and is_same(given, queries.token()):
            # The token does not stay in the address, from where it would be copied.
            response = web.Response(status=303, headers={"Location": "/"})
            response.set_cookie(cookie, view, httponly=True, samesite="Lax")
            return response
        if is_same(request.cookies.get(cookie, ""), view):
            return None
        objection = queries.objection(request.headers.getall("Authorization", []))
        text = f"{objection}`serving dashboard` prints the link that opens this page.\n"
        return web.Response(status=401, text=text, headers=REFUSED_HEADERS) if objection else None
