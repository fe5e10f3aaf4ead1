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
    async with staged(tmp_path_factory.mktemp("cluster")) as new_stage:
        yield new_stage


async def test_a_service_becomes_ready_with_all_that_stands_beneath_it(stage: Stage) -> None:
    await stage.apply(service("hello"))
    entry = await stage.ready("hello")
    assert entry["status"]["latestReadyRevisionName"] == "hello-00001"
    assert entry["status"]["url"].startswith("http://hello.serving-e2e.")
    for kind, name in ((CONFIGURATION, "hello"), (ROUTE, "hello"), (REVISION, "hello-00001")):
        assert is_ready(await stage.cluster.get(kind, SPACE, name))
    await stage.scaled("hello-00001", 1)


async def test_a_new_version_takes_over_and_traffic_is_split_as_asked(stage: Stage) -> None:
    await stage.apply(service("split"))
    await stage.ready("split")
    changed = await stage.apply(service("split", version="2"))
    entry = await stage.ready("split", generation=changed["metadata"]["generation"])
    assert entry["status"]["latestReadyRevisionName"] == "split-00002"
    traffic = [{"revisionName": "split-00001", "percent": 80, "tag": "old"}, {"latestRevision": True, "percent": 20}]
    changed = await stage.apply(service("split", version="2", traffic=traffic))
    entry = await stage.ready("split", generation=changed["metadata"]["generation"])
    shares = {target["revisionName"]: target["percent"] for target in entry["status"]["traffic"]}
    assert shares == {"split-00001": 80, "split-00002": 20}
    assert any(target.get("url", "").startswith("http://old-split.") for target in entry["status"]["traffic"])


async def test_a_version_that_never_gets_ready_takes_no_traffic(stage: Stage) -> None:
    await stage.apply(service("roll"))
    await stage.ready("roll")
    stage.kubelet.hold = True
    await stage.apply(service("roll", version="2"))
    await stage.until(
        SERVING_SERVICE,
        "roll",
        lambda service_object: service_object["status"]["latestCreatedRevisionName"] == "roll-00002",
    )
    route = await stage.until(ROUTE, "roll", lambda current_route: current_route["status"].get("traffic"))
    assert [target["revisionName"] for target in route["status"]["traffic"]] == ["roll-00001"]
    await stage.kubelet.release()
    current_service = await stage.until(SERVING_SERVICE, "roll", is_ready)
    assert current_service["status"]["latestReadyRevisionName"] == "roll-00002"


async def test_a_gitops_tool_sees_no_difference(stage: Stage) -> None:
    """Argo CD compares as ``kubectl diff --server-side``, and takes another manager of a field of the spec for a drift."""
    if not is_real() or not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed, or sends no token to a server without TLS")
    manifest = json.dumps(service("gitops"))
    argo = ("--server-side", "--field-manager=argocd")

    async def kubectl(command: str, *options: str) -> str:
        value = ["kubectl", command, *options, "-f", "-"]
        process = await asyncio.create_subprocess_exec(
            *value,
            env={**os.environ, "KUBECONFIG": str(stage.server.kubeconfig)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(manifest.encode())
        assert process.returncode == 0, output.decode()
        return output.decode()

    await kubectl("apply", *argo)
    before = await stage.ready("gitops")
    await kubectl("apply", *argo)
    after = await stage.ready("gitops")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    assert await kubectl("diff", *argo) == ""
    document = json.loads(await kubectl("get", "-o=json", "--show-managed-fields"))
    (live,) = document.get("items", [document])
    owners = {
        managed_field["manager"]
        for managed_field in live["metadata"]["managedFields"]
        if managed_field.get("subresource") != "status"
    }
    assert owners == {"argocd"}


async def test_a_deleted_service_leaves_nothing(stage: Stage) -> None:
    await stage.apply(service("gone"))
    await stage.ready("gone")
    await stage.cluster.delete(SERVING_SERVICE, SPACE, "gone")
    names = ((CONFIGURATION, "gone"), (ROUTE, "gone"), (REVISION, "gone-00001"), (DEPLOYMENT, "gone-00001-deployment"))
    for kind, name in (*names, (SERVICE, "gone-00001-private")):
        await stage.until_gone(kind, name)
    await stage.until_none(POD, label_selector="app=gone-00001")


def addresses(entry: Object) -> set[str]:
    """The addresses that accept requests."""
    return {
        endpoint["addresses"][0]
        for endpoint in entry.get("endpoints") or ()
        if endpoint["conditions"].get("ready") is not False
    }


def names_activators(fields: Object) -> bool:
    return addresses(fields) == set(ACTIVATOR_ADDRESSES)


def names_pods(count: int) -> Callable[[Object], bool]:
    def holds(container: Object) -> bool:
        return bool(container["ports"][0]["port"] == QUEUE_PORT) and len(addresses(container)) == count

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
        listing = await cluster.list(ENDPOINT_SLICE, SPACE, field_selector=selector)
        async with cluster.watch(
            ENDPOINT_SLICE, SPACE, resource_version=listing.resource_version, field_selector=selector
        ) as events:
            self.is_watching.set()
            async for event in of_objects(events):
                if event.type is not EventType.DELETED:
                    self._check(event.object)

    def _check(self, container: Object) -> None:
        self.versions.append(container)
        there = addresses(container)
        if not there:
            self.wrong.append("nobody is there")
        is_activators = there <= set(ACTIVATOR_ADDRESSES)
        if is_activators is (container["ports"][0]["port"] == QUEUE_PORT):
            self.wrong.append(f"{there} at {container['ports']}")
        # What was ready once in this test may stand there; an address that never was may not.
        if not is_activators and not there <= set(self._stage.kubelet.ready_addresses):
            self.wrong.append(f"{there} are not all ready")


async def test_a_service_and_its_revision_have_public_services_that_lead_to_the_activators(stage: Stage) -> None:
    await stage.apply(service("named"))
    await stage.ready("named")
    for name in ("named", "named-00001"):
        current_service = await stage.cluster.get(SERVICE, SPACE, name)
        assert not current_service["spec"].get("selector")
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
    flips = [version["ports"][0]["port"] == QUEUE_PORT for version in watched.versions]
    turns = [flip for flip, before in zip(flips, [False, *flips], strict=False) if flip is not before]
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
    endpoint_slice = await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_pods(1))
    assert pod["status"]["podIP"] not in addresses(endpoint_slice)
    stage.kubelet.hold = True
    for each_pod in (await stage.cluster.list(POD, SPACE, label_selector="app=doubt-00001")).items:
        await stage.kubelet.set_ready(each_pod, ready=False)
    await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_activators)
    await stage.kubelet.release()
    await stage.until(ENDPOINT_SLICE, "doubt-00001-public", names_pods(2))


async def test_another_activator_is_in_all_slices_that_name_activators(stage: Stage) -> None:
    await stage.apply(service("more"))
    await stage.ready("more")
    others = [*ACTIVATOR_ADDRESSES, "10.78.0.9"]
    await stage.set_activators(others)
    for name in ("more", "more-00001"):
        await stage.until(
            ENDPOINT_SLICE, f"{name}-public", lambda endpoint_slice: addresses(endpoint_slice) == set(others)
        )
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
    current_service = await stage.until(
        SERVING_SERVICE, "theirs", lambda service_object: "we do not own" in str(service_object.get("status"))
    )
    assert 'an existing Service "theirs"' in str(current_service["status"]["conditions"])
    await stage.cluster.delete(SERVICE, SPACE, "theirs")
    await stage.ready("theirs")
