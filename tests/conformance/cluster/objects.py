"""Small objects accepted by every server, and test helpers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster, EventType

# Far above the need of a loaded machine; reached only on failure.
_PATIENCE_S = 60.0
_CHECK_EVERY_S = 0.01


def config_map(namespace: str, name: str, **labels: str) -> Object:
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, "data": {"key": "value"}}


def revision(namespace: str, name: str, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    containers = [{"name": "user-container", "image": "dev.local/sample"}]
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"containers": containers, **spec}}


def deployment(namespace: str, name: str, *, replicas: int = 1) -> Object:
    """A Deployment.

    A real controller writes its status within milliseconds; a revision's status has no other writer.
    """
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "one", "image": "dev.local/one"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def pod(namespace: str, name: str) -> Object:
    """A pod ignored by schedulers: it has no node, and its status has no other writer."""
    containers = [{"name": "one", "image": "dev.local/one", "env": [{"name": "A", "value": "1"}]}]
    spec = {"containers": containers, "schedulerName": "nobody"}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def version(resource: Object) -> str:
    resource_version: str = resource["metadata"]["resourceVersion"]
    return resource_version


def names(objects: list[Object]) -> list[str]:
    return [resource["metadata"]["name"] for resource in objects]


async def changes_after(
    cluster: Cluster, kind: Kind, namespace: str, resource_version: str, *, until: str, **selectors: str
) -> list[tuple[str, str]]:
    """Events of a watch, as (type, name), up to but without the change of the object named ``until``."""
    results: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(_PATIENCE_S),
        cluster.watch(kind, namespace, resource_version=resource_version, **selectors) as events,
    ):
        async for event in events:
            if event.type is EventType.BOOKMARK:
                continue
            name = event.object["metadata"]["name"]
            if name == until:
                return results
            results.append((event.type.value, name))
    raise AssertionError(f"the watch ended before {until}: {results}")


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until another process or task fulfils a condition."""
    async with asyncio.timeout(_PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - it happens elsewhere, maybe in another process
            await asyncio.sleep(_CHECK_EVERY_S)


async def is_gone(cluster: Cluster, kind: Kind, namespace: str, name: str) -> bool:
    try:
        await cluster.get(kind, namespace, name)
    except NotFound:
        return True
    return False
