"""Headers and JSON of responses, restricted to the namespaces of the user, and the range of time of a request."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from serving.tools.dashboard.scope import visible
from serving.tools.dashboard.viewers import current_grant

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
LIVE_S = 3600.0
"""What is shown without a range, in seconds."""
RANGE_MAX_S = 366 * 86_400.0
"""The longest range of a query, in seconds."""

UNREAD = "the history cannot be read; the dashboard's log says why\n"
# Two clocks differ a little.
_AHEAD_S = 60.0
encode = msgspec.json.Encoder().encode


def refusal_of(request: web.Request) -> web.Response | None:
    """The response to a request for a namespace that the user has no right to, whether or not it exists; None to continue."""
    keys = [key for name in ("revision", "name") for key in request.query.getall(name, ()) if key]
    if all(current_grant().may_read(key) for key in keys):
        return None
    return web.Response(status=403, text="you have no right to see this namespace\n")


def json_response(body: Mapping[str, Any]) -> web.Response:
    """A JSON response with the parts of a body that the user may see."""
    return web.Response(body=encode(visible(body, current_grant())), content_type="application/json")


def json_response_of(owner: str, body: object) -> web.Response:
    """A JSON response whose whole body belongs to the namespace of ``owner``, a revision or service."""
    shown = body if current_grant().may_read(owner) else None
    return web.Response(body=encode(shown), content_type="application/json")


def range_of(request: web.Request, now_s: float, *, longest_s: float) -> tuple[float, float] | None:
    """The range in seconds since the epoch that a request asks for; None without one. Raises ``HTTPBadRequest``."""
    texts = [request.query.get(name) for name in ("from", "to")]
    if texts == [None, None]:
        return None
    try:
        from_s, to_s = (now_s if text is None else float(text) for text in texts)
    except ValueError:
        from_s, to_s = math.nan, math.nan
    if not (0 <= from_s < to_s <= now_s + _AHEAD_S and to_s - from_s <= longest_s):
        expected = f"two times in seconds since the epoch, not in the future, at most {longest_s:.0f} s apart"
        raise web.HTTPBadRequest(text=f"from={texts[0]} and to={texts[1]} are no range; expected {expected}\n")
    return from_s, to_s


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of all responses."""
    del request
    response.headers.update(HEADERS)
