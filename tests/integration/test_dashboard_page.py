"""The page of a revision in a browser: the first screen, at each width, forms, and the event stream."""

import asyncio
import time
from collections.abc import Callable

import aiohttp
import msgspec
import pytest

from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.policy import SecondOfLoad
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.aio.clock import wall_s
from serving.net.cluster.kinds import POD, REVISION
from serving.tools.dashboard.viewers import PROXY_SECRET_HEADER
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import API, TOKEN, DashboardStage, staged
from tests.unit.core.scaling.kpa_builders import spec_with

_TOP = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
# An element that is missing on the page counts as not shown.
_IS_SHOWN = "return document.querySelector(arguments[0])?.checkVisibility() ?? false"
_LOG = "Traceback (most recent call last):\n  File \"app.py\", line 3\nModuleNotFoundError: No module named 'flask'"

COSTS = {
    "adaptive_pod_seconds": 3600.0,
    "adaptive_cold_requests": 12.0,
    "knative_pod_seconds": 6000.0,
    "knative_cold_requests": 31.0,
    "covered_s": 86_400.0,
}
SENTENCE = (
    "over the last day: 12 cold requests instead of 31, 40 pod-minutes less than under Knative's policy, estimated"
)


async def seen(
    stage: DashboardStage,
    capture: Callable[[Browser], None],
    *,
    width: int = 1400,
    height: int = 900,
    at: str = "#default/hello-00002",
) -> None:
    """Open the page of a revision in a window of this size, and check it."""

    def opened() -> None:
        with browser() as window:
            window.capture(dark=False, width=width, height=height)
            window.open(f"{stage.url}/{at}")
            capture(window)
            assert window.violations() == []

    await asyncio.to_thread(opened)


async def fail(stage: DashboardStage, name: str, *, status: str = "False", reason: str = "ExitCode1") -> None:
    conditions = [
        {"type": "ContainerHealthy", "status": status, "reason": reason, "message": f"exited with 1:\n{_LOG}"},
        {"type": "Ready", "status": status, "reason": reason, "message": "exited with 1"},
    ]
    patch = {"status": {"conditions": conditions}}
    await stage.cluster.patch(REVISION, "default", name, patch=patch, subresource="status")


async def test_empty_system_shows_how_to_deploy_and_no_charts() -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#empty")
        text = window.run("return document.getElementById('empty').textContent")
        assert "serving deploy ./myapp" in text
        assert "serving apply -f service.yaml" in text
        assert not window.run(_IS_SHOWN, "#detail")

    async with staged(is_empty=True) as stage:
        await seen(stage, capture)


async def test_failed_revision_shows_reason_and_log_on_first_screen() -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#problem")
        text = window.run("return document.getElementById('problem').textContent")
        assert "ExitCode1" in text
        assert "No module named 'flask'" in text
        assert "serving logs hello" in text
        assert window.run(_TOP, "#problem") < 300

    async with staged() as stage:
        for name in ("hello-00001", "hello-00002"):
            await fail(stage, name)
        await seen(stage, capture)


async def test_unready_revision_shows_reason_on_first_screen() -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#problem")
        text = window.run("return document.getElementById('problem').textContent")
        assert text.strip().startswith("Not ready yet")
        assert "No module named 'flask'" in text

    async with staged() as stage:
        for name in ("hello-00001", "hello-00002"):
            await fail(stage, name, status="Unknown", reason="Deploying")
        await seen(stage, capture)


async def test_revision_without_ready_pod_shows_reason_of_its_pod() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.querySelector('#facts dd').textContent === 'NotListening'")

    async with staged() as stage:
        labels = {"serving.knative.dev/revision": "hello-00002"}
        metadata = {"namespace": "default", "name": "hello-00002-a", "labels": labels}
        await stage.cluster.create(POD, {"metadata": metadata, "spec": {"containers": [{"name": "app", "image": "x"}]}})
        ready = {"type": "Ready", "status": "False", "reason": "NotListening"}
        status = {"phase": "Running", "conditions": [ready]}
        await stage.cluster.patch(POD, "default", "hello-00002-a", patch={"status": status}, subresource="status")
        await seen(stage, capture)


