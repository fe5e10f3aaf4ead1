"""A simulated cluster: pods for Deployments without processes, whose status depends on their image.

An image is a behaviour: "good" is ready at once, "slow" when it is let go, "bad" exits with a traceback, "nocommand"
cannot be started. What is written stands in the API as a controller-manager and a kubelet would write it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from serving.controller.io.controller import Controller
from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import NotFound
from serving.core.model.objects import Object, condition_of, nested, owner_reference
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.garbage import collect_garbage
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, POD, Kind

_PATIENCE_S = 60.0


class FakeNode:
    """Creates pods for Deployments and reports their state."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.let_go = asyncio.Event()

    async def run(self) -> None:
        """Update pods when a Deployment changes, and those of slow images when they are released."""
        async with asyncio.TaskGroup() as group:
            listing = await self._cluster.list(DEPLOYMENT)
            async with self._cluster.watch(DEPLOYMENT, resource_version=listing.resource_version) as events:
                async for event in events:
                    if event.type == "ADDED":
                        group.create_task(self._roll_out(event.object), name="fake-node")

    async def _roll_out(self, deployment: Object) -> None:
        image = nested(deployment, "spec", "template", "spec")["containers"][0]["image"]
        await self._show(deployment, image, is_let_go=False)
        if image == "slow":
            await self.let_go.wait()
            await self._show(deployment, image, is_let_go=True)

    async def _show(self, deployment: Object, image: str, *, is_let_go: bool) -> None:
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        count = deployment["spec"]["replicas"]
        is_ready = image == "good" or (image == "slow" and is_let_go)
        try:
            for number in range(count):
                await self._show_pod(deployment, f"{name}-{number}", container_status(image, is_ready=is_ready))
            status = {"replicas": count, "readyReplicas": count if is_ready else 0}
            await self._cluster.patch(DEPLOYMENT, namespace, name, patch={"status": status}, subresource="status")
        except NotFound:
            return

    async def _show_pod(self, deployment: Object, name: str, status: Object) -> None:
        namespace = deployment["metadata"]["namespace"]
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": deployment["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [owner_reference(deployment)],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
        try:
            await self._cluster.get(POD, namespace, name)
        except NotFound:
            await self._cluster.create(POD, pod)
        condition = {"type": "Ready", "status": str(status["ready"])}
        patch = {"status": {"containerStatuses": [status], "conditions": [condition]}}
        await self._cluster.patch(POD, namespace, name, patch=patch, subresource="status")


def container_status(image: str, *, is_ready: bool) -> Object:
    """The status of a container with this image."""
    states: dict[str, Object] = {
        "bad": {"terminated": {"exitCode": 1, "reason": "Error", "message": "Traceback\nKeyError: 'DATABASE_URL'"}},
        "nocommand": {
            "waiting": {"reason": "CreateContainerError", "message": "set the annotation serving.dev/command"}
        },
    }
    return {"name": "user-container", "image": image, "ready": is_ready, "state": states.get(image, {"running": {}})}


class World:
    """A store, the controller and a node."""

    def __init__(
        self, settings: ControllerSettings | None, *, cluster: MemoryCluster, statuses: UnreadWrites | None = None
    ) -> None:
        self.cluster = cluster
        self.controller = Controller(cluster, settings=settings, statuses=statuses)
        self.node = FakeNode(self.cluster)

    async def until(self, kind: Kind, name: str, holds: Callable[[Object], Any]) -> Object:
        """Wait until an object satisfies a condition; fail with its last state after a timeout."""
        last: Object = {}
        try:
            async with asyncio.timeout(_PATIENCE_S):
                listing = await self.cluster.list(kind, "default", field_selector=f"metadata.name={name}")
                for last in listing.items:
                    if holds(last):
                        return last
                async with self.cluster.watch(
                    kind, "default", resource_version=listing.resource_version, field_selector=f"metadata.name={name}"
                ) as events:
                    async for event in events:
                        last = event.object
                        if event.type != "DELETED" and holds(last):
                            return last
        except TimeoutError:
            pass
        raise AssertionError(f"{kind.name} {name} stays {last}")

    async def until_gone(self, kind: Kind, name: str) -> None:
        """Wait until an object does not exist."""
        async with asyncio.timeout(_PATIENCE_S):
            listing = await self.cluster.list(kind, "default", field_selector=f"metadata.name={name}")
            if not listing.items:
                return
            async with self.cluster.watch(
                kind, "default", resource_version=listing.resource_version, field_selector=f"metadata.name={name}"
            ) as events:
                async for event in events:
                    if event.type == "DELETED":
                        return


@asynccontextmanager
async def a_world(
    settings: ControllerSettings | None = None,
    *,
    cluster: MemoryCluster | None = None,
    statuses: UnreadWrites | None = None,
) -> AsyncIterator[World]:
    """Run the controller and the node during the block."""
    world = World(settings, cluster=cluster or MemoryCluster(admit=admit), statuses=statuses)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(world.node.run()),
            group.create_task(collect_garbage(world.cluster)),
        ]
        controller = group.create_task(world.controller.run(stop))
        try:
            yield world
        finally:
            stop.set()
            await controller
            for task in tasks:
                task.cancel()
            await world.cluster.close()


def a_service(image: str, *, name: str = "hello", own_name: str = "", **spec: Any) -> Object:  # noqa: ANN401 - JSON
    """A manifest of a service."""
    template: Object = {"spec": {"containers": [{"image": image}]}}
    if own_name:
        template["metadata"] = {"name": own_name}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


def ready(resource: Object) -> bool:
    """Whether the condition Ready is true for the current generation, like ``kubectl wait``."""
    result = condition_of(resource, "Ready").get("status") == "True"
    return result and nested(resource, "status", "observedGeneration") == resource["metadata"]["generation"]
