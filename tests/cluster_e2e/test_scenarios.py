"""A user's view of a cluster, with ready pods that carry no traffic, and the slices of public Services.

At every moment such a slice has activators or ready pods: a watch sees each of its versions.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from serving.core.model.objects import Object
from serving.net.cluster.kinds import (
    CONFIGURATION,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    POD,
    REVISION,
    ROUTE,
    SERVICE,
    SERVING_SERVICE,
)
from serving.net.cluster.port import EventType
from tests.cluster_e2e.server import SPACE, is_real
from tests.cluster_e2e.stage import ACTIVATOR_ADDRESSES, Stage, is_ready, of_objects, service, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

QUEUE_PORT = 8012
# Nothing more than the present load has to fit: the pods take over as soon as there is one.
AT_ONCE = {"autoscaling.knative.dev/target-burst-capacity": "0"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("cluster")) as one:
        yield one


async def test_a_service_becomes_ready_with_all_that_stands_beneath_it(stage: Stage) -> None:
    await stage.apply(service("hello"))
    found = await stage.ready("hello")
    assert found["status"]["latestReadyRevisionName"] == "hello-00001"
    assert found["status"]["url"].startswith("http://hello.serving-e2e.")
    for kind, name in ((CONFIGURATION, "hello"), (ROUTE, "hello"), (REVISION, "hello-00001")):
        assert is_ready(await stage.cluster.get(kind, SPACE, name))
    await stage.scaled("hello-00001", 1)


async def test_a_new_version_takes_over_and_traffic_is_split_as_asked(stage: Stage) -> None:
    await stage.apply(service("split"))
    await stage.ready("split")
    changed = await stage.apply(service("split", version="2"))
    found = await stage.ready("split", generation=changed["metadata"]["generation"])
    assert found["status"]["latestReadyRevisionName"] == "split-00002"
    traffic = [{"revisionName": "split-00001", "percent": 80, "tag": "old"}, {"latestRevision": True, "percent": 20}]
    changed = await stage.apply(service("split", version="2", traffic=traffic))
    found = await stage.ready("split", generation=changed["metadata"]["generation"])
    shares = {one["revisionName"]: one["percent"] for one in found["status"]["traffic"]}
    assert shares == {"split-00001": 80, "split-00002": 20}
    assert any(one.get("url", "").startswith("http://old-split.") for one in found["status"]["traffic"])


async def test_a_version_that_never_gets_ready_takes_no_traffic(stage: Stage) -> None:
    await stage.apply(service("roll"))
    await stage.ready("roll")
    stage.kubelet.hold = True
    await stage.apply(service("roll", version="2"))
    await stage.until(SERVING_SERVICE, "roll", lambda one: one["status"]["latestCreatedRevisionName"] == "roll-00002")
    route = await stage.until(ROUTE, "roll", lambda one: one["status"].get("traffic"))
    assert [one["revisionName"] for one in route["status"]["traffic"]] == ["roll-00001"]
    await stage.kubelet.release()
    found = await stage.until(SERVING_SERVICE, "roll", is_ready)
    assert found["status"]["latestReadyRevisionName"] == "roll-00002"


async def test_a_gitops_tool_sees_no_difference(stage: Stage) -> None:
    """Argo CD compares as ``kubectl diff --server-side``, and takes another manager of a field of the spec for a drift."""
    if not is_real() or not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed, or sends no token to a server without TLS")
    manifest = json.dumps(service("gitops"))
    argo = ("--server-side", "--field-manager=argocd")

    async def kubectl(command: str, *options: str) -> str:
        given = ["kubectl", command, *options, "-f", "-"]
        process = await asyncio.create_subprocess_exec(
            *given,
            env={**os.environ, "KUBECONFIG": str(stage.server.kubeconfig)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(manifest.encode())
        assert process.returncode == 0, said.decode()
        return said.decode()

    await kubectl("apply", *argo)
    before = await stage.ready("gitops")
    await kubectl("apply", *argo)
    after = await stage.ready("gitops")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    assert await kubectl("diff", *argo) == ""
    found = json.loads(await kubectl("get", "-o=json", "--show-managed-fields"))
    (live,) = found.get("items", [found])
    owners = {one["manager"] for one in live["metadata"]["managedFields"] if one.get("subresource") != "status"}
    assert owners == {"argocd"}


async def test_a_deleted_service_leaves_nothing(stage: Stage) -> None:
    await stage.apply(service("gone"))
    await stage.ready("gone")
    await stage.cluster.delete(SERVING_SERVICE, SPACE, "gone")
    names = ((CONFIGURATION, "gone"), (ROUTE, "gone"), (REVISION, "gone-00001"), (DEPLOYMENT, "gone-00001-deployment"))
    for kind, name in (*names, (SERVICE, "gone-00001-private")):
        await stage.until_gone(kind, name)
    await stage.until_none(POD, label_selector="app=gone-00001")


def addresses(one: Object) -> set[str]:
    """The addresses that accept requests."""
    return {
        endpoint["addresses"][0]
        for endpoint in one.get("endpoints") or ()
        if endpoint["conditions"].get("ready") is not False
    }


def names_activators(one: Object) -> bool:
    return addresses(one) == set(ACTIVATOR_ADDRESSES)


def names_pods(count: int) -> Callable[[Object], bool]:
    def holds(one: Object) -> bool:
        return bool(one["ports"][0]["port"] == QUEUE_PORT) and len(addresses(one)) == count

    return holds


class Watched:
    """Every version of a slice, with the state of its pods at that time."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.versions: list[Object] = []
        self.wrong: list[str] = []
        self._stage, self._name = stage, name
        self.is_watching = asyncio.Event()

    async def run(self) -> None:
        cluster, selector = self._stage.cluster, f"metadata.name={self._name}"
        found = await cluster.list(ENDPOINT_SLICE, SPACE, field_selector=selector)
        async with cluster.watch(
            ENDPOINT_SLICE, SPACE, resource_version=found.resource_version, field_selector=selector
        ) as events:
            self.is_watching.set()
            async for event in of_objects(events):
                if event.type is not EventType.DELETED:
                    self._check(event.object)

    def _check(self, one: Object) -> None:
        self.versions.append(one)
        there = addresses(one)
        if not there:
            self.wrong.append("nobody is there")
        is_activators = there <= set(ACTIVATOR_ADDRESSES)
        if is_activators is (one["ports"][0]["port"] == QUEUE_PORT):
            self.wrong.append(f"{there} at {one['ports']}")
        # What was ready once in this test may stand there; an address that never was may not.
        if not is_activators and not there <= set(self._stage.kubelet.ready_addresses):
            self.wrong.append(f"{there} are not all ready")


