"""An app with short and slow requests, bodies, websockets and events."""

import asyncio
import os

import uvloop
from aiohttp import WSMsgType, web

WORK_S = float(os.environ.get("WORK_S", "0.01"))
SLOW_S = 0.1
EVENT_PERIOD_S = 0.5
EXIT_LAG_S = 0.05
_KEPT: list[bytearray] = []


async def respond(_: web.Request) -> web.Response:
    """A short request: the process that answered."""
    await asyncio.sleep(WORK_S)
    return web.Response(text=str(os.getpid()))


async def slow(_: web.Request) -> web.Response:
    """A request of 100 ms."""
    await asyncio.sleep(SLOW_S)
    return web.Response(text="ok")


async def count(request: web.Request) -> web.Response:
    """The number of bytes in a body."""
    return web.Response(text=f"{len(await request.read())}\n")


async def end(_: web.Request) -> web.Response:
    """End right after the answer: an app that goes by itself."""
    asyncio.get_running_loop().call_later(EXIT_LAG_S, os._exit, 3)
    return web.Response(text="ends")


async def grow(request: web.Request) -> web.Response:
    """Hold so many MiB more."""
    _KEPT.append(bytearray(os.urandom(1) * (int(request.query["mib"]) << 20)))
    return web.Response(text="grown")


async def echo(request: web.Request) -> web.WebSocketResponse:
    """Echo the messages of a websocket."""
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await (socket.send_bytes if message.type is WSMsgType.BINARY else socket.send_str)(message.data)
    return socket


async def events(request: web.Request) -> web.StreamResponse:
    """Server-sent events without end; the query's ``pause`` is the time between two in seconds."""
    pause_s = float(request.query.get("pause", EVENT_PERIOD_S))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    number = 0
    while True:
        number += 1
        await response.write(b"data: %d\n\n" % number)
        await asyncio.sleep(pause_s)


def main() -> None:
    """Serve until ended."""
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/", respond), web.get("/slow", slow), web.post("/", count), web.put("/", count)])
    app.add_routes([web.post("/end", end), web.post("/grow", grow), web.get("/echo", echo), web.get("/events", events)])
    port, loop = int(os.environ["PORT"]), uvloop.new_event_loop()
    web.run_app(
        app, host="127.0.0.1", port=port, print=None, access_log=None, shutdown_timeout=1, backlog=4096, loop=loop
    )


if __name__ == "__main__":
    main()
