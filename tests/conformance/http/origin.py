"""An origin server for the conformance cases: the app behind the proxies.

    uvicorn tests.conformance.http.origin:app

It echoes bodies at ``/``, headers at ``/echo`` and cookies at ``/cookie``, knows which methods it has, and answers
conditional requests.
"""

import http.cookies
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

from tests.conformance.http.echo import Receive, Send, body_of

_ETAG = b'"e1"'
_MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
_ALLOW = [(b"allow", b"GET, HEAD, POST, OPTIONS")]
_TEXT = (b"content-type", b"text/plain")


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer one request."""
    body = await body_of(scope, receive, send)
    if body is None:
        return
    status, headers, text = _response(scope, body)
    length = [] if status == 204 else [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": status, "headers": headers + length})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else text})


def _response(scope: dict[str, Any], body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    method, headers = scope["method"], dict(scope["headers"])
    if method == "OPTIONS":
        return 204, _ALLOW, b""
    if method not in {"GET", "HEAD", "POST"}:
        return 405, [*_ALLOW, _TEXT], b"no such method here\n"
    if scope["path"] == "/echo":
        return 200, [_TEXT], b"".join(b"%b: %b\n" % (name.title(), value) for name, value in scope["headers"])
    if scope["path"] == "/cookie":
        parsed = http.cookies.SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        return 200, [_TEXT], "".join(f"{name}={morsel.value}\n" for name, morsel in parsed.items()).encode()
    validators = [(b"etag", _ETAG), (b"last-modified", format_datetime(_MODIFIED, usegmt=True).encode())]
    if method != "POST" and _is_unchanged(headers):
        return 304, validators, b""
    return 200, [*validators, _TEXT], body if method == "POST" else b"OK"


def _is_unchanged(headers: dict[bytes, bytes]) -> bool:
    """Whether a conditional request already has what is here (RFC 9110, 13.2.2)."""
    if (tags := headers.get(b"if-none-match")) is not None:
        return tags == b"*" or _ETAG in [tag.strip().removeprefix(b"W/") for tag in tags.split(b",")]
    try:
        since = parsedate_to_datetime(headers.get(b"if-modified-since", b"").decode())
    except ValueError:
        return False
    # A date to come is not a valid one (RFC 9110, 13.1.3).
    return since.replace(tzinfo=UTC) <= datetime.now(tz=UTC) and since.replace(tzinfo=UTC) >= _MODIFIED
