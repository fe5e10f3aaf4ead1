"""The queue-proxy as the container of the controller's template, and a Deployment without one, behind the daemons of a cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, condition_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadScaling, WorkloadService, WorkloadTarget
from serving.net.cluster.kinds import DEPLOYMENT, POD, REVISION, SCALED_WORKLOAD, SERVICE
from serving.net.wire.tokens import revision_secret
from tests.cluster_e2e.process_kubelet import ProcessKubelet, RunningPod, got
from tests.cluster_e2e.server import SPACE, only_here
from tests.cluster_e2e.stage import KEY, QUERY_TOKEN, SIDECAR, Stage, service, staged
from tests.eventually import until
from tests.unit.config.strict import faults

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

SETTINGS = {
    **SIDECAR,
    "SERVING_QUEUEPROXY_DRAIN_LAG_S": "0.2",
    "SERVING_AUTOSCALER_STATS_AUDIENCE": "serving-stats",
    "SERVING_ACTIVATOR_SECRETS_OF": "revision",
    "SERVING_ACTIVATOR_POD_ADDRESS_OVERRIDE": "10.=127.",
}
_FRAMES = "autoscaler_stats_frames_total"
ALWAYS = {"autoscaling.knative.dev/min-scale": "1"}


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


class Cluster:
    """The stage with a kubelet."""

    def __init__(self, stage: Stage, kubelet: ProcessKubelet, *, has_projected: bool) -> None:
        self.stage, self.kubelet, self.has_projected = stage, kubelet, has_projected

    async def hello(self, name: str) -> RunningPod:
        """A service with one pod at least; that pod."""
        await self.stage.apply(service(name, annotations=ALWAYS))
        await self.stage.ready(name)
        return next(running_pod for pod, running_pod in self.kubelet.running.items() if pod.startswith(name))

    async def send_get(self, name: str, path: str = "/") -> tuple[int, str]:
        """One request of a client."""
        headers = {"Host": f"{name}.{SPACE}.localhost"}
        async with asyncio.timeout(240):
            # The activator hears of a service a moment after it is ready.
            while (results := await got("127.0.0.1", self.stage.port("public"), path, headers=headers))[0] == 404:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.05)
        return results


@contextlib.asynccontextmanager
async def running_cluster(
    folder: Path, settings: dict[str, str], *, has_projected: bool = False
) -> AsyncIterator[Cluster]:
    """The stage with a kubelet that runs containers as processes."""
    async with staged(folder, runs_nothing=False, settings=settings) as stage:
        kubelet = ProcessKubelet(stage.cluster, stage.server, folder)
        running = asyncio.create_task(kubelet.run())
        try:
            await kubelet.until_schedulable()
            try:
                yield Cluster(stage, kubelet, has_projected=has_projected)
            finally:
                await stage.clear()
        finally:
            await kubelet.kill_all()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["serving-stats", pytest.param("", marks=pytest.mark.slow)],
    ids=["projected", "derived"],
)
async def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The stage with tokens derived from the cluster key, and with those of Kubernetes."""
    settings = SETTINGS | {"SERVING_CONTROLLER_SIDECAR_STATS_AUDIENCE": request.param}
    async with running_cluster(
        tmp_path_factory.mktemp("sidecar"), settings, has_projected=bool(request.param)
    ) as new_cluster:
        yield new_cluster


async def test_a_deployment_of_a_cluster_is_one_that_kubernetes_takes(cluster: Cluster) -> None:
    await cluster.hello("taken")
    current_deployment = await cluster.stage.cluster.get(DEPLOYMENT, SPACE, "taken-00001-deployment")
    # A server before 1.34 says so of a template that was never created by itself.
    current_deployment["spec"]["template"]["metadata"].pop("creationTimestamp", None)
    assert faults({"apiVersion": "apps/v1", "kind": "Deployment", **current_deployment}) == []
    names = [container["name"] for container in current_deployment["spec"]["template"]["spec"]["containers"]]
    assert names == ["queue-proxy", "user-container"]


