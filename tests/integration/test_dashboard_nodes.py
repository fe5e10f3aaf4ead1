"""Nodes on the dashboard, over HTTP and in a browser: usage, requests, and scores with their reasons."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from serving.core.model.knative import REMOVAL_TAINT
from serving.core.model.objects import Object
from serving.core.settings.dashboard import DashboardSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import stamp
from serving.net.cluster.kinds import NODE, NODE_GROUP, NODE_METRICS, POD, REVISION
from serving.net.cluster.kube import KubeCluster
from serving.tools.dashboard.main import Dashboard
from tests.integration.api_server import served
from tests.integration.browser import Browser, browser
from tests.integration.daemons import started
from tests.unit.tools.dashboard.test_nodegroups import group

REVISION_LABEL = "serving.knative.dev/revision"
KEY = "default/hello-00001"


async def fill(cluster: MemoryCluster) -> None:
    """Three nodes: one without measurements, one with a pod of this system, one with a foreign pod and a taint."""
    metadata: Object = {
        "name": "hello-00001",
        "namespace": "default",
        "labels": {"serving.knative.dev/service": "hello"},
    }
    await cluster.create(REVISION, {"metadata": metadata, "spec": {"containers": [{"image": "x"}]}})
    for name in ("north", "south", "west"):
        taints = [{"key": "dedicated", "effect": "NoSchedule"}] if name == "west" else []
        await cluster.create(NODE, {"metadata": {"name": name}, "spec": {"taints": taints}})
        conditions = [{"type": "Ready", "status": "False" if name == "west" else "True"}]
        status = {"allocatable": {"cpu": "4", "memory": "16Gi"}, "conditions": conditions}
        await cluster.patch(NODE, "", name, patch={"status": status}, subresource="status")
    await add_pod(cluster, "ours", on="south", labels={REVISION_LABEL: "hello-00001"})
    await add_pod(cluster, "theirs", on="west", labels={})
    await measure(cluster, "south", cpu="1500m")
    await measure(cluster, "west", cpu="3900m")


async def add_pod(cluster: MemoryCluster, name: str, *, on: str, labels: dict[str, str]) -> None:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}
    metadata: Object = {"name": name, "namespace": "default", "labels": labels}
    await cluster.create(POD, {"metadata": metadata, "spec": {"nodeName": on, "containers": [container]}})


async def measure(cluster: MemoryCluster, node: str, *, cpu: str) -> None:
    usage = {"cpu": cpu, "memory": "4Gi"}
    metadata = {"metadata": {"name": node}, "timestamp": stamp(), "window": "15s", "usage": usage}
    await cluster.create(NODE_METRICS, metadata)


@contextlib.asynccontextmanager
async def shown(folder: Path) -> AsyncIterator[tuple[MemoryCluster, str]]:
    """A store that is served over HTTP, like a cluster, and the address of its dashboard."""
    cluster = MemoryCluster()
    await fill(cluster)
    settings = DashboardSettings(
        address="127.0.0.1:0",
        # No autoscaler is needed in these tests.
        autoscaler_url="http://127.0.0.1:1",
        activator_metrics_url="",
    )
    async with served(cluster, folder) as api, KubeCluster(str(api.kubeconfig)) as kube:
        dashboard = Dashboard(settings, kube)
        async with started(dashboard):
            yield cluster, "http://{}:{}".format(*dashboard.address)
    await cluster.close()


async def nodes_of(url: str) -> dict[str, Object]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/state?revision={KEY}") as response:
        return {line["name"]: line for line in json.loads(await response.text())["nodes"]["lines"]}


async def test_nodes_report_requests_usage_and_scores_and_follow_changes(tmp_path: Path) -> None:
    async with shown(tmp_path) as (cluster, url), asyncio.timeout(60):
        while not (nodes := await nodes_of(url)) or nodes["west"]["used"] is None or nodes["west"]["pod_count"] == 0:  # noqa: ASYNC110 - asked as a page would
            await asyncio.sleep(0.05)
        assert {name: node["requested_millicores"] for name, node in nodes.items()} == {
            "north": 0,
            "south": 1000,
            "west": 1000,
        }
        assert {name: node["used"] and node["used"]["cpu_millicores"] for name, node in nodes.items()} == {
            "north": None,
            "south": 1500,
            "west": 3900,
        }
        assert nodes["north"]["score"] > nodes["south"]["score"]
        await cluster.delete(POD, "default", "theirs", grace_s=0)
        while (await nodes_of(url))["west"]["requested_millicores"]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)


async def test_page_shows_nodes_and_opens_score_reasons_by_keyboard(tmp_path: Path) -> None:
    async with shown(tmp_path) as (cluster, url):
        with browser() as window:
            await asyncio.to_thread(capture, window, url)
            await add_pod(cluster, "more", on="north", labels={})
            await asyncio.to_thread(open_again, window)


def capture(window: Browser, url: str) -> None:
    window.capture(dark=False, width=1200, height=900)
    window.open(f"{url}#{KEY}")
    window.until("return document.querySelectorAll('#nodes li').length === 3")
    # The page receives objects, usage and the next pod one after the other.
    west = window.until(
        "return [...document.querySelectorAll('#nodes li')].map((one) => one.textContent)"
        ".find((one) => one.includes('1 requested, 3.9 in use, of 4 cores'))"
    )
    window.until("return document.getElementById('nodes-note').textContent.includes('requests 1 core and 2 GiB')")
    window.until("return document.querySelector('#nodes li').textContent.includes('the best')")
    assert "2 requested, 4 in use, of 16 GiB" in west
    assert "Not ready" in west
    assert "tainted dedicated" in west
    # The node that is not ready has the same score, but is not recommended.
    assert "the best" not in west
    # Missing usage is not shown as 0.
    assert "in use" not in window.run("return document.querySelector('#nodes li').textContent")
    # The keyboard opens the summary of a node with Enter.
    window.run("document.querySelector('#nodes summary').focus()")
    window.press("Enter")
    why = window.until("return document.querySelector('#nodes details[open] tbody')?.textContent")
    assert re.search(r"least requested7 of 10. 1with the pod 1 of 4 cores \(7 of 10\)", why)
    assert "most requested1 of 10no" in why
    assert window.run("return document.querySelectorAll('#nodes [title]').length") == 0
    for dark, width in ((False, 1200), (True, 400)):
        window.capture(dark=dark, width=width, height=900)
        assert window.run("return document.documentElement.scrollWidth <= innerWidth"), (
            "the page does not scroll sideways"
        )
        assert window.violations() == []


def open_again(window: Browser) -> None:
    window.until("return document.querySelector('#nodes li').textContent.includes('1 requested')")
    assert window.run("return document.querySelector('#nodes li details').open"), "the opened reasons stay open"
    assert window.run("return document.activeElement.tagName") == "SUMMARY"


async def test_page_shows_node_groups_and_reason_of_node_removal(tmp_path: Path) -> None:
    async with shown(tmp_path) as (cluster, url):
        patch: Object = {
            "metadata": {"labels": {"pool": "default"}},
            "spec": {"taints": [{"key": REMOVAL_TAINT, "value": "1", "effect": "NoSchedule"}]},
        }
        await cluster.patch(NODE, "", "south", patch=patch)
        result = group()
        status = result.pop("status")
        await cluster.create(NODE_GROUP, result)
        results = [{"node": "south", "reason": "pods on it are asked to leave"}]
        status = {**status, "kept": results, "lastAction": {**status["lastAction"], "time": stamp()}}
        await cluster.patch(NODE_GROUP, "", "default", patch={"status": status}, subresource="status")
        with browser() as window:
            await asyncio.to_thread(check_groups, window, url, tmp_path)


def check_groups(window: Browser, url: str, folder: Path) -> None:
    window.capture(dark=False, width=1400, height=900)
    window.open(f"{url}#{KEY}")
    line = window.until("return document.querySelector('#groups li')?.textContent")
    assert "3 nodes, 1 to go, 1 on the way, from 1 to 4" in line
    assert "85.5 % of CPU and 20 % of memory requested by 5 pods and 2 to come" in line
    assert "Now: too full: +1 (held by cloud-max)" in line
    assert "Last: ask the cloud for 1 node, because too full, at" in line
    assert "AbleToScale is false: 3 scale-ups brought no node" in line
    south = window.until(
        "return [...document.querySelectorAll('#nodes li')].map((one) => one.textContent)"
        ".find((one) => one.includes('south') && one.includes('in default'))"
    )
    assert "to be removed: pods on it are asked to leave" in south
    assert "tainted" not in south
    # A node that will be removed is not recommended.
    assert "the best" not in south
    for dark, width in ((False, 1400), (True, 390)):
        window.capture(dark=dark, width=width, height=1400)
        window.run("document.getElementById('nodes-part').scrollIntoView()")
        assert window.run("return document.documentElement.scrollWidth <= innerWidth"), (
            "the page does not scroll sideways"
        )
        assert window.violations() == []
        window.picture(folder / f"groups-{width}.png")
