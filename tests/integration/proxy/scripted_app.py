"""An ASGI app that forwards each request to a scripted upstream, over its own connection."""

import asyncio

from serving.queueproxy.io.asgi.call import App, Receive, Scope, Send
from tests.integration.proxy.peers import Link

_PIECE_BYTES = 65536


def scripted_app(address: tuple[str, int]) -> App:
    """The app in front of an upstream at an address."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        link = await Link.to(address)
        leaving = asyncio.create_task(_send_body(link, scope, receive))
        responding = asyncio.create_task(_respond(link, scope, send))
        try:
            await asyncio.wait([leaving, responding], return_when=asyncio.FIRST_COMPLETED)
            if responding.done():
                responding.result()
        finally:
            for task in (leaving, responding):
                task.cancel()
            await link.closed()

    return app


async def _send_body(link: Link, scope: Scope, receive: Receive) -> None:
    """Send the request; return when the client has disconnected."""
    headers = [(name.title(), value) for name, value in scope["headers"]]
    lines = b"".join(b"%b: %b\r\n" % line for line in headers)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    link.send(b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode(), target, lines))
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    while (message := await receive())["type"] == "http.request":
        body = message.get("body", b"")
        link.send(b"%x\r\n%b\r\n" % (len(body), body) if is_chunked and body else body)
        if is_chunked and not message.get("more_body"):
            link.send(b"0\r\n\r\n")


async def _respond(link: Link, scope: Scope, send: Send) -> None:
    head = await link.head()
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    await send({"type": "http.response.start", "status": int(first.split()[1]), "headers": headers})
    length = next((int(value) for name, value in headers if name == b"content-length"), None)
    remaining = 0 if scope["method"] == "HEAD" else length
    assert remaining is not None, "the framings of an answer are the server's"
    while remaining:
        piece = await link.reader.read(min(remaining, _PIECE_BYTES))
        if not piece:
            # An upstream that dies during its response is an app that raises an error.
            raise ConnectionResetError
        remaining -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": bool(remaining)})
    if not length:
        await send({"type": "http.response.body", "body": b""})
