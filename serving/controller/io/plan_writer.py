"""Carries out plans: writes in their order, each fenced by the version that the decision was made on."""

import logging
import time
from collections.abc import Callable

from serving.cluster.kinds import KINDS, Kind
from serving.cluster.port import Cluster
from serving.controller.cache import ControllerCache
from serving.controller.values.writes import Create, Delete, Patch, ResourceKind, WorkKey, Write, WritePlan
from serving.model.errors import AlreadyExists, ClusterError, Invalid, NotFound
from serving.model.objects import Object, name_of, namespace_of, version_of

_log = logging.getLogger(__name__)

RESOURCE_KINDS: dict[ResourceKind, Kind] = {
    ResourceKind(kind.resource): kind for kind in KINDS if kind.resource in set(ResourceKind)
}


class PlanWriter:
    """Writes through the cluster port and puts each answer into the cache, so that the next decision need not wait for a watch.

    ``wake`` gets the keys that a write affects; ``on_call`` the duration of each call in seconds,
    and the error that it ended with.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: ControllerCache,
        *,
        wake: Callable[[set[WorkKey]], None],
        on_call: Callable[[float, ClusterError | None], None],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._wake = wake
        self._on_call = on_call
        self.writes_count = 0

    def __repr__(self) -> str:
        return f"PlanWriter({self.writes_count} writes)"

    async def carry_out(self, key: WorkKey, plan: WritePlan) -> None:
        """Make the plan's writes. A conflict raises: the decision is made again on newer state."""
        # The version that this plan's own writes gave an object fences its next patch.
        versions: dict[WorkKey, str] = {}
        for write in plan.writes:
            begun_s, failure = time.perf_counter(), None
            try:
                await self._write(write, versions)
            except AlreadyExists:
                # Created before, and not seen yet: the watch event wakes this key.
                _log.debug("controller.already_exists", extra={"key": str(key)})
            except NotFound:
                _log.debug("controller.gone", extra={"key": str(key)})
            except ClusterError as error:
                failure = error
                if not isinstance(write, Create) or not isinstance(error, Invalid):
                    raise
                _log.warning("controller.refused", extra={"key": str(key), "error": str(error)})
                self._wake(self._cache.refuse(key, str(error)))
            finally:
                self._on_call(time.perf_counter() - begun_s, failure)

    async def _write(self, write: Write, versions: dict[WorkKey, str]) -> None:
        self.writes_count += 1
        kind = RESOURCE_KINDS[write.resource]
        match write:
            case Create(body=body):
                written = await self._cluster.create(kind, body)
                self._wake(self._cache.put_written(write.resource, written))
                _log_object("controller.created", write.resource, namespace=namespace_of(body), name=name_of(body))
            case Patch(namespace=namespace, name=name):
                written = await self._cluster.patch(
                    kind, namespace, name, patch=_fenced(write, versions), subresource=write.subresource
                )
                versions[write.resource, namespace, name] = version_of(written)
                woken = self._cache.put_written(write.resource, written)
                if write.resource is ResourceKind.REVISION and write.subresource == "status":
                    # The status says what was just decided; deciding again would change nothing.
                    woken.discard((write.resource, namespace, name))
                self._wake(woken)
            case Delete(namespace=namespace, name=name, uid=uid, resource_version=version):
                await self._cluster.delete(kind, namespace, name, uid=uid, resource_version=version)
                _log_object("controller.deleted", write.resource, namespace=namespace, name=name)


def _log_object(event: str, resource: ResourceKind, *, namespace: str, name: str) -> None:
    _log.info(event, extra={"kind": resource.value, "namespace": namespace, "object": name})


def _fenced(write: Patch, versions: dict[WorkKey, str]) -> Object:
    version = versions.get((write.resource, write.namespace, write.name))
    if version is None:
        return write.patch
    return {**write.patch, "metadata": {**write.patch["metadata"], "resourceVersion": version}}
