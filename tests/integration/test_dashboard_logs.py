"""Pod logs that the dashboard streams from files through the API to a client and to the page in a browser."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from serving.core.model.errors import ClusterError, Forbidden, Unavailable
from serving.home.admission.admission import admit
from serving.home.kubelet.podstreams import FilePodLogs
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD
from serving.net.cluster.kube import KubeCluster
from serving.tools.cli.client.tree import tree_folder
from tests.integration.api_server import served
from tests.integration.browser import Browser, browser
from tests.integration.dashboard_stage import TOKEN, DashboardStage, staged

REQUEST = {"namespace": "default", "service": "hello"}
ONE, OTHER, NEW = (f"hello-0000{number}-deployment-{name}" for number, name in ((1, "aa"), (2, "bb"), (2, "cc")))

_ROWS = "return [...document.querySelectorAll('#logs li')].filter((one) => !one.hidden).map((one) => one.textContent)"


class Pods:
    """Pods of the service hello, with log files."""

    def __init__(self, stage: DashboardStage, folder: Path) -> None:
        self.stage = stage
        self._folder = folder

    async def add(self, name: str, *lines: str) -> None:
        self.write(name, *lines)
        labels = {"serving.knative.dev/revision": name.partition("-deployment-")[0]}
        containers = [{"name": "queue-proxy", "image": "x"}, {"name": "app", "image": "x"}]
        metadata = {"namespace": "default", "name": name, "labels": labels}
        await self.stage.cluster.create(
            POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
        )

    def write(self, name: str, *lines: str) -> None:
        folder = self._folder / "default" / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "app.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


class Reading:
    """A client of ``POST /logs``."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.lines: list[list[str]] = []
        self.dropped_count = 0

    async def until(self, wanted: list[str]) -> None:
        async with asyncio.timeout(60):
            while wanted not in self.lines:
                batch = json.loads(await self._response.content.readuntil(b"\n"))
                self.dropped_count += batch["dropped"]
                self.lines += batch["lines"]


@contextlib.asynccontextmanager
async def with_files(folder: Path) -> AsyncIterator[Pods]:
    cluster = MemoryCluster(admit=admit)
    async with (
        served(cluster, folder, logs=FilePodLogs(folder / "logs")) as api,
        KubeCluster(api.kubeconfig) as kube,
        staged(cluster=cluster, logs=kube) as stage,
    ):
        yield Pods(stage, folder / "logs")


@contextlib.asynccontextmanager
async def reading(stage: DashboardStage) -> AsyncIterator[Reading]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as session,
        session.post(f"{stage.url}/logs", json=REQUEST, headers=headers) as reply,
    ):
        assert reply.status == 200
        yield Reading(reply)


async def refusal(stage: DashboardStage, *, body: object = REQUEST, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{stage.url}/logs", json=body, headers=headers) as reply,
    ):
        return reply.status, await reply.text()


class Script:
    """A source of pod logs that a test scripts."""

    def __init__(self, *runs: Callable[[], AsyncIterator[bytes]]) -> None:
        self._runs = list(runs)
        self.tails: list[int] = []

    @contextlib.asynccontextmanager
    async def pod_log(
        self, namespace: str, pod: str, *, container: str, tail_line_count: int, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container, follow) == ("default", ONE, "app", True)
        self.tails.append(tail_line_count)
        yield self._runs.pop(0)()


def failing(error: ClusterError | None) -> Callable[[], AsyncIterator[bytes]]:
    async def run() -> AsyncIterator[bytes]:
        if error is not None:
            raise error
        yield b""

    return run


async def test_logs_require_the_token(tmp_path: Path) -> None:
    async with with_files(tmp_path) as pods:
        await pods.add(ONE, "secret")
        right = f"Bearer {TOKEN}"
        assert "the token is missing" in (await refusal(pods.stage))[1]
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": right, "Host": "evil.example"}, 421),
            ({"Authorization": right, "Origin": "http://evil.example"}, 403),
            ({"Authorization": right, "Content-Type": "text/plain"}, 415),
        ):
            result, text = await refusal(pods.stage, **headers)
            assert (result, "secret" in text) == (status, False)
        assert (await refusal(pods.stage, body={"service": "x"}, Authorization=right))[0] == 400
        assert await pods.stage.status("/logs") in {404, 405}
    async with staged(token="", logs=Script()) as stage:
        status, text = await refusal(stage, Authorization=right)
        assert (status, "read-only" in text) == (403, True)