async def test_a_request_goes_through_a_queue_proxy_that_believes_the_activator(cluster: Cluster) -> None:
    pod = await cluster.hello("through")
    assert await cluster.send_get("through") == (200, "hello")
    revision = await cluster.stage.cluster.get(REVISION, SPACE, "through-00001")
    secret = revision_secret(KEY, namespace=SPACE, uid=revision["metadata"]["uid"])
    probe = {"K-Pod-Secret": secret, "K-Network-Probe": "queue"}
    assert await got(pod.address, 8012, "/", headers=probe) == (200, "queue")
    (head,) = [head for head in pod.heads if head.startswith("GET / ")]
    assert f"Host: through.{SPACE}.localhost" in head
    assert secret not in head


async def test_its_stats_reach_the_autoscaler_by_its_token(cluster: Cluster) -> None:
    before = await cluster.stage.numbers("autoscaler")
    pod = await cluster.hello("told")
    query = {"Authorization": f"Bearer {QUERY_TOKEN}"}
    assert (await got(pod.address, 8022, "/metrics"))[0] == 401
    async with asyncio.timeout(240):
        while True:
            _, page = await got(pod.address, 8022, "/metrics", headers=query)
            now = await cluster.stage.numbers("autoscaler")
            sent = next(line for line in page.splitlines() if line.startswith("queueproxy_stats_sent_total"))
            # What was sent may still be on its way.
            if float(sent.split()[1]) >= 2 and now[_FRAMES] > before.get(_FRAMES, 0):
                break
            await asyncio.sleep(0.1)
    # Pods of the tests before may still come, each with a token of its own. A derived token needs no question.
    came = now.get("autoscaler_token_reviews_total", 0) - before.get("autoscaler_token_reviews_total", 0)
    assert (came > 0) is cluster.has_projected
    assert now.get("autoscaler_stats_malformed_frames_total", 0) == 0


async def test_a_request_that_comes_through_the_activator_counts_once(cluster: Cluster) -> None:
    pod = await cluster.hello("once")
    tasks = [asyncio.create_task(cluster.send_get("once", "/slow")) for _ in range(3)]
    await until(lambda: len([head for head in pod.heads if "/slow" in head]) == 3)
    assert [await task for task in tasks] == [(200, "hello")] * 3
    deployment = await cluster.stage.cluster.get(DEPLOYMENT, SPACE, "once-00001-deployment")
    # One request is a pod's; six, if those of the activator were counted in the pod again.
    assert deployment["spec"]["replicas"] <= 3


async def test_a_pod_that_is_deleted_ends_what_runs_and_its_app_ends_after_that(cluster: Cluster) -> None:
    pod = await cluster.hello("ends")
    name = pod.pod["metadata"]["name"]
    task = asyncio.create_task(cluster.send_get("ends", "/slow"))
    await until(lambda: any("/slow" in head for head in pod.heads))
    await cluster.stage.cluster.delete(POD, SPACE, name)
    assert await task == (200, "hello")
    await until(lambda: pod.exit_code is not None)
    assert pod.exit_code == 0
    assert pod.hook_responses == [(200, "drained")]


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
    await stage.until(
        SCALED_WORKLOAD, NAME, lambda scaled_workload: condition_of(scaled_workload, "Ready").get("status") == "True"
    )
    try:
        await stage.until(DEPLOYMENT, NAME, lambda current_deployment: _pods(current_deployment) == (0, 0))
        assert (await cluster.send_get(NAME))[0] == 200
        bodies: set[str] = set()
        while len(bodies) < 2:
            responses = await asyncio.gather(*(cluster.send_get(NAME, "/sleep/1") for _ in range(20)))
            assert {status for status, _ in responses} == {200}
            bodies |= {body for _, body in responses}
        back = await stage.until(DEPLOYMENT, NAME, lambda current_deployment: _pods(current_deployment) == (0, 0))
        assert back["spec"]["template"] == written["spec"]["template"]
    finally:
        for kind in (SCALED_WORKLOAD, DEPLOYMENT, SERVICE):
            await stage.cluster.delete(kind, SPACE, NAME)


def _pods(resource: Object) -> tuple[int, int]:
    return resource["spec"]["replicas"], nested(resource, "status", "replicas") or 0
