"""The extender's HTTP server.

Paths: ``POST /filter``, ``/prioritize``, ``/explain`` and ``/bind``, ``GET /healthz`` and ``GET /watcher``. An invalid
call gets 400 with the expected form. Until all nodes and pods are known, a call gets 503; a scheduler whose extender is
``ignorable`` then continues without scores. ``/watcher`` is load-watcher's API, so that Trimaran's own plugins can use
the same measurements.
"""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from serving.core.model.errors import ClusterError, InvalidValue
from serving.net.aio.clock import now_s
from serving.nodes.extender.extender import BindingCall, Extender, ExtenderCall, read_binding, read_call
from serving.nodes.extender.loadreport import LoadReport, watcher_body

# Largest body: the names of 100,000 nodes, or 1,000 whole Nodes with their images.
_BODY_BYTES_MAX = 32 * 2**20
_NOT_BINDING = "this placement does not bind pods: set binds to true, and give it the right to create bindings"


class ExtenderServer:
    """Serves scheduler calls for one extender.

    ``report`` is the newest measurement of nodes, None before the first. ``bind`` is None if the extender must not bind
    pods.
    """

    def __init__(
        self,
        extender: Extender,
        *,
        is_synced: Callable[[], bool],
        report: Callable[[], LoadReport | None],
        bind: Callable[[BindingCall], Awaitable[None]] | None,
    ) -> None:
        self._extender = extender
        self._is_synced = is_synced
        self._report = report
        self._bind = bind

    def application(self) -> web.Application:
        """The aiohttp application."""
        extender = self._extender
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_post("/filter", self._handler(extender.filter))
        app.router.add_post("/prioritize", self._handler(lambda call: extender.prioritize(call, now_s=now_s())))
        app.router.add_post("/explain", self._handler(lambda call: extender.explain(call, now_s=now_s())))
        app.router.add_post("/bind", self._bind_pod)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/watcher", self._watcher)
        app.router.add_get("/watcher/health", self._watcher_health)
        return app

    def _handler(self, respond: Callable[[ExtenderCall], bytes]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if not self._is_synced():
                return web.Response(status=503, text="not all nodes and pods are known yet\n")
            try:
                body = respond(read_call(await request.read()))
            except InvalidValue as error:
                return web.Response(status=400, text=f"{error}\n")
            return web.Response(body=body, content_type="application/json")

        return handle

    async def _bind_pod(self, request: web.Request) -> web.Response:
        try:
            call = read_binding(await request.read())
        except InvalidValue as error:
            return web.Response(status=400, text=f"{error}\n")
        if self._bind is None:
            return _bound(_NOT_BINDING)
        try:
            await self._bind(call)
        except ClusterError as error:
            return _bound(str(error))
        return _bound("")

    async def _health(self, _: web.Request) -> web.Response:
        is_synced = self._is_synced()
        return web.Response(status=200 if is_synced else 503, text="ok\n" if is_synced else "not synced\n")

    async def _watcher(self, request: web.Request) -> web.Response:
        report, host = self._report(), request.query.get("host", "")
        body = None if report is None else watcher_body(report, host=host)
        if body is None:
            return web.Response(status=404, text=f"no metrics of {host or 'any node'} yet\n")
        return web.Response(body=body, content_type="application/json")

    async def _watcher_health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._report() is None else 200)


def _bound(error: str) -> web.Response:
    """The ExtenderBindingResult. An ``error`` of "" means that the pod is bound."""
    return web.Response(body=msgspec.json.encode({"Error": error}), content_type="application/json")