async def test_a_service_and_its_revision_have_public_services_that_lead_to_the_activators(stage: Stage) -> None:
    await stage.apply(service("named"))
    await stage.ready("named")
    for name in ("named", "named-00001"):
        found = await stage.cluster.get(SERVICE, SPACE, name)
        assert not found["spec"].get("selector")
        endpoints = await stage.until(ENDPOINT_SLICE, f"{name}-public", names_activators)
        assert endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == name
        assert endpoints["ports"][0]["port"] == stage.port("inner")


async def test_load_scales_from_zero_to_twenty_and_back_with_the_slice_flipped_at_the_right_moments(
    stage: Stage,
) -> None:
    name, public = "flip-00001", "flip-00001-public"
    await stage.apply(service("flip", annotations={**AT_ONCE, "autoscaling.knative.dev/max-scale": "20"}))
    await stage.ready("flip")
    watched = Watched(stage, public)
    watching = asyncio.create_task(watched.run())
    await watched.is_watching.wait()
    # Without any report there is nothing to decide on, and the path stays.
    stage.load(name, 1)
    await stage.until(ENDPOINT_SLICE, public, names_pods(1))
    stage.load(name, 0)
    await stage.scaled(name, 0)
    revision = await stage.cluster.get(REVISION, SPACE, name)
    assert revision["spec"]["servingState"] == "Reserve"
    assert is_ready(await stage.cluster.get(SERVING_SERVICE, SPACE, "flip")), "at zero it is as ready as before"
    assert names_activators(await stage.cluster.get(ENDPOINT_SLICE, SPACE, public))
    # What an activator does when a request comes for a revision at zero.
    await stage.cluster.patch(REVISION, SPACE, name, patch={"spec": {"servingState": "Active"}})
    stage.load(name, 1)
    await stage.until(ENDPOINT_SLICE, public, names_pods(1))
    stage.load(name, 30)
    await stage.until(ENDPOINT_SLICE, public, names_pods(20))
    stage.load(name, 0)
    # It is back at the activators before the first pod goes, and therefore before the scale is written.
    await stage.until(ENDPOINT_SLICE, public, names_activators)
    await stage.scaled(name, 0)
    watching.cancel()
    assert watched.wrong == []
    flips = [one["ports"][0]["port"] == QUEUE_PORT for one in watched.versions]
    turns = [one for one, before in zip(flips, [False, *flips], strict=False) if one is not before]
    assert turns == [True, False, True, False], "to the pods and back, twice"


