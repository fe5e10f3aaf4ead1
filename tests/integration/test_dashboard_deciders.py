"""Decisions of several autoscalers: each reports its own, and reconnecting continues."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import web

from serving.tools.dashboard.deciders import Deciders
from tests.eventually import until


class Autoscaler:
    """Reports the given decisions; without a part of the revisions it names an owner."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.elsewhere = ""
        self.says: asyncio.Queue[str | None] = asyncio.Queue()
        self.url = ""

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if self.elsewhere:
            raise web.HTTPTemporaryRedirect(f"{self.elsewhere}/decisions?{request.query_string}")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while (name := await self.says.get()) is not None:
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
    heard: list[tuple[str, str]] = []
    async with aiohttp.ClientSession() as session:
        followed = Deciders(
            session,
            ",".join(urls),
            since_s=5.0,
            on_event=lambda event, reported: heard.append((event, reported["name"])),
        )
        task = asyncio.create_task(followed.run())
        try:
            yield followed, lambda: sorted(name for event, name in heard if event == "sample")
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_each_reports_its_own_and_none_is_heard_twice() -> None:
    async with running(Autoscaler()) as first, running(Autoscaler()) as second, running(Autoscaler()) as idle:
        idle.elsewhere = first.url
        first.says.put_nowait("a")
        second.says.put_nowait("b")
        async with following(first.url, second.url, idle.url) as (followed, heard):
            await until(lambda: heard() == ["a", "b"])
            await until(lambda: len(idle.asked) >= 2)
            # It was not led to the first a second time.
            assert (len(first.asked), len(second.asked)) == (1, 1)
            assert first.asked[0] == {"follow": "", "samples": "", "since": "5.0"}
            assert len(followed._followed) == 3
            # What it has later is all new.
            idle.elsewhere = ""
            idle.says.put_nowait("c")
            await until(lambda: heard() == ["a", "b", "c"])
            assert {entry["since"] for entry in idle.asked} == {"5.0"}


async def test_the_only_one_leads_to_who_decides() -> None:
    async with running(Autoscaler()) as owner, running(Autoscaler()) as standby:
        standby.elsewhere = owner.url
        owner.says.put_nowait("a")
        async with following(standby.url) as (_, heard):
            await until(lambda: heard() == ["a"])


async def test_a_stream_that_ends_is_asked_for_from_its_beginning() -> None:
    async with running(Autoscaler()) as autoscaler, following(autoscaler.url) as (_, heard):
        for word in ("a", None, "b"):
            autoscaler.says.put_nowait(word)
        await until(lambda: heard() == ["a", "b"])
        assert float(autoscaler.asked[1]["since"]) > 1e9