@pytest.mark.parametrize(
    ("file", "is_there"),
    [
        ("overview.js", "return document.getElementById('detail').checkVisibility()"),
        ("style.css", "return getComputedStyle(document.documentElement).getPropertyValue('--ground') !== ''"),
    ],
)
async def test_page_reloads_a_file_that_failed_to_load(file: str, is_there: str) -> None:
    """Takes a second, the page's pause before it loads a file again."""

    def opened() -> None:
        with browser() as window:
            window.block(f"*/{file}")
            window.open(f"{stage.url}/#default/hello-00002")
            assert not window.run(is_there)
            window.block()
            window.until(is_there)

    async with staged() as stage:
        await asyncio.to_thread(opened)


async def test_page_reconnects_after_rejected_event_stream() -> None:
    """Takes 3 s, the page's pause before it reconnects."""
    first = """
        delete window.SharedWorker;
        const Real = EventSource;
        let count = 0;
        window.EventSource = class extends Real {
            constructor(url) { super(count++ ? url : "nothing-here"); }
        };
    """

    def opened() -> None:
        with browser() as window:
            window.run_before_load(first)
            window.open(stage.url)
            window.until("return document.getElementById('link').textContent === 'connection lost, trying again'")
            window.until("return document.getElementById('link').textContent === 'live'")

    async with staged() as stage:
        await asyncio.to_thread(opened)


@pytest.mark.parametrize(
    ("width", "height"),
    [(390, 844), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((800, 1000), (1400, 900)))],
)
async def test_chart_is_on_first_screen_at_each_width(width: int, height: int) -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#charts")
        assert window.run(_TOP, "#charts figure .empty, #charts figure .plot:not([hidden])") < height - 100
        # The page does not scroll sideways.
        assert window.run("return document.documentElement.scrollWidth") <= width
        assert window.run(_IS_SHOWN, "#services") is (width > 900)
        rows = window.run("return [...document.querySelectorAll('#facts div')].map((one) => one.offsetTop)")
        counts = {rows.count(top) for top in rows}
        assert len(counts) == 1, "each row of tiles is full"

    async with staged() as stage:
        await seen(stage, capture, width=width, height=height)


async def test_revisions_without_traffic_are_folded() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.querySelectorAll('.service > div > .revision').length === 1")
        window.until("return document.querySelector('.older summary').textContent.startsWith('6 older revisions')")
        assert not window.run(_IS_SHOWN, ".older .revision")
        # The traffic form also shows few revisions, and folds the rest.
        assert window.run("return document.querySelectorAll('#shares input').length") == 4
        assert window.run("return document.querySelectorAll('#more-shares input').length") == 4

    async with staged() as stage:
        for number in range(3, 8):
            labels = {"serving.knative.dev/service": "hello"}
            result = {"namespace": "default", "name": f"hello-{number:05d}", "labels": labels}
            body = {"apiVersion": API, "kind": "Revision", "metadata": result, "spec": {"containers": [{"image": "x"}]}}
            await stage.cluster.create(REVISION, body)
        traffic = {"traffic": [{"revisionName": "hello-00007", "percent": 100, "latestRevision": True}]}
        await stage.patch_status(traffic)
        await seen(stage, capture, at="#default/hello-00007")


async def test_traffic_form_retains_target_that_follows_latest_revision() -> None:
    def capture(window: Browser) -> None:
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
        await seen(stage, capture)
        assert (await stage.service())["spec"]["traffic"] == [
            {"latestRevision": True, "percent": 90},
            {"revisionName": "hello-00001", "latestRevision": False, "percent": 10},
        ]


def calls_each_ten_minutes(running: str = "adaptive") -> dict[str, object]:
    policy = adaptive_policy(spec_with(policy="adaptive", cold_start_worth_s=60.0), AutoscalerSettings())
    for call in range(40):
        policy.observe(SecondOfLoad(call * 600, 0.2, 1.0))
    curve = msgspec.to_builtins(policy.curve())
    named: dict[str, object] = {"namespace": "default", "revision": "hello-00002", "sentence": SENTENCE, "costs": COSTS}
    named |= {"policy": running, "shadow_scale": 1}
    return {**named, "idle_since_wall_s": wall_s() - 300.0, "curve": curve}