async def test_lines_of_all_revisions_are_streamed_and_new_pods_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("SERVING_KUBE_RECORD", str(calls))
    async with with_files(tmp_path) as pods:
        await pods.add(ONE, *(f"old {number}" for number in range(500)))
        await pods.add(OTHER, "hello")
        await pods.add("other-00001-deployment-dd", "of another service")
        # Both pods are known before the page reads, so that they share its first lines.
        await _seen(pods.stage, 2)
        async with reading(pods.stage) as page:
            await page.until([ONE, "old 499"])
            await page.until([OTHER, "hello"])
            assert len([line for line in page.lines if line[0] == ONE]) == 100
            pods.write(ONE, "now")
            await page.until([ONE, "now"])
            await pods.add(NEW, "first words")
            await page.until([NEW, "first words"])
            assert {pod for pod, _ in page.lines} == {ONE, OTHER, NEW}
            assert page.dropped_count == 0
    # The dashboard needs only the permission of the component dashboard-actions.
    assert calls.read_text() == "get pods/log\n"
    roles = yaml.safe_load_all((tree_folder() / "components" / "dashboard-actions" / "rbac.yaml").read_text())
    rules = next(roles)["rules"]
    assert {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]} in rules


async def test_last_lines_of_deleted_pod_are_sent_first(tmp_path: Path) -> None:
    async with with_files(tmp_path) as pods:
        await pods.add(ONE, "last words")
        await pods.add(OTHER, "hello")
        await _seen(pods.stage, 2)
        await pods.stage.cluster.delete(POD, "default", ONE, grace_s=0)
        await _seen(pods.stage, 1)
        async with reading(pods.stage) as page:
            await page.until([OTHER, "hello"])
            assert page.lines == [[ONE, "last words"], ["", f"{ONE} is gone"], [OTHER, "hello"]]


