"""The dashboard follows the decisions of several autoscalers, through redirects and reconnects."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import web

from serving.tools.dashboard.deciders import Deciders
from tests.eventually import until


class Autoscaler:
    """Streams the queued decisions, or redirects to the owner if `elsewhere` is set."""

    def __init__(self) -> None:
        self.queries: list[dict[str, str]] = []
        self.elsewhere = ""
        self.decisions_to_send: asyncio.Queue[str | None] = asyncio.Queue()
        self.url = ""

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if self.elsewhere:
            raise web.HTTPTemporaryRedirect(f"{self.elsewhere}/decisions?{request.query_string}")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while (name := await self.decisions_to_send.get()) is not None:
            await response.write(f"event: sample\ndata: {json.dumps({'name': name})}\n\n".encode())
        return response


@contextlib.asynccontextmanager
async def running(autoscaler: Autoscaler) -> AsyncIterator[Autoscaler]:
    app = web.Application()
    app.router.add_get("/decisions", autoscaler.decisions)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    autoscaler.url = "http://{}:{}".format(*runner.addresses[0])
    try:
        yield autoscaler
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def following(*urls: str) -> AsyncIterator[tuple[Deciders, Callable[[], list[str]]]]:
    received: list[tuple[str, str]] = []
    async with aiohttp.ClientSession() as session:
        followed = Deciders(
            session,
            ",".join(urls),
            since_s=5.0,
            on_event=lambda event, reported: received.append((event, reported["name"])),
        )
        task = asyncio.create_task(followed.run())
        try:
            yield followed, lambda: sorted(name for event, name in received if event == "sample")
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_decisions_of_each_autoscaler_are_received_once() -> None:
    async with running(Autoscaler()) as first, running(Autoscaler()) as second, running(Autoscaler()) as idle:
        idle.elsewhere = first.url
        first.decisions_to_send.put_nowait("a")
        second.decisions_to_send.put_nowait("b")
        async with following(first.url, second.url, idle.url) as (followed, received):
            await until(lambda: received() == ["a", "b"])
            await until(lambda: len(idle.queries) >= 2)
            # The redirect caused no second connection to the first autoscaler.
            assert (len(first.queries), len(second.queries)) == (1, 1)
            assert first.queries[0] == {"follow": "", "samples": "", "since": "5.0"}
            assert len(followed._followed) == 3
            # Its later decisions are all new.
            idle.elsewhere = ""
            idle.decisions_to_send.put_nowait("c")
            await until(lambda: received() == ["a", "b", "c"])
            assert {entry["since"] for entry in idle.queries} == {"5.0"}


async def test_redirect_of_single_autoscaler_leads_to_the_owner() -> None:
    async with running(Autoscaler()) as owner, running(Autoscaler()) as standby:
        standby.elsewhere = owner.url
        owner.decisions_to_send.put_nowait("a")
        async with following(standby.url) as (_, received):
            await until(lambda: received() == ["a"])


async def test_reconnected_stream_requests_decisions_since_it_began() -> None:
    async with running(Autoscaler()) as autoscaler, following(autoscaler.url) as (_, received):
        for word in ("a", None, "b"):
            autoscaler.decisions_to_send.put_nowait(word)
        await until(lambda: received() == ["a", "b"])
        assert float(autoscaler.queries[1]["since"]) > 1e9
