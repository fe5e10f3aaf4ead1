"""The extender over HTTP: ``POST /filter``, ``/prioritize`` and ``/explain``, ``GET /healthz``.

A call that cannot be read is a 400 with what was expected; before all nodes and pods are known it is a 503, and a
scheduler whose extender is ``ignorable`` goes on without.
"""

from collections.abc import Callable

from aiohttp import web

from serving.aio.clock import now_s
from serving.model.errors import InvalidValue
from serving.placement.extender import Extender, ExtenderCall, read_call

__all__ = ["application"]

# The names of 100,000 nodes, or 1,000 whole Nodes with their images.
_BODY_BYTES_MAX = 32 * 2**20


def application(extender: Extender, *, is_synced: Callable[[], bool]) -> web.Application:
    """The application of one extender."""

    def answering(answer: Callable[[ExtenderCall], bytes]) -> Callable[[web.Request], object]:
        async def handle(request: web.Request) -> web.Response:
            if not is_synced():
                return web.Response(status=503, text="not all nodes and pods are known yet\n")
            try:
                body = answer(read_call(await request.read()))
            except InvalidValue as error:
                return web.Response(status=400, text=f"{error}\n")
            return web.Response(body=body, content_type="application/json")

        return handle

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if is_synced() else 503, text="ok\n" if is_synced() else "not synced\n")

    made = web.Application(client_max_size=_BODY_BYTES_MAX)
    made.router.add_post("/filter", answering(extender.filter))  # type: ignore[arg-type] # a handler by another name
    made.router.add_post("/prioritize", answering(lambda call: extender.prioritize(call, now_s=now_s())))  # type: ignore[arg-type]
    made.router.add_post("/explain", answering(lambda call: extender.explain(call, now_s=now_s())))  # type: ignore[arg-type]
    made.router.add_get("/healthz", health)
    return made
