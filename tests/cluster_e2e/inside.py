"""An app for ``python -m serving.asgi``: it responds with the headers that it saw."""

import asyncio
import json
from typing import Any

_SLOW_S = 1.5


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
    """Handle one request; /slow takes a while."""
    del receive
    assert scope["type"] == "http"
    if scope["path"] == "/slow":
        await asyncio.sleep(_SLOW_S)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    body = json.dumps(headers).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
