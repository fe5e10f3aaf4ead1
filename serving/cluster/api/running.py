"""Run the application on a socket that somebody else has bound and will go on holding."""

import contextlib
import socket
from collections.abc import AsyncIterator

from aiohttp import web

__all__ = ["running"]

# Watches are ended at once; what is left are calls, which take milliseconds.
_SHUTDOWN_S = 5.0


@contextlib.asynccontextmanager
async def running(
    application: web.Application, listener: socket.socket, *, shutdown_s: float = _SHUTDOWN_S
) -> AsyncIterator[None]:
    """Serve while the context lasts. Leaving it ends watches, lets calls finish, and leaves the socket open."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_s)
    await runner.setup()
    try:
        # A copy: the site closes what it is given, and the holder's must stay open for who comes next.
        await web.SockSite(runner, listener.dup()).start()
        yield
    finally:
        await runner.cleanup()
