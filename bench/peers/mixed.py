"""An app for ``make soak``, on aiohttp: answers, slow answers, bodies in chunks, a websocket that echoes, events.

python bench/peers/mixed.py PORT
"""

import asyncio
import sys

import uvloop
from aiohttp import web

__all__ = ["main"]

_SLOW_S = 0.1
_EVENT_S = 0.05


async def _answer(request: web.Request) -> web.Response:
    """The number of bytes that came."""
    body = await request.read()
    return web.Response(text=f"{len(body)}\n")


async def _slow(_: web.Request) -> web.Response:
    await asyncio.sleep(_SLOW_S)
    return web.Response(text="ok")


async def _echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data)
    return socket


async def _events(request: web.Request) -> web.StreamResponse:
    """An event each 50 ms, or as often as the query's ``pause`` says, for as long as somebody listens."""
    pause_s = float(request.query.get("pause", _EVENT_S))
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    number = 0
    while True:
        number += 1
        await stream.write(b"data: %d\n\n" % number)
        await asyncio.sleep(pause_s)


async def main(port: int) -> None:
    """Serve until killed."""
    app = web.Application()
    app.add_routes([web.get("/slow", _slow), web.get("/ws", _echo), web.get("/events", _events)])
    app.add_routes([web.route("*", "/", _answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main(int(sys.argv[1])))
