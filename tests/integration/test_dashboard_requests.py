"""Failed, slow and sampled requests on the page of a revision, over HTTP and in a browser."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from serving.core.settings.dashboard import DashboardSettings
from serving.core.traffic.requesthistory import RequestHistory, RequestRecord
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.tools.dashboard.main import Dashboard
from tests.eventually import until
from tests.integration.browser import Browser
from tests.integration.daemons import started
from tests.integration.dashboard_stage import LONG_AGO, DashboardStage, served
from tests.integration.test_dashboard_page import seen

FAILED = RequestRecord(
    service="hello",
    revision="hello-00002",
    at_wall_s=1_700_000_000.0,
    method="GET",
    path="/<img src=x onerror=alert(1)>",
    status=500,
    failed_by="app",
    why="the app responded 500",
    app_s=0.25,
    duration_s=0.25,
    pod="hello-00002-deployment-abcde",
    trace_id="0af7651916cd43dd8448eb211c80319c",
)
COLD = msgspec.structs.replace(
    FAILED, path="/cold", status=200, failed_by="", why="", is_cold=True, start_s=1.5, app_s=0.01, duration_s=1.51
)


@asynccontextmanager
async def recorded(status: int = 200) -> AsyncIterator[tuple[DashboardStage, list[str]]]:
    """A dashboard with two activators that have the same two requests, and the paths of its queries."""
    stage, paths = DashboardStage(MemoryCluster(admit=admit)), []
    await stage.fill(LONG_AGO)
    history = RequestHistory(100)
    for request_record in (FAILED, COLD):
        history.record("default", request_record, 0.0)

    async def activator(request: web.Request) -> web.Response:
        paths.append(request.path)
        if not request.path.startswith("/requests/"):
            return web.Response(text="")
        namespace, name = request.path.split("/")[2:]
        body = msgspec.json.encode(history.reports(namespace, name, 0.0))
        return web.Response(body=body, status=status)

    async with served(activator) as address, served(activator) as other:
        settings = DashboardSettings(
            address="127.0.0.1:0",
            autoscaler_url=f"http://{address}/nothing",
            activator_metrics_url=f"http://{address}/metrics, http://{other}/metrics",
        )
        dashboard = Dashboard(settings, stage.cluster)
        async with started(dashboard):
            stage.url = "http://{}:{}".format(*dashboard.address)
            # The revision is unknown before the first tick.
            while await request_reports(stage, "default/hello-00002") is None and status == 200:  # noqa: ASYNC110 - asked as a page would
                await asyncio.sleep(0.05)
            yield stage, paths


async def request_reports(stage: DashboardStage, revision: str) -> dict[str, object] | None:
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/requests?revision={revision}") as response:
        assert response.status == 200
        body: dict[str, object] | None = await response.json()
        return body


async def test_request_reports_of_all_activators_are_merged() -> None:
    async with recorded() as (stage, _):
        entry = await request_reports(stage, "default/hello-00002")
    assert entry is not None
    (cause,) = msgspec.convert(entry["errors"], list[dict[str, object]])
    assert (cause["count"], cause["why"]) == (2, "the app responded 500")


@pytest.mark.parametrize("revision", ["", "default/nobody", "default/../../metrics", "x"])
async def test_unknown_revision_is_not_queried_at_activators(revision: str) -> None:
    async with recorded() as (stage, paths):
        paths.clear()
        assert await request_reports(stage, revision) is None
        assert [path for path in paths if path.startswith("/requests/default/..") or "nobody" in path] == []


async def test_activator_without_request_reports_yields_none() -> None:
    async with recorded(404) as (stage, paths):
        await until(lambda: "/metrics" in paths)
        assert await request_reports(stage, "default/hello-00002") is None


async def test_page_request_during_shutdown_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The activator's name resolves only after the dashboard has begun to stop."""
    stage, stop, loop = DashboardStage(MemoryCluster(admit=admit)), asyncio.Event(), asyncio.get_running_loop()
    await stage.fill(LONG_AGO)
    settings = DashboardSettings(
        address="127.0.0.1:0", autoscaler_url="", activator_metrics_url="http://localhost:1/metrics"
    )
    dashboard, resolve = Dashboard(settings, stage.cluster), loop.getaddrinfo

    async def resolve_late(*place: Any, **options: Any) -> Any:  # noqa: ANN401 - those of getaddrinfo
        stop.set()
        # The feed ends within a few iterations of the event loop; the server waits 0.1 s for its requests.
        await asyncio.sleep(0.02)
        return await resolve(*place, **options)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        group.create_task(dashboard.run(stop))
        await dashboard.is_serving.wait()
        stage.url = "http://{}:{}".format(*dashboard.address)
        page = "/coldstarts?name=default/hello-00002"
        while await stage.status(page) != 200:  # noqa: ASYNC110 - asked as a page would
            await asyncio.sleep(0.02)
        loop.getaddrinfo = resolve_late  # type: ignore[method-assign]
        with contextlib.suppress(aiohttp.ClientError):
            await session.get(stage.url + page)
    assert "Error handling request" not in caplog.text


@pytest.mark.parametrize("width", [1400, pytest.param(390, marks=pytest.mark.slow)])
async def test_page_lists_failed_and_slow_requests_as_text(width: int) -> None:
    def check(window: Browser) -> None:
        rows = 'document.querySelectorAll("#requests-rows tr")'
        window.until(f"return {rows}.length === 2")
        text = window.run('return document.querySelector("#requests-rows").textContent')
        assert "GET /<img src=x onerror=alert(1)>" in text
        assert "app: the app responded 500" in text
        assert "--pod hello-00002-deployment-abcde" in text
        assert window.run('return document.querySelector("#requests-errors td").textContent') == "2"
        window.run('document.querySelector("#requests-list input[value=slow]").click()')
        window.until(f'return {rows}[0].textContent.includes("1.5 s cold: start 1.5 s, app 10 ms")')

    async with recorded() as (stage, _):
        await seen(stage, check, width=width, at="?tab=requests#default/hello-00002")
