"""The dashboard with a real store and a real autoscaler, over HTTP and, if installed, in a browser."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

import serving.tools.dashboard.main
from serving.core.settings.dashboard import DashboardSettings
from serving.core.traffic.wrongtokens import COUNT_MAX
from serving.tools.dashboard.main import Dashboard
from tests.integration.autoscaler_stage import NAME
from tests.integration.browser import Browser, browser
from tests.integration.daemons import started
from tests.integration.query_token import GATE, HEADERS, TOKEN
from tests.integration.test_autoscaler import Stage, load, staged

KEY = f"default/{NAME}"
VIEWS = ("/", "/index.html", "/state", "/events", f"/history?revision={KEY}", f"/policy?revision={KEY}", "/other")
PAGE_BYTES_MAX = 224 * 1024
STATIC = Path(serving.tools.dashboard.main.__file__).with_name("static")
SIZES = {path.name: path.stat().st_size for path in STATIC.iterdir() if path.suffix != ".txt"}


class Shown:
    """A dashboard of an autoscaler."""

    def __init__(self, stage: Stage, url: str) -> None:
        self.stage, self.url = stage, url

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.url + path, headers=HEADERS | headers) as response,
        ):
            return response.status, await response.text()


@contextlib.asynccontextmanager
async def shown(host_names: str = "", connections_max: int = 64) -> AsyncIterator[Shown]:
    async with staged() as stage:
        settings = DashboardSettings(
            address="127.0.0.1:0",
            autoscaler_url=f"http://{stage.address}",
            activator_metrics_url="",
            host_names=host_names,
            connections_max=connections_max,
        )
        dashboard = Dashboard(settings, stage.store.cluster, token="d" * 43, queries=GATE)
        async with started(dashboard):
            page = Shown(stage, "http://{}:{}".format(*dashboard.address))
            async with asyncio.timeout(60):
                while (await page.get("/healthz"))[0] != 200:  # noqa: ASYNC110 - asked as a supervisor would
                    await asyncio.sleep(0.02)
            yield page


async def events(page: Shown) -> AsyncIterator[tuple[str, Any]]:
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as session,
        session.get(f"{page.url}/events?revision={KEY}", headers=HEADERS) as response,
    ):
        event = ""
        async for line in response.content:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                yield event, json.loads(value)


async def test_event_stream_sends_full_state_then_decisions_and_ticks() -> None:
    async with shown() as page, page.stage.as_activator() as activator, asyncio.timeout(60):
        entry: dict[str, Any] = {}
        async for event, body in events(page):
            if event == "all":
                assert KEY in {resource["key"] for resource in body["objects"]}
                await activator.send(load(100.0))
            entry[event] = body
            if event == "decision" and body["is_change"]:
                assert body["sentence"].startswith("0 → 15: panic; 100.0 in flight")
                entry["change"] = body
                await page.stage.store.add_pod("p")
            if "change" in entry and event == "tick" and [pod["name"] for pod in body["pods"]] == ["p"]:
                break
        _, history = await page.get(f"/history?revision={KEY}")
        assert entry["change"] in json.loads(history)["decisions"]
        assert json.loads(history)["ready"][-1] == 1.0
        _, state = await page.get("/state")
        assert json.loads(state)["decisions"][KEY]["key"] == KEY


async def test_row_and_decision_are_consistent_in_each_tick() -> None:
    """Takes 10 s, which are five ticks of the page."""
    async with shown() as page, page.stage.as_activator() as activator, asyncio.timeout(120):
        seen: list[tuple[str, bool]] = []
        columns: list[str] = []
        rows: dict[str, list[float | None]] = {}
        async for event, body in events(page):
            if event == "all":
                columns, rows = body["columns"], body["rows"]
                await activator.send(load(100.0))
            if event != "tick":
                continue
            rows |= body["rows"]
            row = dict(zip(columns, rows[KEY], strict=True))
            if row["desired"] is None:
                continue
            head, _, why = body["decision"]["sentence"].partition(": ")
            # "0 → 15", "stays 15", "stays 1, heading for 0".
            assert body["decision"]["wanted"] == row["desired"] == int(head.split()[-1])
            if not why.startswith("no data"):
                assert bool(row["is_panic"]) == why.startswith("panic")
            seen.append((head, bool(row["is_panic"])))
            if len(seen) >= 5 and ("stays 15", True) in seen:
                break
        # `/state`, which `serving top` shows, is consistent too.
        _, state = await page.get("/state")
        document = json.loads(state)
        row = dict(zip(columns, document["rows"][KEY], strict=True))
        assert document["decisions"][KEY]["wanted"] == row["desired"]


async def test_foreign_hosts_are_rejected_and_content_security_policy_is_set() -> None:
    async with shown(host_names="dash.example, other") as page:
        port = page.url.rpartition(":")[2]
        for host in ("localhost", f"127.0.0.1:{port}", "[::1]", f"[::1]:{port}", "dash.example", "OTHER:1"):
            assert (await page.get("/", Host=host))[0] == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.", "[::2]", "localhost:99999"):
            status, text = await page.get("/state", Host=host)
            assert (status, "add it to host-names" in text) == (421, True)
        async with aiohttp.ClientSession() as session, session.get(page.url, headers=HEADERS) as response:
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert "Set-Cookie" not in response.headers
        assert (await page.get("/nothing.js"))[0] == 404
        async with aiohttp.ClientSession() as session, session.post(f"{page.url}/state", headers=HEADERS) as response:
            assert response.status == 405
        # HEAD is rejected, because the event stream never ends.
        async with aiohttp.ClientSession() as session, session.head(f"{page.url}/events", headers=HEADERS) as response:
            assert response.status == 404


async def test_query_token_is_required_except_for_static_files_and_health() -> None:
    async with shown() as page, aiohttp.ClientSession(page.url) as session:
        for headers in ({}, {"Authorization": "Bearer " + "g" * 43}, {"Cookie": "serving-view=" + "0" * 64}):
            for path in (*VIEWS, "/?token=guess", "/?token="):
                async with session.get(path, headers=headers, allow_redirects=False) as response:
                    assert (path, response.status) == (path, 401)
                    assert "`serving dashboard` prints the link" in await response.text()
        for path in ("/app.js", "/healthz"):
            async with session.get(path) as response:
                assert response.status == 200


async def test_wrong_query_tokens_are_rate_limited_per_address_but_right_token_is_served() -> None:
    async with shown() as page, aiohttp.ClientSession(page.url) as session:
        results, wait = [], "0"
        for number in range(COUNT_MAX + 1):
            path, value = ("/state", {"Authorization": "Bearer guess"}) if number % 2 else ("/?token=guess", {})
            async with session.get(path, headers=value) as response:
                results.append(response.status)
                wait = response.headers.get("Retry-After", "0")
        assert results == [401] * COUNT_MAX + [429]
        assert 0 < int(wait) <= 60
        # An expired cookie does not count as a wrong token.
        async with session.get("/state", headers={"Cookie": "serving-view=" + "0" * 64}) as response:
            assert response.status == 401
        assert (await page.get("/state"))[0] == 200


async def test_link_sets_a_view_only_cookie_that_is_not_the_token() -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with shown() as page, aiohttp.ClientSession(page.url, cookie_jar=jar) as session:
        async with session.get(f"/?token={TOKEN}", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/")
            cookie = response.headers["Set-Cookie"]
            assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
            assert TOKEN not in cookie
        for path in ("/", "/state"):
            async with session.get(path) as response:
                assert response.status == 200
        # The cookie's value does not authorize actions.
        (morsel,) = jar
        async with session.post(
            "/actions/wake", json={}, headers={"Authorization": f"Bearer {morsel.value}"}
        ) as response:
            assert response.status == 401


async def test_page_is_small_and_references_no_other_origin() -> None:
    assert sum(SIZES.values()) < PAGE_BYTES_MAX
    async with shown() as page:
        for name in ("", *SIZES):
            status, text = await page.get(f"/{name}")
            assert status == 200
            assert "https://" not in text.replace("https://github.com/leeoniya/uPlot", "")


async def test_event_stream_above_connection_limit_receives_503() -> None:
    async with shown(connections_max=1) as page:
        async for event, _ in events(page):
            assert event == "all"
            assert (await page.get("/events"))[0] == 503
            break


async def test_page_shows_revision_become_active() -> None:
    async with shown() as page, page.stage.as_activator() as activator:
        with browser() as window:
            await asyncio.to_thread(_open, window, f"{page.url}/?token={TOKEN}")
            await activator.send(load(100.0))
            await page.stage.store.scaled(15)
            await page.stage.store.add_pod("p")
            await page.stage.store.wake()
            await asyncio.to_thread(_check_page, window)


def _open(window: Browser, url: str) -> None:
    window.capture(dark=False, width=1200, height=900)
    window.open(f"{url}#default/{NAME}")
    window.until("return document.getElementById('name').textContent === arguments[0]", NAME)
    assert window.run("return document.querySelector('#facts dd').textContent") == "At zero"


def _check_page(window: Browser) -> None:
    window.until("return document.querySelector('#facts dd').textContent === 'Active'")
    window.until("return document.getElementById('decisions').textContent.includes('0 → 15: panic; 100.0 in flight')")
    window.until("return document.querySelectorAll('.u-wrap canvas').length >= 2")
    window.until("return [...document.querySelectorAll('#pods td')].some((one) => one.textContent === 'p')")
    # The table with the data of a chart.
    window.run("document.querySelector('figure details').open = true")
    window.until("return document.querySelectorAll('figure details tbody tr').length > 1")
    assert window.violations() == []
