"""The dashboard's overview in a browser: order, filters, keyboard and updates, at each width, with many services."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from serving.core.settings.dashboard import DashboardSettings
from serving.net.cluster.kinds import REVISION
from serving.tools.dashboard.board import Board, RequestRates
from serving.tools.dashboard.server import Pages, PageSources
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import staged

NAMESPACES = ("default", "shop")
REASON = "container user-container listens on port 18777 and was given PORT=32367; it must listen on $PORT"
TRACEBACK = 'Container failed with: Traceback (most recent call last):\n  File "app.py", line 3\nValueError: no name'
# The message of each failing service.
FAILING = {3: REASON, 11: REASON, 27: TRACEBACK}
ROWS = "return [...document.querySelectorAll('#rows tr')].map((row) => [...row.cells].map((one) => one.textContent.trim()))"
ERRORS = """
window.errors = [];
addEventListener("error", (event) => window.errors.push(event.message));
addEventListener("unhandledrejection", (event) => window.errors.push(String(event.reason)));
"""
STATE, SERVICE, HOST, WHY, RATE, P95, SHARE, PODS = range(8)


class OverviewStage:
    """A board of services that is served to pages; the test makes each tick."""

    def __init__(self) -> None:
        self.board = Board(100)
        self.rates: dict[str, RequestRates] = {}
        self.at_s = float(round(time.time()))
        self.url = ""

    async def no_policies(self, names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        del names
        return []

    def add(self, number: int, *, pods: int = 0, is_ready: bool = True, service: str = "") -> str:
        """Add a service with one revision; return the key of the revision."""
        namespace = NAMESPACES[number % 2]
        name = service or f"app-{number:03}"
        revision = f"{name}-{1 + number if service else 1:05}"
        key, is_failing = f"{namespace}/{revision}", number in FAILING
        conditions = [{"type": "Ready", "status": "True", "reason": "", "message": ""}]
        if is_failing:
            conditions = [{"type": "Ready", "status": "False", "reason": "Deploying", "message": FAILING[number]}]
        common = {"namespace": namespace, "ready": conditions[0]["status"], "conditions": conditions}
        common["created"] = "2026-11-24T10:00:00Z"
        traffic = [{"revision": revision, "percent": 100, "tag": "", "is_latest": True}]
        url = f"http://{name}.{namespace}.localhost:8080"
        self.board.put("service", f"{namespace}/{name}", {**common, "name": name, "url": url, "traffic": traffic})
        scaling = {"service": name, "state": "Active", "concurrency": 10, "scaling": {}}
        self.board.put("revision", key, {**common, **scaling, "name": revision})
        for place in range(pods):
            pod = {"namespace": namespace, "name": f"{revision}-{place}", "revision": revision, "ready": is_ready}
            pod |= {"ending": False, "dormant": False, "node": "", "phase": "Running", "reason": "", "restarts": 0}
            self.board.put("pod", f"{key}-{place}", pod)
        return key

    def fill(self, count: int) -> None:
        for number in range(count):
            self.add(number, pods=number % 2)
        self.tick()

    def tick(self, seconds: float = 2.0) -> dict[str, list[float | None]]:
        self.at_s += seconds
        self.board.requests(self.rates)
        return self.board.tick(self.at_s)


@contextlib.asynccontextmanager
async def overview(
    stage: OverviewStage,
    settings: DashboardSettings | None = None,
    policies: Callable[[Mapping[str, str]], Awaitable[list[Mapping[str, Any]]]] | None = None,
    sources: PageSources | None = None,
) -> AsyncIterator[Pages]:
    shown = settings or DashboardSettings()
    pages = Pages(stage.board, shown, is_well=lambda: True, policies=policies or stage.no_policies, sources=sources)
    runner = web.AppRunner(pages.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stage.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield pages
    finally:
        await runner.cleanup()


async def seen(url: str, capture: Callable[[Browser], None], *, width: int = 1400) -> None:
    """Open the page and check it, and that no script failed."""

    def opened() -> None:
        with browser() as window:
            window.run_before_load(ERRORS)
            window.capture(dark=False, width=width, height=900)
            window.open(url)
            capture(window)
            assert window.violations() == []
            assert window.run("return window.errors") == []

    await asyncio.to_thread(opened)


def until_rows(window: Browser, count: int) -> list[list[str]]:
    window.until("return document.querySelectorAll('#rows tr').length === arguments[0]", count)
    results: list[list[str]] = window.run(ROWS)
    return results


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
async def test_failing_services_are_listed_first_with_reason_at_each_width_and_theme(count: int) -> None:
    """Takes up to 10 s, because it captures six pictures of the page."""

    def capture(window: Browser) -> None:
        rows = until_rows(window, min(count, 100))
        assert [row[STATE] for row in rows[:4]] == ["Failing"] * 3 + ["Serving"]
        assert [row[WHY] for row in rows[:3]] == [REASON, REASON, "Container failed with: ValueError: no name"]
        assert window.run("return document.getElementById('failing').textContent") == "3 failing"
        assert window.run("return document.title").startswith("(3 failing)")
        first = "return document.querySelectorAll('#rows tr')[arguments[0]].getBoundingClientRect().bottom"
        assert window.run(first, 39) <= 900, "40 services are on a screen of 900 px"
        for width in (1400, 800, 390):
            for dark in (False, True):
                window.capture(dark=dark, width=width, height=900)
                assert window.run(first, 2) < 500, "failing services are never folded"
                assert window.run("return document.querySelector('#rows .because').checkVisibility()")
                assert window.run("return document.documentElement.scrollWidth") <= width
                assert window.violations() == []
        window.capture(dark=False, width=1400, height=900)
        if count > 100:
            window.run("document.getElementById('all-rows').click()")
            until_rows(window, count)
        assert not window.run("return document.getElementById('all-rows').checkVisibility()")

    stage = OverviewStage()
    stage.fill(count)
    async with overview(stage):
        await seen(stage.url, capture)


async def test_filters_are_stored_in_and_restored_from_the_address() -> None:
    def capture(window: Browser) -> None:
        until_rows(window, 60)
        window.run(
            "const one = document.getElementById('filter'); one.value = 'APP-0'; one.dispatchEvent(new Event('input', { bubbles: true }));"
        )
        window.run("document.querySelector('#states input[value=failing]').click()")
        assert {row[SERVICE] for row in until_rows(window, 3)} == {"app-003 shop", "app-011 shop", "app-027 shop"}
        assert window.run("return location.search") == "?q=APP-0&state=failing"
        address = window.run("return location.href").replace("APP-0", "app-01")
        window.open(address)
        assert [row[SERVICE] for row in until_rows(window, 1)] == ["app-011 shop"]
        assert window.run("return document.querySelector('#states :checked').value") == "failing"
        window.run(
            "const one = document.getElementById('namespace'); one.value = 'default'; one.dispatchEvent(new Event('input', { bubbles: true }));"
        )
        until_rows(window, 0)
        assert window.run("return document.getElementById('none').checkVisibility()")
        assert "namespace=default" in window.run("return location.search")

    stage = OverviewStage()
    stage.fill(60)
    async with overview(stage):
        await seen(stage.url, capture)


async def test_column_header_sorts_rows_and_updates_the_address() -> None:
    stage = OverviewStage()
    for number in range(3):
        stage.add(number, pods=number)
    stage.tick()

    def capture(window: Browser) -> None:
        def names() -> list[str]:
            return [row[SERVICE].split()[0] for row in until_rows(window, 3)]

        until_rows(window, 3)
        press = "document.querySelector('th[data-sort=pods] button').click()"
        window.run(press)
        assert (window.run("return location.search"), names()) == ("?sort=pods-", ["app-002", "app-001", "app-000"])
        window.run(press)
        assert names() == ["app-000", "app-001", "app-002"]
        assert window.run("return document.querySelector('[aria-sort]').textContent") == "Pods"

    async with overview(stage):
        await seen(stage.url, capture)


async def test_keyboard_opens_a_revision_and_returns_to_overview() -> None:
    def capture(window: Browser) -> None:
        until_rows(window, 60)
        where = "return document.activeElement.textContent.trim()"
        window.run("document.querySelector('#rows th a').focus()")
        window.press("ArrowDown")
        assert window.run(where) == "app-011"
        window.press("Enter")
        window.until("return document.getElementById('name').textContent === 'app-011-00001'")
        assert window.run("return location.hash") == "#shop/app-011-00001"
        names = "return [...document.querySelectorAll('#services h2 b')].map((one) => one.textContent)"
        assert window.run(names) == ["app-011"], "only the revisions of its service"
        assert REASON in window.run("return document.getElementById('problem').textContent")
        window.run("document.getElementById('back').focus()")
        window.press("Enter")
        window.until("return document.getElementById('overview').checkVisibility()")
        assert window.run(where) == "app-011"
        assert not window.run("return document.querySelector('nav').checkVisibility()")
        window.press("Enter")
        window.until("return document.getElementById('detail').checkVisibility()")
        window.press("/")
        window.until("return document.activeElement.id === 'filter'")
        window.run("document.activeElement.value = 'app-027'")
        window.run("document.activeElement.dispatchEvent(new Event('input', { bubbles: true }))")
        window.press("Enter")
        window.until("return location.hash === '#shop/app-027-00001'")

    stage = OverviewStage()
    stage.fill(60)
    async with overview(stage):
        await seen(stage.url, capture)


async def test_row_shows_numbers_and_recent_requests_of_its_service() -> None:
    stage = OverviewStage()
    busy, second = (stage.add(number, pods=2, service="busy") for number in (0, 2))
    waking = stage.add(4)
    stage.add(6)
    rates = RequestRates(rates=(30.0, 0.0, 0.0, 10.0), quantiles_s=(0.1, 0.25, 0.9))
    stage.rates = {busy: rates, second: RequestRates(rates=(10.0, 0.0, 0.0, 0.0), quantiles_s=(0.1, 0.4, 0.9))}
    stage.rates[waking] = RequestRates(waiting=2.0)
    for _ in range(30):
        stage.tick()

    def capture(window: Browser) -> None:
        rows = {row[SERVICE].split()[0]: row for row in until_rows(window, 3)}
        assert list(rows) == ["busy", "app-004", "app-006"]
        share = "20 % of the last responses were 5xx"
        assert rows["busy"][:7] == [
            "Errors",
            "busy default",
            "busy.default.localhost:8080",
            share,
            "50",
            "400 ms",
            "20 %",
        ]
        assert (rows["busy"][PODS], rows["app-004"][STATE]) == ("4", "Waking")
        assert rows["app-004"][WHY] == "2 requests wait"
        assert rows["app-006"][STATE] == "At zero"
        points = window.run("return document.querySelector('#rows polyline').getAttribute('points').split(' ')")
        assert len(points) == 45
        # 60 s of requests fill the last 3 or 4 steps of 20 s.
        assert 3 <= sum(not point.endswith(",15.0") for point in points) <= 4

    async with overview(stage):
        await seen(stage.url, capture)


async def test_row_follows_rates_and_decisions() -> None:
    stage = OverviewStage()
    key = stage.add(0, pods=1)
    stage.tick()

    async with overview(stage) as pages:

        def capture(window: Browser) -> None:
            assert [row[RATE] for row in until_rows(window, 1)] == ["\u2013"]
            stage.rates = {key: RequestRates(rates=(5.0, 0.0, 0.0, 5.0), quantiles_s=(0.1, 0.25, 0.9))}
            asyncio.run_coroutine_threadsafe(send(), loop).result(60)
            window.until("return document.querySelector('#rows .rps').textContent === '10'")
            assert window.run(ROWS)[0][SHARE] == "50 %"
            # A change of scale resets the age of the row.
            window.until("return document.querySelector('#rows .age').textContent.endsWith(' s')")

        async def send() -> None:
            pages.tick(stage.at_s, stage.tick())
            pages.decide({"key": key, "at_s": time.time(), "sentence": "0 → 1: x", "is_change": True, "wanted": 1})
            pages.tick(stage.at_s, stage.tick())

        loop = asyncio.get_running_loop()
        await seen(stage.url, capture)


async def test_page_of_deleted_revision_switches_to_newest_revision_of_service() -> None:
    async with staged() as stage:
        loop = asyncio.get_running_loop()

        def capture(window: Browser) -> None:
            name = "return document.getElementById('name').textContent === arguments[0]"
            window.until(name, "hello-00001")
            delete = stage.cluster.delete(REVISION, "default", "hello-00001", grace_s=0)
            asyncio.run_coroutine_threadsafe(delete, loop).result(60)
            window.until(name, "hello-00002")
            assert window.run("return location.hash") == "#default/hello-00002"

        await seen(f"{stage.url}/#default/hello-00001", capture)


async def test_wrong_port_is_shown_as_failing_while_revision_is_deploying() -> None:
    conditions = [
        {"type": "ContainerHealthy", "status": "Unknown", "reason": "Deploying", "message": REASON},
        {"type": "Ready", "status": "Unknown", "reason": "Deploying", "message": REASON},
    ]
    patch = {"status": {"conditions": conditions}}

    def capture(window: Browser) -> None:
        window.until("return document.querySelector('#rows .state')?.textContent === 'Failing'")
        assert [row[WHY] for row in until_rows(window, 1)] == [REASON]

    async with staged() as stage:
        await stage.cluster.patch(REVISION, "default", "hello-00002", patch=patch, subresource="status")
        await seen(stage.url, capture, width=390)


async def test_long_names_show_their_ends_and_sort_numerically() -> None:
    stage = OverviewStage()
    for number, name in enumerate(("rebuild-the-search-index-nightly-10", "rebuild-the-search-index-nightly-9")):
        stage.add(2 * number, service=name)
    stage.tick()

    def capture(window: Browser) -> None:
        for width in (1400, 800):
            window.capture(dark=False, width=width, height=600)
            visible = window.until(
                "const ends = [...document.querySelectorAll('#rows th .name span:last-child')];"
                "const seen = (one) => one.scrollWidth <= one.clientWidth &&"
                " one.getBoundingClientRect().right <= one.closest('th').getBoundingClientRect().right;"
                "return ends.length && ends.filter(seen).map((one) => one.textContent)"
            )
            assert visible == ["htly-9", "tly-10"]

    async with overview(stage):
        await seen(stage.url, capture)


async def test_invalid_address_shows_the_overview() -> None:
    def capture(window: Browser) -> None:
        until_rows(window, 60)
        assert window.run("return document.querySelector('#states :checked').value") == ""

    stage = OverviewStage()
    stage.fill(60)
    async with overview(stage):
        await seen(f"{stage.url}/?state=%00x&q=#%E0%A4%A", capture)
        await seen(f"{stage.url}/#default/nobody-00001", capture)
