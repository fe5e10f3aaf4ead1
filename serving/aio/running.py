"""Run the application on a socket that another process has bound and keeps open."""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

# Watches end at once; the remaining calls take milliseconds.
_SHUTDOWN_S = 5.0


@contextlib.asynccontextmanager
async def running(
    application: web.Application,
    listener: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    shutdown_s: float = _SHUTDOWN_S,
) -> AsyncIterator[None]:
    """Serve, over TLS if there is a context for it, while the context lasts. Leaving it ends watches, lets calls finish, and leaves the socket open."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_s)
    await runner.setup()
    try:
        # A copy: the site closes its socket, and the original must stay open for the next process.
        await web.SockSite(runner, listener.dup(), ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()
