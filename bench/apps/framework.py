"""The same as ``sockets``, on aiohttp: an app whose own start takes a third of a second."""

import asyncio
import os
import socket
import time
from typing import Any

from aiohttp import web

__all__: list[str] = []


class Listener(socket.socket):
    """Notes when its first connection was accepted."""

    accepted_s = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket does."""
        connection, address = super().accept()
        self.accepted_s = self.accepted_s or time.time()
        return connection, address


async def main() -> None:
    """Listen until ended."""
    listener = Listener()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(os.environ["PORT"])))

    async def answer(_: web.Request) -> web.Response:
        began_s = time.time()
        return web.Response(text=f"{os.environ['EXEC_S']} {listener.accepted_s:.6f} {time.time() - began_s:.6f}\n")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