async def test_a_pod_that_turns_unready_is_gone_from_the_slice(stage: Stage) -> None:
    await stage.apply(
        service("doubt", annotations={**AT_ONCE, "autoscaling.knative.dev/min-scale": "2"}),
    )
    await stage.ready("doubt")
    stage.load("doubt-00001", 1)
    await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_pods(2))
    pod, *_ = (await stage.cluster.list(POD, SPACE, label_selector="app=doubt-00001")).items
    await stage.kubelet.set_ready(pod, ready=False)
    found = await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_pods(1))
    assert pod["status"]["podIP"] not in addresses(found)
    stage.kubelet.hold = True
    for one in (await stage.cluster.list(POD, SPACE, label_selector="app=doubt-00001")).items:
        await stage.kubelet.set_ready(one, ready=False)
    await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_activators)
    await stage.kubelet.release()
    await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_pods(2))


async def test_another_activator_is_in_all_slices_that_name_activators(stage: Stage) -> None:
    await stage.apply(service("more"))
    await stage.ready("more")
    others = [*ACTIVATOR_ADDRESSES, "10.78.0.9"]
    await stage.set_activators(others)
    for name in ("more", "more-00001"):
        await stage.until(ENDPOINT_SLICE, f"{name}-public", lambda one: addresses(one) == set(others))
    await stage.set_activators([])
    await stage.set_activators(ACTIVATOR_ADDRESSES)
    for name in ("more", "more-00001"):
        await stage.until(ENDPOINT_SLICE, f"{name}-public", names_activators)


async def test_a_deleted_service_leaves_no_public_service_and_no_slice(stage: Stage) -> None:
    await stage.apply(service("brief"))
    await stage.ready("brief")
    await stage.cluster.delete(SERVING_SERVICE, SPACE, "brief")
    for name in ("brief", "brief-00001"):
        await stage.until_gone(SERVICE, name)
        await stage.until_gone(ENDPOINT_SLICE, f"{name}-public")


async def test_a_service_of_another_owner_is_left_alone(stage: Stage) -> None:
    body = {"metadata": {"name": "theirs", "namespace": SPACE}, "spec": {"ports": [{"port": 80}]}}
    await stage.cluster.create(SERVICE, body)
    await stage.apply(service("theirs"))
    found = await stage.until(SERVING_SERVICE, "theirs", lambda one: "we do not own" in str(one.get("status")))
    assert 'an existing Service "theirs"' in str(found["status"]["conditions"])
    await stage.cluster.delete(SERVICE, SPACE, "theirs")
    await stage.ready("theirs")
