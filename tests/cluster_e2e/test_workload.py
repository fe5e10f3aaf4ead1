"""A Deployment goes from zero to several pods and back by its requests, with the rights of ``config/rbac``."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, condition_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadScaling, WorkloadService, WorkloadTarget
from serving.net.cluster.kinds import DEPLOYMENT, SCALED_WORKLOAD, SERVICE
from tests.cluster_e2e.server import SPACE, only_here
from tests.cluster_e2e.test_sidecar import Cluster, running_cluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
NAME = "shop"
LABELS = {"app": NAME}
METADATA = {"name": NAME, "namespace": SPACE}


APP = """
import http.server, os, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(float(self.path.partition("/sleep/")[2] or 0))
        body = os.environ["HOST"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer((os.environ["HOST"], 8080), Handler).serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {"SERVING_ACTIVATOR_POD_ADDRESS_OVERRIDE": "10.=127."}
    async with running_cluster(tmp_path_factory.mktemp("workload"), settings) as one:
        yield one


def deployment() -> Object:
    container = {
        "name": "app",
        "image": "registry.example/shop",
        "command": ["python", "-c", APP],
        # The kubelet of the suite names the app's address in it.
        "env": [{"name": "SERVING_POD_APP", "value": "http://127.0.0.1:8080"}],
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 1},
    }
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container], **only_here()}}
    return {"metadata": METADATA, "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}}


async def test_a_deployment_wakes_scales_and_goes_to_zero_without_a_failed_request(cluster: Cluster) -> None:
    stage = cluster.stage
    ports = [{"name": "http", "port": 80, "targetPort": "web"}]
    spec = ScaledWorkloadSpec(
        target=WorkloadTarget(name=NAME),
        service=WorkloadService(name=NAME, port=80),
        hosts=(f"{NAME}.{SPACE}.localhost",),
        scaling=WorkloadScaling(max_count=3, target=5.0),
    )
    await stage.cluster.create(SERVICE, {"metadata": METADATA, "spec": {"selector": LABELS, "ports": ports}})
    written = await stage.cluster.create(DEPLOYMENT, deployment())
    await stage.cluster.create(SCALED_WORKLOAD, spec.to_object(name=NAME, namespace=SPACE))
    await stage.until(SCALED_WORKLOAD, NAME, lambda one: condition_of(one, "Ready").get("status") == "True")
    try:
        await stage.until(DEPLOYMENT, NAME, lambda one: _pods(one) == (0, 0))
        assert (await cluster.send_get(NAME))[0] == 200
        bodies: set[str] = set()
        while len(bodies) < 2:
            responses = await asyncio.gather(*(cluster.send_get(NAME, "/sleep/1") for _ in range(20)))
            assert {status for status, _ in responses} == {200}
            bodies |= {body for _, body in responses}
        back = await stage.until(DEPLOYMENT, NAME, lambda one: _pods(one) == (0, 0))
        assert back["spec"]["template"] == written["spec"]["template"]
    finally:
        for kind in (SCALED_WORKLOAD, DEPLOYMENT, SERVICE):
            await stage.cluster.delete(kind, SPACE, NAME)


def _pods(one: Object) -> tuple[int, int]:
    return one["spec"]["replicas"], nested(one, "status", "replicas") or 0
