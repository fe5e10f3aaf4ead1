"""A running dashboard with a memory store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from serving.core.model.objects import Object
from serving.core.settings.dashboard import DashboardSettings
from serving.home.admission.admission import admit
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, REVISION, SERVING_SERVICE
from serving.net.cluster.port import Cluster, PodLogSource
from serving.tools.dashboard.main import Dashboard
from tests.integration.daemons import started
from tests.integration.query_token import GATE

TOKEN = "t" * 43
API = "serving.knative.dev/v1"
LONG_AGO = "2020-01-01T00:00:00Z"
SCALE = "autoscaling.knative.dev/"


class DashboardStage:
    """A dashboard with a store of the service hello and two revisions, and an HTTP server as activator and autoscaler."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.url = ""
        self.requests: list[str] = []
        self.policies: list[dict[str, Any]] = []

    async def fill(self, created: str = "") -> None:
        template = {"metadata": {"annotations": {f"{SCALE}max-scale": "9"}}, "spec": {"containers": [{"image": "x"}]}}
        metadata = {"namespace": "default", "name": "hello"}
        spec = {"template": template, "traffic": [{"latestRevision": True, "percent": 100}]}
        await self.cluster.create(
            SERVING_SERVICE, {"apiVersion": API, "kind": "Service", "metadata": metadata, "spec": spec}
        )
        traffic = [{"revisionName": "hello-00002", "percent": 100, "latestRevision": True}]
        status = {
            "url": "http://hello.default.localhost:80",
            "traffic": traffic,
            "latestReadyRevisionName": "hello-00002",
        }
        await self.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"status": status}, subresource="status")
        for name in ("hello-00001", "hello-00002"):
            labels = {"serving.knative.dev/service": "hello"}
            result = {"namespace": "default", "name": name, "labels": labels, "annotations": {f"{SCALE}max-scale": "9"}}
            body = {"apiVersion": API, "kind": "Revision", "metadata": result, "spec": template["spec"]}
            if created and isinstance(self.cluster, MemoryCluster):
                body["metadata"] = {**result, "uid": f"uid-{name}", "creationTimestamp": created}
                await self.cluster.restore(REVISION, body)
            else:
                await self.cluster.create(REVISION, body)

    async def act(self, action: str, *, token: str = TOKEN, **body: object) -> tuple[int, dict[str, str]]:
        request_count = {"namespace": "default", "service": "hello", **body}
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.url}/actions/{action}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=request_count, headers=headers) as response,
        ):
            return response.status, await response.json()

    async def status(self, path: str) -> int:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            return response.status

    async def service(self) -> Object:
        return await self.cluster.get(SERVING_SERVICE, "default", "hello")

    async def patch_status(self, status: Object) -> None:
        await self.cluster.patch(SERVING_SERVICE, "default", "hello", patch={"status": status}, subresource="status")

    async def ready(self, *names: str, status: str = "True") -> None:
        """Set the Ready condition of revisions."""
        patch = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        for name in names:
            await self.cluster.patch(REVISION, "default", name, patch=patch, subresource="status")

    async def split(self, **percents: int) -> None:
        """Split the traffic of hello as a controller reports it, by the last digits of revisions: ``_1=90``."""
        traffic = [{"revisionName": f"hello-0000{name[1:]}", "percent": percent} for name, percent in percents.items()]
        await self.patch_status({"traffic": traffic})

    async def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in (await self.cluster.list(EVENT, "default")).items]

    async def activator(self, request: web.Request) -> web.Response:
        if request.path.endswith("/policies"):
            # The autoscaler has the same address.
            return web.json_response(
                [policy for policy in self.policies if request.query.get("revision") in {None, policy["revision"]}]
            )
        self.requests.append(f"{request.method} {request.path} {request.host}")
        headers = {"X-Serving-Revision": "hello-00002", "X-Serving-Cold-Start": "true"}
        return web.Response(text="hello", headers=headers)


@contextlib.asynccontextmanager
async def served(handler: Any) -> AsyncIterator[str]:  # noqa: ANN401 - aiohttp's many kinds of handlers
    server = web.AppRunner(web.Application())
    server.app.router.add_get("/{path:.*}", handler)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    try:
        yield "{}:{}".format(*server.addresses[0][:2])
    finally:
        await server.cleanup()


@contextlib.asynccontextmanager
async def staged(
    token: str = TOKEN,
    *,
    is_empty: bool = False,
    cluster: Cluster | None = None,
    logs: PodLogSource | None = None,
    history_file: str = "none",
    created: str = "",
    proxy_users: str = "",
    proxy_secret: str = "",
) -> AsyncIterator[DashboardStage]:
    stage = DashboardStage(cluster or MemoryCluster(admit=admit))
    if not is_empty:
        await stage.fill(created)
    async with served(stage.activator) as activator:
        settings = DashboardSettings(
            address="127.0.0.1:0",
            # The stage has no decisions.
            autoscaler_url=f"http://{activator}/nothing",
            activator_metrics_url="",
            activator_address=activator,
            history_file=history_file,
            proxy_user_header="X-Remote-User" if proxy_users else "",
            proxy_users=proxy_users,
        )
        queries = GATE if proxy_users else None
        dashboard = Dashboard(
            settings, stage.cluster, token=token, logs=logs, queries=queries, proxy_secret=proxy_secret
        )
        async with started(dashboard):
            stage.url = "http://{}:{}".format(*dashboard.address)
            # A page that opens before the cluster is synced resets its fields when more objects arrive.
            async with asyncio.timeout(60):
                while await stage.status("/healthz") != 200:  # noqa: ASYNC110 - asked as a supervisor would
                    await asyncio.sleep(0.02)
            yield stage
