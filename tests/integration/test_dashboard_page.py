"""The dashboard's page in a browser: what a user sees first, at each width, and what a form sends."""

import asyncio
from collections.abc import Callable

import pytest

from serving.cluster.kinds import REVISION
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import API, TOKEN, DashboardStage, staged

_TOP = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
_IS_SHOWN = "return document.querySelector(arguments[0]).checkVisibility()"
_LOG = "Traceback (most recent call last):\n  File \"app.py\", line 3\nModuleNotFoundError: No module named 'flask'"


async def seen(stage: DashboardStage, look: Callable[[Browser], None], *, width: int = 1400, height: int = 900) -> None:
    """Open the page in a window of a size and look at it."""

    def opened() -> None:
        with browser() as window:
            window.look(dark=False, width=width, height=height)
            window.open(stage.url)
            look(window)
            assert window.violations() == []

    await asyncio.to_thread(opened)


async def fail(stage: DashboardStage, name: str) -> None:
    conditions = [
        {"type": "ContainerHealthy", "status": "False", "reason": "ExitCode1", "message": f"exited with 1:\n{_LOG}"},
        {"type": "Ready", "status": "False", "reason": "ExitCode1", "message": "exited with 1"},
    ]
    patch = {"status": {"conditions": conditions}}
    await stage.cluster.patch(REVISION, "default", name, patch=patch, subresource="status")


async def test_an_empty_system_shows_how_to_deploy_and_no_charts() -> None:
    def look(window: Browser) -> None:
        window.until(_IS_SHOWN, "#empty")
        text = window.run("return document.getElementById('empty').textContent")
        assert "serving deploy hello" in text
        assert "serving apply -f service.yaml" in text
        assert not window.run(_IS_SHOWN, "#detail")

    async with staged(is_empty=True) as stage:
        await seen(stage, look)


async def test_a_failed_revision_shows_its_reason_and_log_on_the_first_screen() -> None:
    def look(window: Browser) -> None:
        window.until(_IS_SHOWN, "#problem")
        text = window.run("return document.getElementById('problem').textContent")
        assert "ExitCode1" in text
        assert "No module named 'flask'" in text
        assert "serving logs hello" in text
        assert window.run(_TOP, "#problem") < 300

    async with staged() as stage:
        for name in ("hello-00001", "hello-00002"):
            await fail(stage, name)
        await seen(stage, look)


@pytest.mark.parametrize(("width", "height"), [(390, 844), (800, 1000), (1400, 900)])
async def test_a_chart_is_on_the_first_screen_at_each_width(width: int, height: int) -> None:
    def look(window: Browser) -> None:
        window.until(_IS_SHOWN, "#charts")
        assert window.run(_TOP, "#charts figure .empty, #charts figure .plot:not([hidden])") < height - 100
        # Neither the list nor a tile is cut off at the side.
        assert window.run("return document.documentElement.scrollWidth") <= width
        assert window.run(_IS_SHOWN, "#services") is (width > 900)
        rows = window.run("return [...document.querySelectorAll('#facts div')].map((one) => one.offsetTop)")
        counts = {rows.count(top) for top in rows}
        assert len(counts) == 1, "each row of tiles is full"

    async with staged() as stage:
        await seen(stage, look, width=width, height=height)


async def test_revisions_without_traffic_fold_away() -> None:
    def look(window: Browser) -> None:
        window.until("return document.querySelectorAll('.service > div > .revision').length === 1")
        window.until("return document.querySelector('.older summary').textContent.startsWith('6 older revisions')")
        assert not window.run(_IS_SHOWN, ".older .revision")
        # The form to move traffic names few as well, and holds the rest.
        assert window.run("return document.querySelectorAll('#shares input').length") == 4
        assert window.run("return document.querySelectorAll('#more-shares input').length") == 4

    async with staged() as stage:
        for number in range(3, 8):
            labels = {"serving.knative.dev/service": "hello"}
            made = {"namespace": "default", "name": f"hello-{number:05d}", "labels": labels}
            body = {"apiVersion": API, "kind": "Revision", "metadata": made, "spec": {"containers": [{"image": "x"}]}}
            await stage.cluster.create(REVISION, body)
        traffic = {"traffic": [{"revisionName": "hello-00007", "percent": 100, "latestRevision": True}]}
        await stage.patch_status(traffic)
        await seen(stage, look)


async def test_the_traffic_form_keeps_the_target_that_follows_the_latest_revision() -> None:
    def look(window: Browser) -> None:
        window.until("return document.querySelectorAll('#shares input').length === 3")
        window.run(
            "document.getElementById('act').open = true; const token = document.getElementById('token');"
            "token.value = arguments[0]; token.dispatchEvent(new Event('input'));",
            TOKEN,
        )
        fields = "return [...document.querySelectorAll('#shares input')].map((one) => [one.name, one.value])"
        assert window.run(fields) == [["@latest", "100"], ["hello-00002", "0"], ["hello-00001", "0"]]
        window.run(
            "const [latest, , first] = document.querySelectorAll('#shares input'); latest.value = 90; first.value = 10;"
            "first.dispatchEvent(new Event('input', { bubbles: true }));"
            "document.querySelector('#traffic button').click()"
        )
        window.until("return document.getElementById('done').textContent.includes('90 % to @latest')")

    async with staged() as stage:
        await seen(stage, look)
        assert (await stage.service())["spec"]["traffic"] == [
            {"latestRevision": True, "percent": 90},
            {"revisionName": "hello-00001", "latestRevision": False, "percent": 10},
        ]
