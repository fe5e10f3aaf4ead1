"""The map and the cost page in a browser, with 0 to 220 services, at each width and in both themes."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import pytest

from serving.core.settings.dashboard import DashboardSettings
from serving.net.cluster.kinds import DOMAIN_MAPPING, POD, ROUTE
from serving.tools.dashboard.board import Board
from serving.tools.dashboard.cost import RevisionOwner
from serving.tools.dashboard.server import PageSources
from serving.tools.dashboard.topology import HostTarget, ServedHost
from tests.eventually import until
from tests.integration.browser import Browser
from tests.integration.dashboard_stage import API, staged
from tests.integration.test_dashboard_overview import FAILING, REASON, OverviewStage, overview, seen

NODES = 3
SIZES = [(width, dark) for width in (1400, 800, 390) for dark in (False, True)]
BOXES = """
return [...document.querySelectorAll('.box')].filter((one) => one.dataset.key.startsWith(arguments[0]))
  .map((one) => [one.dataset.key, one.firstChild.innerText.replace(/\\s+/g, ' ').trim()])
"""
APART = """
const boxes = [...document.querySelectorAll('.box, svg text')].map((one) => one.getBoundingClientRect());
return !boxes.some((a, at) => boxes.slice(at + 1).some((b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1))
"""
LIT = "return [...document.querySelectorAll('.box.on')].map((one) => one.dataset.key)"
COST_ROWS = (
    "return [...document.querySelectorAll('.cost tbody tr')].map((row) => [...row.cells].map((one) => one.textContent))"
)
FITS = "return document.documentElement.scrollWidth <= innerWidth"


class MapStage(OverviewStage):
    """Services with pods on nodes, with hosts and an hour of history."""

    def __init__(self) -> None:
        super().__init__()
        self.board = Board(400)
        self.hosts: list[ServedHost] = []

    def fill(self, count: int) -> None:
        for number in range(NODES):
            ready = [{"type": "Ready", "status": "False" if number else "True"}]
            metadata = {"metadata": {"name": f"node-{number}"}, "status": {"conditions": ready}}
            self.board.nodes.put_node(f"node-{number}", metadata)
        for number in range(count):
            # Every third service has pods.
            pods = 1 + number % 4 if number % 3 == 0 and number not in FAILING else 0
            key = self.add(number, pods=pods)
            namespace, _, revision = key.partition("/")
            service = revision[:-6]
            self.board.owners[key] = RevisionOwner(f"{namespace}/{service}", 2**28)
            for place in range(pods):
                view = next(pod for pod in self.board.pods(key) if pod["name"].endswith(f"-{place}"))
                view = {**view, "node": f"node-{(number + place) % NODES}", "dormant": number % 12 == 0}
                self.board.put("pod", f"{key}-{place}", view)
            self.hosts.append(host(namespace, f"{service}.{namespace}.localhost:8080", service=service))
        if count:
            self.hosts += [
                host("default", "shop.example.com", service="app-000", kind="DomainMapping"),
                host("default", "old-app-000.default.localhost:8080", tag="old", targets=("app-000-00001",)),
            ]
        self.at_s = time.time() - 3600
        for _ in range(360):
            self.tick(10)


def host(
    namespace: str, name: str, *, service: str = "", kind: str = "Route", tag: str = "", targets: Sequence[str] = ()
) -> ServedHost:
    goal = tuple(HostTarget(revision=target, percent=100) for target in targets)
    more = {"kind": kind, "tag": tag, "ready": "True", "reason": ""}
    return ServedHost(namespace=namespace, host=name, url=f"http://{name}", service=service, targets=goal, **more)


async def opened(count: int, at: str, capture: Callable[[Browser], None], *, width: int = 1400) -> None:
    stage = MapStage()
    stage.fill(count)

    async def hosts() -> list[ServedHost]:
        return stage.hosts

    async def policies(_: Mapping[str, str]) -> list[Mapping[str, Any]]:
        costs = {"adaptive_pod_seconds": 10.0, "knative_pod_seconds": 15.0}
        keys = [key.partition("/") for key in stage.board.rows]
        return [
            {"namespace": namespace, "revision": name, "policy": "adaptive", "costs": costs}
            for namespace, _, name in keys
        ]

    async with overview(stage, DashboardSettings(price_pod_hour=0.5), policies, PageSources(hosts=hosts)):
        await seen(f"{stage.url}/{at}", capture, width=width)


@pytest.mark.parametrize("count", [60, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 220))])
async def test_map_is_laid_out_without_overlap_at_each_width_and_theme(count: int) -> None:
    """Takes up to 10 s, because it captures six pictures of the page."""

    def capture(window: Browser) -> None:
        if not count:
            window.until("return document.getElementById('empty').checkVisibility()")
            return
        window.until("return document.querySelectorAll('.box.in-host').length > 1")
        services = window.run(BOXES, "service ")
        assert [text.split()[1] for _, text in services[:3]] == ["app-003", "app-011", "app-027"]
        assert len([key for key, _ in services if "fold" not in key]) == {60: 21, 220: 40}[count]
        assert [text for key, text in services if key.endswith("fold default:zero")] == [
            f"● ▸ { ({60: 20, 220: 73}[count]) } at zero default"
        ]
        assert REASON in window.run("return document.querySelector('.box.in-pods').innerText")
        for width, dark in SIZES:
            window.capture(dark=dark, width=width, height=900)
            # The page repeats the layout shortly after the window is resized.
            hosts = "> 0" if width > 700 else "=== 0"
            window.until(f"return document.querySelectorAll('.box.in-host').length {hosts}")
            window.until(FITS)
            window.until(APART)
            assert window.violations() == []

    await opened(count, "#map", capture)


async def test_map_highlights_path_of_the_focused_host() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.querySelectorAll('.box.in-host').length > 1")
        window.focus()
        window.run("document.querySelector('[data-key=\"host default/DomainMapping  shop.example.com\"] a').focus()")
        assert sorted(window.run(LIT)) == [
            "host default/DomainMapping  shop.example.com",
            "node node-0",
            "pods default/app-000-00001",
            "revision default/app-000-00001",
            "service default/app-000",
        ]
        words = window.run("return document.getElementById('map-words').textContent")
        assert words == "shop.example.com, domain: DomainMapping; on its paths 1 service, 1 revision, 1 pod, 1 node"
        window.press("ArrowRight")
        assert window.run("return document.activeElement.parentNode.dataset.key") == "service default/app-000"
        assert "old-app-000.default.localhost:8080" in str(window.run(BOXES, "host default/Route old"))
        window.press("ArrowRight", "ArrowLeft", "ArrowUp")
        assert window.run("return document.activeElement.parentNode.dataset.key") == "service shop/app-057"
        window.press("Enter")
        window.until("return document.getElementById('name').textContent === 'app-057-00001'")
        # Parts of other pages are hidden on the page of a revision.
        shown = "return ['choices', 'map', 'cost', 'overview', 'past'].filter((one) => document.getElementById(one).checkVisibility())"
        assert window.run(shown) == []
        window.run("history.back()")
        window.until("return document.querySelector('.map').checkVisibility()")

    await opened(60, "#map", capture)


async def test_filter_and_unfolded_groups_are_stored_in_the_address() -> None:
    def capture(window: Browser) -> None:
        window.until("return document.querySelectorAll('.box.in-host').length > 1")
        window.run("document.querySelector('[data-key=\"service fold shop:zero\"] button').click()")
        assert window.run("return new URLSearchParams(location.search).get('open')") == "shop:zero"
        assert len(window.run(BOXES, "service shop/app-0")) == 30
        window.run(
            "const one = document.getElementById('filter'); one.value = 'APP-05'; one.dispatchEvent(new Event('input', { bubbles: true }))"
        )
        window.until("return document.querySelectorAll('.box.in-service').length === 10")
        assert window.run("return location.search + location.hash") == "?open=shop%3Azero&q=APP-05#map"
        address = window.run("return location.href")
        window.open("about:blank")
        window.open(address)
        window.until("return document.querySelectorAll('.box.in-service').length === 10")
        window.run("document.querySelector('#map details').open = true")
        window.until("return document.querySelectorAll('#map tbody tr').length === 10")
        table = "return [...document.querySelectorAll('#map tbody tr')].map((row) => [...row.cells].map((one) => one.textContent))"
        assert ["default/app-054", "Serving", "app-054.default.localhost:8080", "app-054-00001 100 %"] in [
            row[:4] for row in window.run(table)
        ]

    await opened(60, "#map", capture)


@pytest.mark.parametrize("count", [60, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 220))])
async def test_costs_are_summed_sorted_and_filtered(count: int) -> None:
    """Takes up to 10 s, because it captures six pictures of the page."""

    def capture(window: Browser) -> None:
        if not count:
            window.until(
                "return document.getElementById('cost-state').textContent.includes('no history of these hours')"
            )
            return
        shown = min(count, 100)
        window.until("return document.querySelectorAll('.cost tbody tr').length === arguments[0]", shown)
        rows = window.run(COST_ROWS)
        # The history covers one hour of the day.
        assert "the rest is not counted" in window.run("return document.getElementById('cost-state').textContent")
        assert rows[0][0] == "app-015 shop"
        costs = [float(row[4]) for row in rows]
        assert costs == sorted(costs, reverse=True)
        for width, dark in SIZES:
            window.capture(dark=dark, width=width, height=900)
            window.until(FITS)
            assert window.violations() == []
        window.run("document.querySelector('[data-name=service] button').click()")
        assert window.run(COST_ROWS)[0][0] == "app-000 default"
        window.run(
            "const one = document.getElementById('namespace'); one.value = 'shop'; one.dispatchEvent(new Event('input', { bubbles: true }))"
        )
        window.until("return document.querySelector('.cost tbody th').textContent === 'app-001 shop'")
        window.run("document.querySelector('#cost-range input').click()")
        window.until("return document.querySelector('[data-name=known_hours]').hidden")
        assert window.run("return location.search") == "?sort=service&namespace=shop&last=3600"
        total = [float(row[1]) for row in window.run(COST_ROWS)]
        foot = window.run("return document.querySelector('.cost tfoot td:not([hidden])').textContent")
        assert count > 200 or abs(sum(total) - float(foot)) < 0.02 * sum(total)

    await opened(count, "#cost", capture)


async def test_map_contains_hosts_and_pods_of_the_api() -> None:
    async with staged() as stage:
        metadata = {"namespace": "default", "name": "hello", "labels": {"serving.knative.dev/service": "hello"}}
        goal = {"traffic": [{"configurationName": "hello", "latestRevision": True, "percent": 100}]}
        await stage.cluster.create(ROUTE, {"apiVersion": API, "kind": "Route", "metadata": metadata, "spec": goal})
        status = {"url": "http://hello.default.localhost", "traffic": [{"revisionName": "hello-00002", "percent": 100}]}
        await stage.cluster.patch(ROUTE, "default", "hello", patch={"status": status}, subresource="status")
        ref = {"kind": "Service", "name": "hello", "apiVersion": API}
        domain = {"apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping", "spec": {"ref": ref}}
        named = {"namespace": "default", "name": "shop.example.com"}
        await stage.cluster.create(DOMAIN_MAPPING, {**domain, "metadata": named})
        pod = {"namespace": "default", "name": "hello-x", "labels": {"serving.knative.dev/revision": "hello-00002"}}
        spec = {"nodeName": "node-a", "containers": [{"name": "user-container", "image": "x"}]}
        await stage.cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec})

        async def map_with_pods() -> Any:  # noqa: ANN401 - JSON
            async with aiohttp.ClientSession() as session, session.get(f"{stage.url}/map") as response:
                body = await response.json()
            return body if body["pods"] else None

        body = await until(map_with_pods)
        hosts = [(resource["host"], resource["kind"], resource["service"]) for resource in body["hosts"]]
        assert hosts == [
            ("shop.example.com", "DomainMapping", "hello"),
            ("hello.default.localhost", "Route", "hello"),
        ]
        assert body["pods"] == [{"key": "default/hello-00002", "node": "node-a", "state": "starting", "count": 1}]
