"""The history on disk, over HTTP and in a browser."""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serving.net.aio.clock import stamp, wall_s
from serving.tools.dashboard.archive import Archive, history_steps
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.marks import Mark
from tests.eventually import until
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import LONG_AGO, DashboardStage, staged

KEY = "default/hello-00002"
DAY_S = 86_400
_SPAN = "return document.getElementById('span').textContent"
_CANVAS = "return document.querySelectorAll('#pods .u-over, #charts .u-over').length > 0"


def fill(path: Path, *, days: float = 1.2) -> None:
    """Write a history until now: pods and requests by the time of day, a deployment and a failure."""
    now_s = wall_s()
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    for at_s in range(int((now_s - days * DAY_S) // 60) * 60, int(now_s) - 9, 15):
        archive.put(at_s, {KEY: row(at_s)}, ())
        if at_s % 3600 == 0:
            archive.roll(at_s)
    archive.roll(now_s)
    marks = [
        Mark(key=KEY, at_s=now_s - 0.4 * DAY_S, kind="deploy", text="traffic: 100 % to hello-00002"),
        Mark(key=KEY, at_s=now_s - 0.5 * DAY_S, kind="failure", text="a container of hello-00002-x restarts"),
        Mark(key=KEY, at_s=now_s - 0.6 * DAY_S, kind="decision", text="1 → 2: panic"),
    ]
    archive.put(int(now_s // 5) * 5 - 5, {}, marks)
    archive.close()


def row(at_s: float) -> list[float | None]:
    pods = round(4 + 3 * math.sin(at_s / DAY_S * 2 * math.pi))
    values = {"running": 9.0 * pods, "observed": 8.0 * pods, "target": 10.0 * pods, "desired": pods, "ready": pods}
    values |= {
        "held": 0,
        "starting": 0,
        "is_panic": 0,
        "dormant": 0,
        "rps_2xx": 20.0 * pods,
        "p50_s": 0.02,
        "p99_s": 0.2,
    }
    return [values.get(name) for name in COLUMNS]


async def history(stage: DashboardStage, **arguments: object) -> tuple[int, Any]:
    query = {"revision": KEY} | {name.rstrip("_"): str(value) for name, value in arguments.items()}
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/history", params=query) as response:
        return response.status, await response.json() if response.status == 200 else await response.text()


async def test_history_survives_a_restart(tmp_path: Path) -> None:
    file, begun_s = str(tmp_path / "history.db"), wall_s()
    created = stamp(begun_s)

    async def seen(stage: DashboardStage) -> dict[str, Any]:
        status, body = await history(stage, from_=begun_s - 60)
        assert status == 200
        return body if body["at_s"] else {}

    async with staged(history_file=file, created=created) as stage:
        first = await until(lambda: seen(stage))
    async with staged(history_file=file, created=created) as stage:
        again = await seen(stage)
        # The live page begins with the rows of the previous process.
        status, live = await history(stage)
    assert status == 200
    assert again["at_s"][: len(first["at_s"])] == first["at_s"]
    assert live["at_s"][0] == first["at_s"][0]
    assert [mark["text"] for mark in again["marks"]] == ["hello-00002 is created"]
    assert len(live["at_s"]) == len(live["ready"])


@pytest.mark.parametrize("history_file", ["none", "history.db"])
async def test_later_page_receives_marks_for_every_range(tmp_path: Path, history_file: str) -> None:
    file = history_file if history_file == "none" else str(tmp_path / history_file)

    async def marks(stage: DashboardStage, **arguments: object) -> list[str]:
        status, body = await history(stage, **arguments)
        assert status == 200
        return [mark["text"] for mark in body["marks"] if mark["kind"] == "failure"]

    async with staged(history_file=file) as stage:
        await stage.ready("hello-00002", status="False")
        for query in ({}, {"from_": wall_s() - 300, "to": wall_s() + 60}):
            assert await until(lambda: marks(stage, **query)) == ["hello-00002 fails"]  # noqa: B023 - awaited at once


async def test_history_of_deleted_revision_is_not_shown_for_new_one_of_same_name(tmp_path: Path) -> None:
    fill(tmp_path / "history.db", days=0.1)
    archive = Archive(tmp_path / "history.db", history_steps(14), bytes_max=2**30)
    archive.put(int(wall_s()) // 5 * 5 - 5, {}, [Mark(key=KEY, at_s=wall_s() - 60, kind="failure", text="of the old")])
    archive.close()
    file, begun_s = str(tmp_path / "history.db"), int(wall_s())
    query = {"from_": begun_s - 3600, "to": begun_s + 60}
    async with staged(history_file=file, created=LONG_AGO) as stage:
        _, body = await history(stage, **query)
        assert "of the old" in [mark["text"] for mark in body["marks"]]
        assert body["at_s"][0] < begun_s
    begun_s = int(wall_s())
    async with staged(history_file=file) as stage:
        for arguments in ({}, query):
            status, body = await history(stage, **arguments)
            assert status == 200
            assert [mark["text"] for mark in body["marks"]] in ([], ["hello-00002 is created"])
            assert all(at_s >= begun_s for at_s in body["at_s"])


@pytest.mark.parametrize(
    "query",
    [
        {"from_": "yesterday"},
        {"from_": -5},
        {"from_": "nan"},
        {"from_": 1000, "to": 999},
        {"from_": 0},
        {"to": 1000},
        {"from_": 1, "to": "inf"},
        {"from_": wall_s() + 3600, "to": wall_s() + 7200},
    ],
)
async def test_invalid_range_is_rejected_with_expected_format(tmp_path: Path, query: dict[str, Any]) -> None:
    async with staged(history_file=str(tmp_path / "history.db")) as stage:
        status, text = await history(stage, **query)
    assert status == 400
    assert "expected two times in seconds since the epoch" in text


async def test_unreadable_history_does_not_affect_the_live_page(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with staged(history_file=str(tmp_path / "file" / "history.db")) as stage:
        status, text = await history(stage, from_=wall_s() - 60)
        assert (status, text) == (503, "the history cannot be read; the dashboard's log says why\n")
        assert await stage.status("/state") == 200


def opened(url: str, width: int) -> "contextlib._GeneratorContextManager[Browser]":
    @contextlib.contextmanager
    def open_window() -> Any:  # noqa: ANN401 - a generator
        with browser() as window:
            window.capture(dark=False, width=width, height=900)
            window.open(url)
            window.until(_CANVAS)
            yield window

    return open_window()


def share_range(url: str, width: int) -> None:
    """Select a day, zoom, move, and open the address in another window."""
    with opened(f"{url}/?last=86400#{KEY}", width) as window:
        window.until("return document.getElementById('span').textContent.includes(' to ')")
        chosen = "return document.querySelector('input[name=range]:checked')?.value"
        assert window.run(chosen) == "86400"
        window.drag("#charts .u-over", 0.4, 0.6)
        window.until("return new URLSearchParams(location.search).get('from') !== null")
        assert window.run(chosen) is None
        query = window.run("return location.search")
        begin, end = (int(text.partition("=")[2]) for text in query.removeprefix("?").split("&"))
        assert 0.1 * DAY_S < end - begin < 0.3 * DAY_S
        window.run("document.getElementById('earlier').click()")
        window.until(f"return !location.search.includes('from={begin}')")
        shared = window.run("return location.href")
        assert window.violations() == []
        assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    with opened(shared, width) as window:
        window.until("return document.getElementById('span').textContent.includes(' to ')")
        assert window.run("return location.href") == shared
        window.run("document.getElementById('live').click()")
        window.until("return document.getElementById('past').hidden")
        assert window.run("return location.search") == ""


@pytest.mark.parametrize("width", [1400, pytest.param(390, marks=pytest.mark.slow)])
async def test_range_can_be_selected_zoomed_and_shared_by_address(tmp_path: Path, width: int) -> None:
    fill(tmp_path / "history.db")

    async with staged(history_file=str(tmp_path / "history.db"), created=LONG_AGO) as stage:
        await asyncio.to_thread(share_range, stage.url, width)