async def _seen(stage: DashboardStage, count: int) -> None:
    """Wait until the dashboard has `count` pods of the service."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            result = 0
            for revision in ("hello-00001", "hello-00002"):
                async with session.get(f"{stage.url}/state?revision=default/{revision}") as reply:
                    result += len((await reply.json())["pods"])
            if result == count:
                return
            await asyncio.sleep(0.02)


async def test_slow_reader_receives_the_count_of_dropped_lines(tmp_path: Path) -> None:
    count, has_read = 8000, asyncio.Event()

    async def flood() -> AsyncIterator[bytes]:
        for number in range(count):
            yield f"{number} {'x' * 4000}\n".encode()
            await asyncio.sleep(0)
        has_read.set()
        await asyncio.sleep(0.3)
        yield b"end\n"
        await asyncio.Event().wait()

    async with staged(logs=Script(flood)) as stage:
        await Pods(stage, tmp_path).add(ONE)
        async with reading(stage) as page:
            # The dashboard reads the whole log although the page reads nothing.
            async with asyncio.timeout(60):
                await has_read.wait()
            await page.until([ONE, "end"])
            assert page.dropped_count > 0
            assert len(page.lines) - 1 + page.dropped_count == count
            assert page.lines[-2][1].startswith(f"{count - 1} ")


async def test_restarted_container_is_followed_and_read_errors_are_reported(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield b"crashing"
        ended.set()

    async def second() -> AsyncIterator[bytes]:
        yield b"again\n"
        await asyncio.Event().wait()

    away = failing(Unavailable("the server restarts"))
    refused = failing(Forbidden("pods/log is not allowed"))
    script = Script(first, away, refused, second)
    async with staged(logs=script) as stage:
        await Pods(stage, tmp_path).add(ONE)
        async with reading(stage) as page:
            async with asyncio.timeout(60):
                await ended.wait()
            statuses = [{"name": "app", "restartCount": 1, "state": {}}]
            patch = {"status": {"containerStatuses": statuses}}
            await stage.cluster.patch(POD, "default", ONE, patch=patch, subresource="status")
            await page.until([ONE, "again"])
        # A temporarily unavailable server is not reported.
        assert page.lines == [
            [ONE, "crashing"],
            ["", f"the log of {ONE} cannot be read: pods/log is not allowed"],
            [ONE, "again"],
        ]
        assert script.tails == [200, 200, 200, 200]


async def test_disconnected_page_ends_the_reading_of_logs(tmp_path: Path) -> None:
    is_ended = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        try:
            yield b"one\n"
            while True:
                await asyncio.sleep(0.01)
                yield b"more\n"
        finally:
            is_ended.set()

    async with staged(logs=Script(silent)) as stage:
        await Pods(stage, tmp_path).add(ONE)
        async with reading(stage) as page:
            await page.until([ONE, "one"])
        async with asyncio.timeout(60):
            await is_ended.wait()


async def test_log_readers_above_limit_are_rejected() -> None:
    async with staged(logs=Script()) as stage, contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(reading(stage))
        status, text = await refusal(stage, Authorization=f"Bearer {TOKEN}")
        assert (status, json.loads(text)["error"]) == (503, "4 pages show logs already; close one")


@pytest.mark.slow
async def test_page_follows_pauses_and_filters_log_lines_as_text(tmp_path: Path) -> None:
    async with with_files(tmp_path) as pods:
        await pods.add(ONE, "one <img src=x onerror=alert(1)>", "\x1b[31mred\x1b[0m")
        await pods.add(OTHER, "two")
        with browser() as window:
            await asyncio.to_thread(_check_page, window, pods)


def _check_page(window: Browser, pods: Pods) -> None:
    def until_rows(count: int) -> Any:  # noqa: ANN401 - JSON of the page
        window.until(f"return document.querySelectorAll('#logs li:not([hidden])').length === {count}")
        return window.run(_ROWS)

    state = "return document.getElementById('logs-state').textContent.includes(arguments[0])"
    press = "document.getElementById('logs-read').click()"
    window.capture(dark=False, width=390, height=844)
    window.open(f"{pods.stage.url}?tab=logs#default/hello-00002")
    window.until("return document.getElementById('logs-part').checkVisibility()")
    window.run(press)
    window.until(state, "The token is missing")
    assert window.run("return document.activeElement.id") == "token"
    window.run(
        "document.getElementById('token').value = arguments[0]; document.getElementById('tab-logs').click()", "x" * 43
    )
    window.run(press)
    window.until(state, "the token is wrong")
    window.run("document.getElementById('token').value = arguments[0]", TOKEN)
    window.run(press)
    assert sorted(until_rows(3)) == ["00001-aa one <img src=x onerror=alert(1)>", "00001-aa red", "00002-bb two"]
    assert window.run("return document.querySelectorAll('#logs img').length") == 0
    window.run(press)
    pods.write(OTHER, "three")
    button = "return document.getElementById('logs-read').textContent === arguments[0]"
    window.until(button, "Resume (1 new)")
    assert len(window.run(_ROWS)) == 3
    window.run(press)
    assert until_rows(4)[-1] == "00002-bb three"
    typed = "const one = document.getElementById('logs-filter'); one.value = arguments[0]; one.dispatchEvent(new Event('input'))"
    window.run(typed, "00002-BB")
    assert until_rows(2) == ["00002-bb two", "00002-bb three"]
    pods.write(ONE, "hidden")
    for last in (1099, 2199):
        pods.write(OTHER, *(f"line {number}" for number in range(last - 1099, last + 1)))
        window.until("return document.getElementById('logs').textContent.includes(arguments[0])", f"line {last}")
    assert window.run("return document.getElementById('logs').childElementCount") == 2000
    assert window.run("return document.documentElement.scrollWidth") <= 390
    end = "const box = document.getElementById('logs-scroll'); return box.scrollHeight - box.scrollTop - box.clientHeight < 2"
    for width in (1400, 390):
        window.capture(dark=False, width=width, height=844)
        window.until(end)
    window.run("document.getElementById('logs-stop').click()")
    window.until(button, "Read logs")
    assert window.violations() == []


async def test_page_without_token_explains_missing_logs() -> None:
    def capture(window: Browser, url: str) -> None:
        window.capture(dark=False, width=1400, height=900)
        window.open(f"{url}?tab=logs#default/hello-00002")
        message = "return document.getElementById('logs-state').textContent.includes(arguments[0])"
        window.until(message, "serving logs -f hello")
        assert not window.run("return document.getElementById('logs-read').checkVisibility()")

    async with staged(token="", logs=Script()) as stage:
        with browser() as window:
            await asyncio.to_thread(capture, window, stage.url)
