"""A memory store decodes each watch event once for all readers, so no component may modify the object.

The store holds encoded bytes. All components run on one store, and at the end each shared object is compared with its
bytes.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from serving.autoscaler.io.autoscaler import Autoscaler
from serving.controller.io.controller import Controller
from serving.core.model.objects import condition_of
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.manager import Manager
from serving.home.pods.podplan import ContainerState
from serving.home.pods.podstatus import pod_status
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s, stamp
from serving.net.cluster.kinds import KINDS, POD, REVISION, SERVING_SERVICE, Kind
from serving.net.cluster.port import EventType, WatchEvent

SCALING = AutoscalerSettings()
SERVICES = ("one", "two", "three")


async def prove() -> bool:
    return True


async def collect_events(cluster: MemoryCluster, kind: Kind, reported: list[WatchEvent]) -> None:
    listing = await cluster.list(kind)
    async with cluster.watch(kind, resource_version=listing.resource_version) as events:
        async for event in events:
            # Decode the object immediately, so that all other readers receive the same one.
            assert event.shared
            reported.append(event)


async def make_ready(cluster: MemoryCluster) -> None:
    """Report each new pod as ready, like a kubelet."""
    listing = await cluster.list(POD)
    async with cluster.watch(POD, resource_version=listing.resource_version) as events:
        async for event in events:
            if event.type is EventType.ADDED:
                states = {"user-container": ContainerState(is_running=True)}
                status = pod_status(event.object, states, address="127.64.0.1", ready=True, stamp=stamp())
                name = event.object["metadata"]["name"]
                await cluster.patch(POD, "default", name, patch={"status": status}, subresource="status")


async def until(cluster: MemoryCluster, kind: Kind, name: str, *, state: str) -> dict[str, Any]:
    """Wait for a status of the condition Ready, or Active of a revision."""
    condition = "Active" if kind is REVISION else "Ready"
    async with cluster.watch(kind, resource_version="0", field_selector=f"metadata.name={name}") as events:
        async for event in events:
            if condition_of(event.object, condition).get("status") == state:
                return event.object
    raise AssertionError(name)


async def exercise(cluster: MemoryCluster, autoscaler: Autoscaler) -> None:
    """Create services, scale one up by load, and delete the others."""
    for name in SERVICES:
        spec = {"template": {"spec": {"containers": [{"image": "app"}]}}}
        await cluster.create(SERVING_SERVICE, {"metadata": {"name": name}, "spec": spec})
    for name in SERVICES:
        await until(cluster, SERVING_SERVICE, name, state="True")
    stat = Stat(pod="activator", at_s=now_s(), concurrency=500.0, request_count=500.0)
    autoscaler.record(("default", "one-00001"), stat, StatSource.ACTIVATOR)
    await cluster.patch(SERVING_SERVICE, "default", "two", patch={"metadata": {"annotations": {"a": "b"}}})
    for name in SERVICES[1:]:
        await cluster.delete(SERVING_SERVICE, "default", name)
    await asyncio.sleep(0.2)


async def test_components_do_not_modify_shared_watch_objects() -> None:
    cluster = MemoryCluster(admit=partial(admit, scaling=SCALING))
    stop = asyncio.Event()
    reported: list[WatchEvent] = []
    controller = Controller(cluster, scaling=SCALING)
    autoscaler = Autoscaler(cluster, settings=SCALING, prove=prove)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        work = [group.create_task(collect_events(cluster, kind, reported)) for kind in KINDS]
        work += [group.create_task(make_ready(cluster)), group.create_task(Manager(cluster).run())]
        daemons = [group.create_task(controller.run(stop)), group.create_task(autoscaler.run(stop))]
        await exercise(cluster, autoscaler)
        stop.set()
        await asyncio.gather(*daemons)
        for task in work:
            task.cancel()
    assert len({event.shared["kind"] for event in reported}) >= len(
        ("Service", "Configuration", "Route", "Revision", "Pod")
    )
    for event in reported:
        assert event.encoded is not None
        assert event.shared == msgspec.json.decode(event.encoded)
