"""An app with short requests, websockets and events, which can be made to end or to grow."""

import asyncio
import os

from aiohttp import web

__all__: list[str] = []

WORK_S = float(os.environ.get("WORK_S", "0.01"))
EVENT_PERIOD_S = 0.5
EXIT_LAG_S = 0.05
_KEPT: list[bytearray] = []


async def answer(_: web.Request) -> web.Response:
    """A short request: the process that answered."""
    await asyncio.sleep(WORK_S)
    return web.Response(text=str(os.getpid()))


async def end(_: web.Request) -> web.Response:
    """End right after the answer: an app that goes by itself."""
    asyncio.get_running_loop().call_later(EXIT_LAG_S, os._exit, 3)
    return web.Response(text="ends")


async def grow(request: web.Request) -> web.Response:
    """Hold so many MiB more."""
    _KEPT.append(bytearray(os.urandom(1) * (int(request.query["mib"]) << 20)))
    return web.Response(text="grown")


async def echo(request: web.Request) -> web.WebSocketResponse:
    """A websocket that returns what it receives."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(message.data)
    return socket


async def events(request: web.Request) -> web.StreamResponse:
    """Server-sent events without end."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    while True:
        await response.write(b"data: tick\n\n")
        await asyncio.sleep(EVENT_PERIOD_S)


def main() -> None:
    """Serve until ended."""
    app = web.Application()
    app.add_routes([web.get("/", answer), web.post("/end", end), web.post("/grow", grow)])
    app.add_routes([web.get("/echo", echo), web.get("/events", events)])
    web.run_app(app, host="127.0.0.1", port=int(os.environ["PORT"]), print=None, shutdown_timeout=1)


if __name__ == "__main__":
    main()
