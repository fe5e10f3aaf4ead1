"""The route prober confirms a Route after every activator serves it; a frozen activator only delays it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from serving.controller.io.route_prober import RouteProber
from serving.controller.routes import confirmation
from serving.core.model.objects import condition_of
from serving.core.model.routepolicy import route_digest
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster.kinds import ROUTE, SERVING_SERVICE
from tests.integration.fake_node import World, a_service, a_world, ready

RULES = ControllerSettings().host_rules

PATIENCE_S = 60.0
HELLO = ("default", "hello")


class Activator:
    """An activator that responds with the digests of its routes, and sets `is_probed`."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.content_type = "text/plain"
        self.is_probed = asyncio.Event()
        self.address = ""

    async def respond(self, request: web.Request) -> web.Response:
        self.is_probed.set()
        assert request.headers["K-Network-Probe"] == "route"
        digest = self.digests.get(request.match_info["route"])
        headers = {"Content-Type": self.content_type}
        return web.Response(body=(digest or "").encode("latin-1"), status=200 if digest else 404, headers=headers)


@asynccontextmanager
async def an_activator() -> AsyncIterator[Activator]:
    activator, application = Activator(), web.Application()
    application.router.add_get("/routes/{route:.+}", activator.respond)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    activator.address = site.name.removeprefix("http://")
    try:
        yield activator
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_prober(*addresses: str) -> AsyncIterator[tuple[RouteProber, asyncio.Queue[tuple[tuple[str, str], str]]]]:
    confirmed: asyncio.Queue[tuple[tuple[str, str], str]] = asyncio.Queue()
    prober = RouteProber(
        addresses=lambda: addresses, confirmed=lambda route, digest: confirmed.put_nowait((route, digest))
    )
    task = asyncio.create_task(prober.run())
    await asyncio.sleep(0)
    try:
        yield prober, confirmed
    finally:
        task.cancel()


async def test_route_is_confirmed_after_all_activators_serve_it() -> None:
    async with (
        an_activator() as activator,
        an_activator() as other,
        a_prober(activator.address, other.address) as (prober, confirmed),
    ):
        prober.start(HELLO, "new")
        activator.digests["default/hello"] = "new"
        other.digests["default/hello"] = "old"
        async with asyncio.timeout(PATIENCE_S):
            await other.is_probed.wait()
            assert confirmed.empty()
            other.digests["default/hello"] = "new"
            assert await confirmed.get() == (HELLO, "new")


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "text/plain; charset=base64"])
async def test_invalid_response_does_not_confirm_a_route(content_type: str) -> None:
    async with an_activator() as activator, a_prober(activator.address) as (prober, confirmed):
        activator.digests["default/hello"] = "\xff"
        activator.content_type = content_type
        prober.start(HELLO, "new")
        async with asyncio.timeout(PATIENCE_S):
            await activator.is_probed.wait()
            assert confirmed.empty()
            activator.digests["default/hello"] = "new"
            assert await confirmed.get() == (HELLO, "new")


async def test_later_probe_of_a_route_replaces_the_first() -> None:
    async with an_activator() as activator, a_prober(activator.address) as (prober, confirmed):
        prober.start(HELLO, "first")
        async with asyncio.timeout(PATIENCE_S):
            await activator.is_probed.wait()
            prober.start(HELLO, "second")
            prober.start(HELLO, "second")
            activator.digests["default/hello"] = "second"
            assert await confirmed.get() == (HELLO, "second")
            prober.start(HELLO, "third")
            prober.forget(HELLO)
        assert confirmed.empty()


async def test_unresponsive_activators_are_skipped_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "SILENT_S", 0.3)
    with socket.socket() as frozen:
        # The kernel accepts connections, but nothing responds.
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        gone = socket.socket()
        gone.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (frozen, gone)]
        gone.close()
        async with an_activator() as activator, a_prober(activator.address, *addresses) as (prober, confirmed):
            activator.digests["default/hello"] = "new"
            prober.start(HELLO, "new")
            async with asyncio.timeout(PATIENCE_S):
                assert await confirmed.get() == (HELLO, "new")


async def test_service_is_ready_after_activators_serve_its_route() -> None:
    async with an_activator() as activator:
        settings = ControllerSettings(activator_pages=activator.address)
        async with a_world(settings) as world:
            await deploy(world)
            route = await world.until(
                ROUTE, "hello", lambda current_route: current_route.get("status", {}).get("traffic")
            )
            async with asyncio.timeout(PATIENCE_S):
                await activator.is_probed.wait()
            assert condition_of(route, "Ready")["reason"] == "Uninitialized"
            activator.digests["default/hello"] = route_digest(route, RULES)
            await world.until(SERVING_SERVICE, "hello", ready)


async def deploy(world: World) -> None:
    await world.cluster.create(SERVING_SERVICE, a_service("good"))
