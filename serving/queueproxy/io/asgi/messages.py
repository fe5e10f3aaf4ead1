"""The types of ASGI (asgi.readthedocs.io, version 3.0), and the messages of an answer that the app does not give itself."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.queueproxy.io.podrequests import Headers

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# An extension of ASGI: a websocket's handshake is refused with an answer of HTTP; without it, the server answers 403.
_DENIAL = "websocket.http.response"


async def send_answer(scope: Scope, send: Send, *, status: int, body: bytes, headers: Headers) -> None:
    """Answer a request, or refuse the handshake of a websocket."""
    kind = "http.response" if scope["type"] == "http" else _DENIAL
    if kind == _DENIAL and _DENIAL not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1013, "reason": body.decode("latin-1")})
        return
    lines = [(name.lower(), value) for name, value in headers]
    lines.append((b"content-length", b"%d" % len(body)))
    await send({"type": f"{kind}.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.body", "body": body})
