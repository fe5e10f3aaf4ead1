"""Serves a daemon's metrics page on a separate listener, never on the public port.

``/metrics`` is the page, and ``/healthz`` shows that the loop runs. A daemon may add further paths. The page contains
names of revisions, so it needs the query token (``queries``), and the Host header is checked.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, cast

from aiohttp import web
from aiohttp.typedefs import Middleware

from serving.core.model.errors import Problem, SettingsError
from serving.net.aio.supervise import supervise
from serving.net.metrics.page import MetricsPage, wanted_type, watch_lag
from serving.net.metrics.queries import REFUSED_HEADERS, QueryGate, is_own_host

if TYPE_CHECKING:
    from serving.net.aio.handshakes import Handshakes

# Watches end immediately; the remaining calls take milliseconds.
_SHUTDOWN_S = 5.0

TextSource = Callable[[Mapping[str, str]], str | None]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Front = Callable[[Callable[[], asyncio.Protocol]], asyncio.Protocol]
"""Wraps a protocol factory, for example with TLS."""

_BACKLOG = 128
# Rendered in less than a millisecond.
_TURN_BYTES = 16_384
_VERBS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "watch"}


@contextlib.asynccontextmanager
async def running(
    application: web.Application,
    listener: socket.socket,
    *,
    tls: "Handshakes | None" = None,
    shutdown_s: float = _SHUTDOWN_S,
    front: Front | None = None,
) -> AsyncIterator[None]:
    """Serve while the context is open, over TLS with limited handshakes if ``tls`` is set, or behind ``front``.

    The listener's socket stays open.
    """
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_s)
    await runner.setup()
    try:
        # A duplicate, because the site closes its socket, and the original must stay open for the next process.
        make = cast("Callable[[], asyncio.Protocol]", runner.server)
        if tls is not None:
            async with tls.serving(listener.dup(), make):
                yield
        elif front is None:
            await web.SockSite(runner, listener.dup()).start()
            yield
        else:
            before = front
            async with await asyncio.get_running_loop().create_server(lambda: before(make), sock=listener.dup()):
                yield
    finally:
        await runner.cleanup()


# A reader of the page does not delay the end.
_SHUTDOWN_S = 0.5


@contextlib.asynccontextmanager
async def serve_page(
    page: MetricsPage,
    where: socket.socket | str,
    *,
    gate: QueryGate,
    texts: Mapping[str, TextSource] | None = None,
    open_texts: Mapping[str, TextSource] | None = None,
    front: Front | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Serve a page on a socket or an address while the context is open; yields the address.

    Also measures the loop's lag.

    ``texts`` maps further paths, such as "/routes/{namespace}/{name}", to functions from the path's parts to the
    response's text; None gives a 404. ``gate`` authorises all queries except ``/healthz`` and ``open_texts``. ``front``
    accepts TLS before the page's protocol.

    Raises:
        SettingsError: when the address is invalid or in use.
    """
    listener = where if isinstance(where, socket.socket) else _bound(where)
    app = web.Application(middlewares=[_check_host])
    app.router.add_get("/metrics", _guarded(gate, _PageHandlers(page).metrics))
    app.router.add_get("/healthz", _healthz)
    for path, text_of in (texts or {}).items():
        app.router.add_get(path, _guarded(gate, _text_handler(text_of)))
    for path, text_of in (open_texts or {}).items():
        app.router.add_get(path, _text_handler(text_of))
    try:
        async with supervise() as tasks, running(app, listener, shutdown_s=_SHUTDOWN_S, front=front):
            tasks.keep_running(lambda: watch_lag(page), name="loop lag")
            yield listener.getsockname()[:2]
    finally:
        if listener is not where:
            listener.close()


@web.middleware
async def _check_host(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Respond 421 to a Host that a foreign site could rebind. Prometheus uses an address or a Service's name."""
    if not is_own_host(request.host, ()):
        return web.Response(status=421, text=f"{request.host!r} is no name of this daemon; use its address\n")
    return await handler(request)


def measured(on_response: Callable[[str, int, float], None]) -> Middleware:
    """A middleware that reports each response: verb ("watch" for streams), status and duration."""

    @web.middleware
    async def measure(request: web.Request, handler: _Handler) -> web.StreamResponse:
        begun_s, status = time.perf_counter(), 0
        verb = "watch" if request.query.keys() & {"watch", "follow"} else request.method
        try:
            response = await handler(request)
            status = response.status
        finally:
            on_response(verb if verb in _VERBS else "other", status, time.perf_counter() - begun_s)
        return response

    return measure


class _PageHandlers:
    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    async def metrics(self, request: web.Request) -> web.Response:
        """Serve the page, yielding to other tasks while it is rendered."""
        accept = ",".join(request.headers.getall("Accept", []))
        pieces, unturned_bytes = [], 0
        for piece in self._page.slices(accept):
            pieces.append(piece)
            unturned_bytes += len(piece)
            if unturned_bytes >= _TURN_BYTES:
                unturned_bytes = 0
                await asyncio.sleep(0)
        response = web.Response(body="".join(pieces).encode(), headers={"Content-Type": wanted_type(accept)})
        response.enable_compression()
        return response


def _guarded(gate: QueryGate, handler: _Handler) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        objection = gate.objection(request.headers.getall("Authorization", []))
        return (
            web.Response(status=401, text=objection, headers=REFUSED_HEADERS) if objection else await handler(request)
        )

    return handle


def _text_handler(text_of: TextSource) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        text = text_of(request.match_info)
        return web.Response(status=404) if text is None else web.Response(text=text)

    return handle


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host.strip("[]"), int(port)), backlog=_BACKLOG)
    except (OSError, ValueError) as error:
        what = f"cannot be listened on: {error}"
        raise SettingsError([Problem(where=address, what=what, expected="a free address and port")]) from error
