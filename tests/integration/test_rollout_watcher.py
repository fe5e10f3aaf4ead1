"""The rollout watcher reads response counts of activators over HTTP and judges rollouts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest
from aiohttp import web

from serving.controller.io.rollout_watcher import RolloutWatcher
from serving.controller.routes.rolloutcheck import RolloutJudgement
from serving.core.model.objects import Key
from serving.core.model.rolloutcheck import RolloutWatch, read_rollout_check
from serving.core.traffic.latencies import FINE_TYPE
from tests.eventually import until
from tests.integration.dashboard_stage import served
from tests.unit.core.traffic.test_responsecounts import page

ROUTE = ("default", "hello")
NEWEST = "hello-00001"
TOKEN = "t" * 43
WATCH = RolloutWatch(check=read_rollout_check("errors<10%"), revisions=(NEWEST,), wait_max_s=3600.0)


class Activator:
    """An activator's metrics page, which requires the query token."""

    def __init__(self) -> None:
        self.text = page({0.1: 100}, "5xx")
        self.content_type = "text/plain; charset=utf-8"
        self.is_silent = False
        self.request_count = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.request_count += 1
        if self.is_silent or request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401)
        assert request.headers["Accept"] == FINE_TYPE
        return web.Response(body=self.text.encode(), headers={"Content-Type": self.content_type})


class Stage:
    """Two activators and a watcher."""

    def __init__(self, addresses: list[str]) -> None:
        self.last: Mapping[str, RolloutJudgement] = {}
        self.watcher = RolloutWatcher(
            addresses=lambda: addresses, headers=lambda: {"Authorization": f"Bearer {TOKEN}"}, judged=self._judged
        )

    def _judged(self, route: Key, rollout_judgements: Mapping[str, RolloutJudgement]) -> None:
        assert route == ROUTE
        self.last = rollout_judgements

    def verdict(self) -> str:
        return self.last[NEWEST].verdict.value if self.last else ""


@pytest.fixture
def activators() -> tuple[Activator, Activator]:
    return Activator(), Activator()


@contextlib.asynccontextmanager
async def staged(activators: tuple[Activator, Activator]) -> AsyncIterator[Stage]:
    async with served(activators[0].handle) as first, served(activators[1].handle) as second:
        stage = Stage([first, second])
        running = asyncio.create_task(stage.watcher.run())
        try:
            yield stage
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_responses_of_all_activators_since_rollout_start_are_judged(
    activators: tuple[Activator, Activator],
) -> None:
    async with staged(activators) as stage:
        await asyncio.sleep(0)
        assert activators[0].request_count == 0
        stage.watcher.update(ROUTE, WATCH)
        # Responses before the first reading do not count for this rollout.
        await until(lambda: stage.verdict() == "hold")
        activators[0].text += page({0.1: 15})
        activators[1].text += page({0.1: 15})
        await until(lambda: stage.verdict() == "go")
        activators[1].text = page({0.1: 140}, "5xx") + page({0.1: 15})
        await until(lambda: stage.verdict() == "back")
        assert stage.last[NEWEST].why == "40 of 70 responses were 5xx (57.1 %), above 10 %"
        stage.watcher.update(ROUTE, None)


async def test_rollout_is_on_hold_without_activators() -> None:
    stage = Stage([])
    running = asyncio.create_task(stage.watcher.run())
    stage.watcher.update(ROUTE, WATCH)
    await until(lambda: stage.verdict() != "")
    assert stage.last[NEWEST].why == "an activator does not report its responses"
    running.cancel()


async def test_unresponsive_activator_puts_rollout_on_hold(activators: tuple[Activator, Activator]) -> None:
    activators[1].is_silent = True
    async with staged(activators) as stage:
        stage.watcher.update(ROUTE, WATCH)
        await until(lambda: stage.verdict() == "hold")
        activators[0].text += page({0.1: 50})
        request_count = activators[0].request_count
        await until(lambda: activators[0].request_count > request_count + 1)
        assert stage.verdict() == "hold"
        assert stage.last[NEWEST].why == "an activator does not report its responses"
        activators[1].is_silent = False
        await until(lambda: stage.verdict() == "go")


async def test_invalid_metrics_page_puts_rollout_on_hold(
    activators: tuple[Activator, Activator], caplog: pytest.LogCaptureFixture
) -> None:
    right = activators[1].text
    # Neither a bucket nor a text encoding.
    activators[1].text, activators[1].content_type = right.replace("bucket=", "le="), "text/plain; charset=base64"
    async with staged(activators) as stage:
        stage.watcher.update(ROUTE, WATCH)
        await until(lambda: stage.verdict() == "hold")
        assert stage.last[NEWEST].why == "an activator does not report its responses"
        assert [record.message for record in caplog.records] == ["controller.responses-unknown"]
        activators[1].text = right
        await until(lambda: stage.last[NEWEST].why != "an activator does not report its responses")
