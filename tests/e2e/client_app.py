"""An app for tests of clients: large bodies in both directions, server-sent events and a websocket."""

import asyncio
import hashlib
import os

from aiohttp import WSMsgType, web

_PIECE = bytes(range(256)) * 256


async def _digest(request: web.Request) -> web.Response:
    """Respond with the SHA-256 of the request body."""
    digest = hashlib.sha256()
    async for piece in request.content.iter_any():
        digest.update(piece)
    return web.Response(text=digest.hexdigest())


async def _big(request: web.Request) -> web.StreamResponse:
    """Respond with ``pieces`` pieces of 64 KiB."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(int(request.query["pieces"])):
        await response.write(_PIECE)
    await response.write_eof()
    return response


class _Events:
    """A stream of server-sent events, one per POST."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[str] = asyncio.Queue()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: begun\n\n")
        while (text := await self._messages.get()) != "end":
            await response.write(f"data: {text}\n\n".encode())
        return response

    async def broadcast(self, request: web.Request) -> web.Response:
        self._messages.put_nowait(await request.text())
        return web.Response(status=204)


async def _socket(request: web.Request) -> web.WebSocketResponse:
    """Echo each message twice."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data * 2)
        else:
            await socket.send_bytes(message.data * 2)
    return socket


def main() -> None:
    """Serve until the process ends."""
    events = _Events()
    app = web.Application(client_max_size=0)
    app.add_routes(
        [
            web.post("/digest", _digest),
            web.get("/big", _big),
            web.get("/events", events.stream),
            web.post("/events", events.broadcast),
            web.get("/socket", _socket),
        ]
    )
    web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]), print=None)


if __name__ == "__main__":
    main()
