"""Actions with the dashboard's token, over HTTP and from the page in a browser."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from serving.core.model.errors import SettingsError
from serving.net.cluster.kinds import REVISION, SERVING_SERVICE
from serving.tools.dashboard.deciders import read_pages
from serving.tools.dashboard.main import read_token
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import API, SCALE, TOKEN, served, staged

_WHERE = "const one = document.activeElement; return one.id || one.textContent.trim()"


async def test_scale_action_sets_bounds_and_creates_event() -> None:
    async with staged() as stage:
        status, response = await stage.act("scale", min=1, max=4)
        assert (status, response["said"]) == (200, "hello: at least 1 pod, at most 4 pods, as a new revision")
        annotations = (await stage.service())["spec"]["template"]["metadata"]["annotations"]
        assert (annotations[f"{SCALE}min-scale"], annotations[f"{SCALE}max-scale"]) == ("1", "4")
        assert await stage.events() == [("ScaleAsked", f"requested in the dashboard: {response['said']}")]
        assert "min-scale: 5 is above max-scale 4" in (await stage.act("scale", min=5))[1]["error"]
        assert (await stage.act("scale"))[1]["error"] == "nothing to change; expected min, max or both"


async def test_traffic_action_moves_traffic_between_existing_revisions() -> None:
    async with staged() as stage:
        status, response = await stage.act("traffic", shares={"hello-00001": 30, "hello-00002": 70})
        message = "hello: 30 % to hello-00001, 70 % to hello-00002; newer revisions get traffic when you move it"
        assert (status, response["said"]) == (200, message)
        status, response = await stage.act("traffic", shares={"hello-00001": 30, "@latest": 70})
        assert (status, response["said"]) == (200, "hello: 30 % to hello-00001, 70 % to @latest")
        assert (await stage.act("traffic", shares={"hello-00001": 30, "hello-00002": 70}))[0] == 200
        traffic = (await stage.service())["spec"]["traffic"]
        assert [(target["revisionName"], target["percent"]) for target in traffic] == [
            ("hello-00001", 30),
            ("hello-00002", 70),
        ]
        assert "is 60 % together" in (await stage.act("traffic", shares={"hello-00001": 60}))[1]["error"]
        status, response = await stage.act("traffic", shares={"hello-00009": 100})
        assert status == 400
        assert response["error"].startswith("hello has no revision hello-00009; there are hello-00002, hello-00001")


async def test_rollback_selects_previous_ready_revision_and_creates_event() -> None:
    async with staged() as stage:
        await stage.split(_1=60, _2=40)
        assert (await stage.act("rollback"))[1]["error"].startswith(
            "hello-00002 is the newest revision with traffic, and no"
        )
        await stage.ready("hello-00001", "hello-00002")
        tagged = {"revisionName": "hello-00002", "percent": 100, "latestRevision": False, "tag": "next"}
        await stage.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"spec": {"traffic": [tagged]}})
        status, response = await stage.act("rollback")
        assert status == 200
        message = (
            "hello: rolled back to hello-00001 from hello-00002 (40 %); newer revisions get traffic when you move it"
        )
        assert response["said"] == message
        assert (await stage.service())["spec"]["traffic"] == [
            {"revisionName": "hello-00001", "latestRevision": False, "percent": 100},
            {"revisionName": "hello-00002", "latestRevision": False, "percent": 0, "tag": "next"},
        ]
        assert await stage.events() == [("RollbackAsked", f"requested in the dashboard: {message}")]


@pytest.mark.parametrize(
    ("revision", "status", "error"),
    [
        ("hello-00009", 400, "hello has no ready revision hello-00009; there are hello-00001"),
        ("hello-00002", 400, "hello has no ready revision hello-00002; there are hello-00001"),
        ("hello-00001", 400, "hello-00001 has all traffic already"),
        ("../x", 400, "Expected `str` matching regex"),
        (7, 400, "Expected `str | null`, got `int`"),
    ],
)
async def test_impossible_rollback_is_rejected_with_reason_and_changes_nothing(
    revision: object, status: int, error: str
) -> None:
    async with staged() as stage:
        await stage.split(_1=100)
        await stage.ready("hello-00001")
        before = await stage.service()
        result, response = await stage.act("rollback", revision=revision)
        assert result == status
        assert response["error"].startswith(error)
        assert await stage.service() == before
        assert await stage.events() == []


async def test_wake_action_sends_request_and_reports_its_response() -> None:
    async with staged() as stage:
        status, response = await stage.act("wake")
        assert status == 200
        assert response["said"].startswith("hello-00002 answered 200 OK in ")
        assert response["said"].endswith(" ms, a cold start")
        # The stage also receives queries for decisions.
        assert "GET / hello.default.localhost:80" in stage.requests
        assert (await stage.act("wake", service="none"))[0] == 404


async def test_actions_without_valid_token_or_body_change_nothing() -> None:
    async with staged() as stage:
        before = await stage.service()
        assert (await stage.act("scale", token=TOKEN[1:], min=1))[0] == 401
        assert (await stage.act("rollback", token=TOKEN[1:], revision="hello-00001"))[0] == 401
        for action, body in (
            ("fly", {}),
            ("scale", {"min": -1}),
            ("scale", {"count": 1}),
            ("wake", {"service": "../x"}),
            ("rollback", {"to": "hello-00001"}),
        ):
            assert (await stage.act(action, **body))[0] in {400, 404}
        assert await stage.service() == before
        assert await stage.events() == []
    async with staged(token="") as stage, aiohttp.ClientSession() as session:
        async with session.post(f"{stage.url}/actions/wake", json={}) as response:
            assert response.status in {404, 405}
        async with session.get(f"{stage.url}/state") as response:
            assert (await response.json())["may_act"] is False


async def test_unavailable_activator_is_omitted_from_metrics_pages() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.host}{request.path}")

    async with served(page) as text, served(page) as other, aiohttp.ClientSession() as session:
        urls = f"http://{text}/metrics, http://{other}/metrics,http://localhost:1/metrics"
        pages = await read_pages(session, urls)
        assert pages == {f"http://{name}/metrics": f"{name}/metrics" for name in (text, other)}
        named = f"http://localhost:{text.rpartition(':')[2]}/metrics"
        assert list((await read_pages(session, named)).values()) == [named.removeprefix("http://")]
        assert await read_pages(session, "") == {}
        with pytest.raises(OSError, match="no activator's metrics can be read"):
            await read_pages(session, "http://127.0.0.1:1/metrics")


def test_token_file_must_contain_a_long_random_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(str(file)) == TOKEN
    assert read_token("") == ""
    file.write_text("short")
    for path in (file, tmp_path / "none"):
        with pytest.raises(SettingsError, match="a random text of at least 32 characters"):
            read_token(str(path))


async def test_page_sends_actions_with_token_and_shows_their_results() -> None:
    async with staged() as stage:
        with browser() as window:
            await asyncio.to_thread(_act, window, stage.url)
        annotations = (await stage.service())["spec"]["template"]["metadata"]["annotations"]
        assert annotations[f"{SCALE}min-scale"] == "3"


def _act(window: Browser, url: str) -> None:
    window.capture(dark=True, width=390, height=844)
    window.open(f"{url}?tab=settings#default/hello-00002")
    window.until("return !document.getElementById('act').hidden")
    # The selected tab is scrolled into view.
    window.until("return document.getElementById('tab-settings').getBoundingClientRect().right <= innerWidth")
    window.run("document.getElementById('act').open = true; document.getElementById('min').value = 12")
    message = "return document.getElementById('done').textContent.includes(arguments[0])"
    press = "document.querySelector('#scale button').click()"
    window.run(press)
    window.until(message, "the token is missing")
    typed = "const field = document.getElementById('token'); field.value = arguments[0]; field.dispatchEvent(new Event('input'))"
    window.run(typed, TOKEN)
    window.run(press)
    window.until(message, "is above max-scale 9")
    window.run("document.getElementById('min').value = 3")
    window.run(press)
    window.until(message, "at least 3 pods, at most 9 pods")
    assert window.violations() == []
    assert window.run("return document.cookie + location.href").endswith("/?tab=settings#default/hello-00002")
    window.open(f"{url}#token={'z' * 43}")
    window.until("return document.getElementById('token').value === arguments[0]", "z" * 43)
    assert "z" not in window.run("return location.href")


async def test_actions_by_keyboard_retain_the_focus() -> None:
    async with staged() as stage:
        with browser() as window:
            await asyncio.to_thread(_act_by_keyboard, window, stage.url)
            # An update of the page retains the result of the action.
            labels = {"serving.knative.dev/service": "hello"}
            result = {"namespace": "default", "name": "hello-00003", "labels": labels}
            await stage.cluster.create(
                REVISION,
                {"apiVersion": API, "kind": "Revision", "metadata": result, "spec": {"containers": [{"image": "x"}]}},
            )
            await asyncio.to_thread(_after_action, window)
        annotations = (await stage.service())["spec"]["template"]["metadata"]["annotations"]
        assert annotations[f"{SCALE}min-scale"] == "3"


def _tab_to(window: Browser, wanted: str) -> None:
    for _ in range(30):
        if window.run(_WHERE) == wanted:
            return
        window.press("Tab")
    raise AssertionError(f"Tab does not reach {wanted}")


def _act_by_keyboard(window: Browser, url: str) -> None:
    window.capture(dark=False, width=1200, height=900)
    window.open(f"{url}#default/hello-00002")
    _tab_to(window, "tab-overview")
    window.press(*["ArrowRight"] * 5)
    assert window.run("return location.search") == "?tab=settings"
    window.until("return !document.getElementById('act').hidden")
    _tab_to(window, "act-title")
    window.press("Enter")
    _tab_to(window, "token")
    window.press(*TOKEN)
    _tab_to(window, "min")
    window.press("ArrowUp", "ArrowUp", "ArrowUp", "Enter")
    window.until("return document.getElementById('done').textContent.includes('at least 3 pods')")
    assert window.run(_WHERE) == "min"
    _tab_to(window, "Send a request")
    window.press(" ")
    window.until("return document.getElementById('done').textContent.includes('answered 200')")
    assert window.run(_WHERE) == "Send a request"


def _after_action(window: Browser) -> None:
    window.until("return document.querySelectorAll('#shares input').length === 4")
    assert "answered 200" in window.run("return document.getElementById('done').textContent")
    assert window.run(_WHERE) == "Send a request"