@pytest.mark.parametrize(("width", "height"), [(1400, 900), pytest.param(390, 844, marks=pytest.mark.slow)])
async def test_page_shows_keep_windows_of_last_pod_and_their_savings(width: int, height: int) -> None:
    shadow_note = "Policy adaptive; knative in shadow has 1 pod now."

    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#curve .line")
        assert window.run("return document.getElementById('saved').textContent") == f"{shadow_note} O{SENTENCE[1:]}."
        text = window.run("return document.getElementById('kept').textContent")
        assert "stays for 6 s after a request, and is started ahead of one expected after 10 min to 10.3 min." in text
        assert "Learnt from 39 gaps; a pod is kept from 1 request a minute on. Now idle for 5" in text
        # The curve has two windows, and a line for the current idle time.
        assert window.run("return document.querySelectorAll('#curve .band').length") == 2
        places = "return [...document.querySelectorAll('#curve .band, #curve .now')].map((one) => one.getBBox().x)"
        first, second, now = window.run(places)
        assert first < now < second
        assert window.run("return document.documentElement.scrollWidth") <= width
        labels = "return [...document.querySelectorAll('#curve text')].map((one) => one.textContent)"
        assert {"1 s", "1 min", "10 min"} <= set(window.run(labels))

    async with staged() as stage:
        stage.policies = [calls_each_ten_minutes()]
        await seen(stage, capture, width=width, height=height, at="?tab=cold#default/hello-00002")


async def test_knative_policy_page_shows_adaptive_policy_in_shadow() -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#curve .line")
        saved, result = (
            window.run(f"return document.getElementById('{element_id}').textContent")
            for element_id in ("saved", "kept")
        )
        assert saved.startswith("Policy knative; adaptive in shadow has 1 pod now. ")
        assert (
            "Under the adaptive policy the last pod would stay for 6 s after a request, and be started ahead" in result
        )

    async with staged() as stage:
        stage.policies = [calls_each_ten_minutes("knative")]
        await seen(stage, capture, at="?tab=cold#default/hello-00002")


async def test_revision_without_policy_shows_no_curve() -> None:
    def capture(window: Browser) -> None:
        window.until(_IS_SHOWN, "#charts")
        assert (
            window.run_async(
                "const end = arguments[0]; fetch('policy?revision=default/hello-00002').then(async (one) => end(await one.json()))"
            )
            is None
        )
        assert window.run("return document.getElementById('policy-part').hidden")

    async with staged() as stage:
        await seen(stage, capture)


async def test_eight_windows_share_one_stream_and_hidden_windows_have_none() -> None:
    """Takes up to 8 s, because the server detects a closed stream with its next tick."""
    loop = asyncio.get_running_loop()

    def wait_for_streams(count: int) -> None:
        deadline_s = time.monotonic() + 60
        while sum(task.get_name() == "dashboard rights" for task in asyncio.all_tasks(loop)) != count:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def opened() -> None:
        with browser() as window:
            window.open(stage.url)
            for address in ("", "#map", "#cost", *["#default/hello-00001", "#default/hello-00002"] * 2):
                window.open_beside(f"{stage.url}/{address}")
                window.until("return document.getElementById('link').textContent === 'live'")
            wait_for_streams(1)
            asyncio.run_coroutine_threadsafe(fail(stage, "hello-00002"), loop).result()
            for handle in window.handles():
                window.switch_to(handle)
                window.until("return document.title.startsWith('(1 failing)')")
            for handle in window.handles():
                window.switch_to(handle)
                window.minimize()
            wait_for_streams(0)
            asyncio.run_coroutine_threadsafe(stage.ready("hello-00002"), loop).result()
            window.restore()
            window.until("return !document.title.includes('failing')")
            wait_for_streams(1)

    async with staged() as stage:
        await stage.ready("hello-00001", "hello-00002")
        await asyncio.to_thread(opened)


async def test_forbidden_revision_does_not_end_event_stream_of_others() -> None:
    users, headers = "ann=view:default", {"X-Remote-User": "ann", PROXY_SECRET_HEADER: "s" * 43}
    query = [("revision", "other/secret"), ("revision", "default/hello-00002")]
    async with (
        staged(proxy_users=users, proxy_secret="s" * 43) as stage,
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{stage.url}/events", params=query) as response,
    ):
        assert response.status == 200
        async with asyncio.timeout(60):
            lines = [(await response.content.readuntil(b"\n")).strip() for _ in range(8)]
        assert [line for line in lines if line.startswith((b"id", b"event"))] == [
            b"id: 0",
            b"event: all",
            b"id: 1",
            b"event: all",
        ]
