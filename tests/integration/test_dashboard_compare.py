"""The comparison of two revisions, over HTTP and in a browser."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serving.net.aio.clock import wall_s
from serving.net.cluster.kinds import REVISION
from serving.tools.dashboard.archive import Archive, history_steps
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.viewers import PROXY_SECRET_HEADER
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import API, LONG_AGO, TOKEN, DashboardStage, staged

SECRET = "p" * 43
OLD, NEW = "hello-00001", "hello-00002"
RATE = 10.0
_TEXT = "return document.querySelector(arguments[0]).textContent"
_ROW = "return [...document.querySelectorAll('#compare-rows tr')].find((one) => one.firstChild.textContent === arguments[0])?.textContent"
_MOVES = "return [...document.querySelectorAll('#compare-act button')].map((one) => one.textContent)"
_PRESS = "[...document.querySelectorAll('#compare-act button')].find((one) => one.textContent === arguments[0]).click()"
_TYPE = "const field = document.getElementById('token'); field.value = arguments[0]; field.dispatchEvent(new Event('input'))"
_CHOOSE = "const one = document.getElementById(arguments[0]); one.value = arguments[1]; one.dispatchEvent(new Event('change'))"


def fill(path: Path, *, minutes: int = 20) -> None:
    """Write a history until now, in which the new revision is slower and fails 10 % of its requests."""
    now_s = wall_s()
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    for at_s in range(int(now_s - 60 * minutes) // 5 * 5, int(now_s) - 9, 5):
        rows = {f"default/{OLD}": row(0.02, errors=0.0, pods=1), f"default/{NEW}": row(0.2, errors=0.1, pods=2)}
        archive.put(at_s, rows, ())
    archive.roll(now_s)
    archive.close()


def row(median_s: float, *, errors: float, pods: float) -> list[float | None]:
    values = {"rps_2xx": RATE * (1 - errors), "rps_5xx": RATE * errors, "ready": pods}
    values |= {"p50_s": median_s, "p95_s": 2 * median_s, "p99_s": 3 * median_s}
    return [values.get(name) for name in COLUMNS]


async def add_revision_with_settings(stage: DashboardStage) -> None:
    env = [{"name": "API_KEY", "value": "zq-secret"}]
    container = {"image": "better", "env": env, "resources": {"limits": {"memory": "1Gi"}}}
    labels = {"serving.knative.dev/service": "hello"}
    result = {"namespace": "default", "name": "hello-00003", "labels": labels}
    body = {"apiVersion": API, "kind": "Revision", "metadata": result, "spec": {"containers": [container]}}
    await stage.cluster.create(REVISION, body)


async def compare(stage: DashboardStage, query: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/compare?{query}") as response:
        return response.status, await response.json() if response.status == 200 else await response.text()


async def test_compare_summarizes_two_revisions_over_stored_history(tmp_path: Path) -> None:
    fill(tmp_path / "history.db")
    async with staged(history_file=str(tmp_path / "history.db"), created=LONG_AGO) as stage:
        await stage.split(_1=50, _2=50)
        now_s = wall_s()
        status, body = await compare(stage, f"name=default/hello&from={now_s - 610:.0f}&to={now_s - 10:.0f}")
        assert status == 200
        old, new = body["revisions"]
        assert [(entry["revision"], entry["traffic_percent"]) for entry in (old, new)] == [(OLD, 50), (NEW, 50)]
        assert abs(old["requests"] - 600 * RATE) <= 10 * RATE
        assert (old["errors"], new["requests"]) == (0, old["requests"])
        assert abs(new["errors"] / new["requests"] - 0.1) < 0.001
        for name, times in (("p50_s", 1), ("p95_s", 2), ("p99_s", 3)):
            assert abs(old[name] / (0.02 * times) - 1) < 0.05
            assert abs(new[name] / (0.2 * times) - 1) < 0.05
        assert abs(new["pod_seconds"] / old["pod_seconds"] - 2) < 0.001
        assert (old["price"], body["settings"]) == (None, [])


async def test_compare_lists_changed_settings_without_secrets() -> None:
    async with staged() as stage:
        await add_revision_with_settings(stage)
        pair = f"name=default/hello&revision=default/{OLD}&revision=default/hello-00003"

        status, body = await compare(stage, pair)
        assert status == 200
        assert [(setting["name"], setting["older"], setting["newer"]) for setting in body["settings"]] == [
            ("autoscaling.knative.dev/max-scale", "9", None),
            ("env API_KEY", None, "set"),
            ("image", "x", "better"),
            ("limits.memory", None, "1Gi"),
        ]
        assert "zq-secret" not in str(body)


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("name=default/none", 404, "'default/none' is no service; expected name=NAMESPACE/SERVICE"),
        ("", 404, "'' is no service"),
        (
            f"name=default/hello&revision=default/{OLD}",
            400,
            f"{OLD} cannot be compared; expected two revisions of hello",
        ),
        (f"name=default/hello&revision=default/{OLD}&revision=default/x", 400, "hello has no revision x; there are "),
        (f"name=default/hello&revision=other/{OLD}&revision=default/{NEW}", 400, f"hello has no revision other/{OLD};"),
        ("name=default/hello&from=5&to=4", 400, "from=5 and to=4 are no range; expected two times in seconds"),
    ],
)
async def test_invalid_comparison_is_rejected_with_reason(query: str, status: int, error: str) -> None:
    async with staged() as stage:
        result, text = await compare(stage, query)
        assert (result, text.startswith(error)) == (status, True), text


# In a browser.


async def seen(
    stage: DashboardStage,
    capture: Callable[[Browser], None],
    *,
    at: str = f"#default/{NEW}",
    dark: bool = False,
    width: int = 1400,
) -> None:
    def opened() -> None:
        with browser() as window:
            window.capture(dark=dark, width=width, height=900)
            window.open(f"{stage.url}/{at}")
            capture(window)
            assert window.run("return document.documentElement.scrollWidth") <= width
            assert window.violations() == []

    await asyncio.to_thread(opened)


@pytest.mark.parametrize(("width", "dark"), [(1400, False), pytest.param(390, True, marks=pytest.mark.slow)])
async def test_comparison_opens_during_a_rollout(tmp_path: Path, width: int, *, dark: bool) -> None:
    fill(tmp_path / "history.db")

    def capture(window: Browser) -> None:
        window.until("return document.getElementById('compare-rows').checkVisibility()")
        window.until(f"{_ROW}?.includes(' times')", "p95")
        assert window.run(_TEXT, "#compare-title") == f"Compare {OLD} and {NEW}: both have traffic"
        note = window.run(_TEXT, "#compare-note")
        # The range can begin or end within a step.
        assert re.match(rf"{NEW} fails (9\.9\d|10|10\.0\d) % of its requests, {OLD} 0 %; it is slower: p95 ", note), (
            note
        )
        assert window.run(_ROW, "Traffic now") == "Traffic now90 %10 %"
        assert re.search(r"\+(9\.9\d|10|10\.0\d) points$", window.run(_ROW, "5xx"))
        assert window.run(_TEXT, "#compare-same") == "No setting differs."
        # Without a token the page has no buttons.
        assert window.run(_MOVES) == []
        assert window.run("return document.getElementById('compare-token').checkVisibility()")

    async with staged(history_file=str(tmp_path / "history.db"), created=LONG_AGO) as stage:
        await stage.split(_1=90, _2=10)
        await seen(stage, capture, dark=dark, width=width)


async def test_selected_revisions_are_stored_in_the_address() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.getElementById('compare').checkVisibility()")
        assert not window.run("return document.getElementById('compare').open")
        window.run("document.querySelector('#compare summary').click()")
        window.until("return document.getElementById('compare-note').textContent.includes('no requests')")
        assert window.run("return location.search") == f"?compare={OLD}%2C{NEW}"
        window.run(_CHOOSE, "compare-new", "hello-00003")
        window.until("return document.getElementById('compare-set').textContent.includes('env API_KEY')")
        address = window.run("return location.href")
        assert address.endswith(f"?compare={OLD}%2Chello-00003#default/{NEW}")
        # The address restores the selection.
        window.open("about:blank")
        window.open(address)
        window.until("return document.getElementById('compare-set')?.textContent.includes('env API_KEY')")
        assert "zq-secret" not in window.run("return document.documentElement.outerHTML")
        window.run("document.querySelector('#compare summary').click()")
        window.until("return location.search === ''")

    async with staged() as stage:
        await add_revision_with_settings(stage)
        await seen(stage, capture)


async def test_buttons_roll_back_and_move_traffic() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.getElementById('compare-rows').checkVisibility()")
        window.run(_TYPE, TOKEN)
        steps = [f"{step} % to {NEW}" for step in (10, 50, 100)]
        window.until(f"return {_MOVES.removeprefix('return ')}.length === 5")
        assert window.run(_MOVES) == [f"Roll back to {OLD}", *steps, "Follow the latest ready revision"]
        window.run(_PRESS, steps[0])
        message = "return document.getElementById('compare-done').textContent.includes(arguments[0])"
        window.until(message, f"hello: 10 % to {NEW}, 90 % to {OLD}")
        window.run(_PRESS, f"Roll back to {OLD}")
        window.until(message, f"hello: rolled back to {OLD} from ")
        assert window.run("return document.getElementById('compare-done').className") == "good"

    async with staged() as stage:
        await stage.ready(OLD, NEW)
        await stage.split(_1=30, _2=70)
        await seen(stage, capture)
        assert (await stage.service())["spec"]["traffic"] == [
            {"revisionName": OLD, "latestRevision": False, "percent": 100}
        ]
        assert [reason for reason, _ in await stage.events()] == ["TrafficAsked", "RollbackAsked"]


async def test_wrong_token_moves_no_traffic_and_single_revision_shows_no_comparison() -> None:
    def refused(window: Browser) -> None:
        window.until("return document.getElementById('compare-rows').checkVisibility()")
        window.run(_TYPE, TOKEN[1:])
        window.until(f"return {_MOVES.removeprefix('return ')}.length > 0")
        window.run(_PRESS, f"Roll back to {OLD}")
        window.until("return document.getElementById('compare-done').textContent.includes('the token is wrong')")

    def alone(window: Browser) -> None:
        window.until("return document.getElementById('facts').children.length > 0")
        assert not window.run("return document.getElementById('compare').checkVisibility()")

    async with staged() as stage:
        await stage.ready(OLD, NEW)
        await stage.split(_1=30, _2=70)
        before = await stage.service()
        await seen(stage, refused)
        assert await stage.service() == before
        await stage.cluster.delete(REVISION, "default", OLD)
        await stage.split(_2=100)
        await seen(stage, alone)


async def test_buttons_are_shown_only_to_proxy_users_who_may_act() -> None:
    def opened() -> None:
        with browser() as window:
            # The browser does not send these headers from workers.
            window.run_before_load("delete window.SharedWorker")
            for user, count in (("ann", 0), ("bob", 5)):
                window.send({"X-Remote-User": user, PROXY_SECRET_HEADER: SECRET})
                window.open("about:blank")
                window.open(f"{stage.url}/#default/{NEW}")
                window.until("return document.getElementById('compare-rows')?.checkVisibility()")
                # Neither user sees the fields for a token.
                assert not window.run("return document.getElementById('compare-token').checkVisibility()")
                assert len(window.run(_MOVES)) == count, user
            window.run(_PRESS, f"Roll back to {OLD}")
            window.until("return document.getElementById('compare-done').textContent.includes('rolled back to')")

    users = "ann=view:default, bob=deploy:default"
    async with staged(proxy_users=users, proxy_secret=SECRET) as stage:
        await stage.ready(OLD, NEW)
        await stage.split(_1=30, _2=70)
        await asyncio.to_thread(opened)
        ((_, event),) = await stage.events()
        assert event.startswith(f"requested in the dashboard by bob: hello: rolled back to {OLD} from {NEW} (70 %)")
