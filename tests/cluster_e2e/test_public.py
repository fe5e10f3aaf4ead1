"""The addresses in slices of public Services at every moment: activators or ready pods, never none.

The pods carry no traffic; what is followed are the slices, by a watch that sees each of their versions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from serving.core.model.objects import Object
from serving.net.cluster.kinds import ENDPOINT_SLICE, POD, REVISION, SERVICE, SERVING_SERVICE
from serving.net.cluster.port import EventType
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import ACTIVATOR_ADDRESSES, Stage, is_ready, of_objects, service, staged

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

QUEUE_PORT = 8012
# Nothing more than the present load has to fit: the pods take over as soon as there is one.
AT_ONCE = {"autoscaling.knative.dev/target-burst-capacity": "0"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("public")) as one:
        yield one


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
