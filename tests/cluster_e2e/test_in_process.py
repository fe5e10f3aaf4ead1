"""The queue-proxy in the process of an app, as the controller's template has it, behind the daemons of a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.core.model.objects import Object, condition_of
from serving.net.cluster.kinds import DEPLOYMENT, POD, REVISION
from serving.net.wire.tokens import revision_secret
from tests.cluster_e2e.process_kubelet import got
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import KEY, QUERY_TOKEN, service
from tests.cluster_e2e.test_sidecar import ALWAYS, SETTINGS, Cluster, running_cluster
from tests.eventually import until
from tests.unit.config.strict import faults

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

INSIDE = {**ALWAYS, "serving.dev/queue-proxy": "in-process", "serving.knative.dev/progress-deadline": "100s"}
COMMAND = ["python", "-m", "serving.asgi", "tests.cluster_e2e.inside:app"]


def inside(name: str, command: list[str]) -> Object:
    """A service whose app is to be its own queue-proxy, started by a command."""
    resource = service(name, annotations=INSIDE)
    resource["spec"]["template"]["spec"]["containers"][0]["command"] = command
    return resource


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path_factory.mktemp("in-process"), SETTINGS) as new_cluster:
        yield new_cluster


async def test_a_request_reaches_an_app_that_is_its_own_queue_proxy(cluster: Cluster) -> None:
    await cluster.stage.apply(inside("own", COMMAND))
    await cluster.stage.ready("own")
    deployment = await cluster.stage.cluster.get(DEPLOYMENT, SPACE, "own-00001-deployment")
    deployment["spec"]["template"]["metadata"].pop("creationTimestamp", None)
    assert faults({"apiVersion": "apps/v1", "kind": "Deployment", **deployment}) == []
    assert [container["name"] for container in deployment["spec"]["template"]["spec"]["containers"]] == [
        "user-container"
    ]
    status, body = await cluster.send_get("own")
    assert status == 200
    headers = json.loads(body)
    assert headers["host"] == f"own.{SPACE}.localhost"
    assert not [name for name in headers if name.startswith("k-")]
    # It believes the activator, which knows the secret of the revision, and reports by the token of the revision.
    (pod,) = [running_pod for name, running_pod in cluster.kubelet.running.items() if name.startswith("own-")]
    revision = await cluster.stage.cluster.get(REVISION, SPACE, "own-00001")
    secret = revision_secret(KEY, namespace=SPACE, uid=revision["metadata"]["uid"])
    probe = {"K-Pod-Secret": secret, "K-Network-Probe": "queue"}
    assert await got(pod.address, 8012, "/", headers=probe) == (200, "queue")
    query = {"Authorization": f"Bearer {QUERY_TOKEN}"}
    async with asyncio.timeout(240):
        while True:
            _, page = await got(pod.address, 8022, "/metrics", headers=query)
            sent = next(line for line in page.splitlines() if line.startswith("queueproxy_stats_sent_total"))
            if float(sent.split()[1]) >= 2:
                break
            await asyncio.sleep(0.1)
    assert 'status_class="2xx"} 1' in page


async def test_a_pod_that_is_deleted_ends_what_runs(cluster: Cluster) -> None:
    await cluster.stage.apply(inside("leaves", COMMAND))
    await cluster.stage.ready("leaves")
    (name,) = [text for text in cluster.kubelet.running if text.startswith("leaves-")]
    pod = cluster.kubelet.running[name]
    task = asyncio.create_task(cluster.send_get("leaves", "/slow"))
    query = {"Authorization": f"Bearer {QUERY_TOKEN}"}
    async with asyncio.timeout(240):
        while "queueproxy_requests_inside 1\n" not in (await got(pod.address, 8022, "/metrics", headers=query))[1]:  # noqa: ASYNC110 - a page is polled
            await asyncio.sleep(0.02)
    await cluster.stage.cluster.delete(POD, SPACE, name)
    assert (await task)[0] == 200
    await until(lambda: pod.exit_code is not None)
    assert (pod.exit_code, pod.hook_responses) == (0, [])


async def test_an_image_without_it_fails_its_revision_with_what_to_change(cluster: Cluster) -> None:
    await cluster.stage.apply(inside("plain", ["python", "-m", "http.server", "8012"]))

    def has_failed(revision: Object) -> bool:
        return condition_of(revision, "Ready").get("status") == "False"

    # Long before its progress deadline of 100 s.
    current_revision = await cluster.stage.until(REVISION, "plain-00001", has_failed, within_s=80.0)
    condition = condition_of(current_revision, "Ready")
    assert condition["reason"] == "NoQueueProxy"
    assert "python -m serving.asgi" in condition["message"]
    assert "serving.dev/queue-proxy=in-process" in condition["message"]
