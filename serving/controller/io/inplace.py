"""Keeps the EndpointSlices of Services that ScaledWorkloads take over in place (``controller/workloads/inplace.py``)."""

import contextlib

from serving.controller.revisions.public import ACTIVATOR_SERVICE, SERVICE_NAME, Activators
from serving.controller.workloads.inplace import in_place_writes, taken_service
from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.objects import Key, Object
from serving.net.aio.supervise import supervise
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import ENDPOINT_SLICE, SCALED_WORKLOAD
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.workqueue import WorkQueue


class InPlaceServices:
    """Runs until cancelled."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._activators = Activators()
        self._queue: WorkQueue[Key] = WorkQueue("in-place")
        self._workloads = Reflector(cluster, SCALED_WORKLOAD, on_change=lambda change: self._queue.add(change.key))
        self._slices = Reflector(
            cluster,
            ENDPOINT_SLICE,
            system_namespace(),
            label_selector=f"{SERVICE_NAME}={ACTIVATOR_SERVICE}",
            on_change=self._activators_changed,
        )

    async def run(self) -> None:
        """Follow and write until cancelled."""
        async with supervise() as group:
            for reflector in (self._workloads, self._slices):
                group.start(reflector.run(), name=f"in-place {reflector.kind.plural}")
                await reflector.synced.wait()
            group.start(self._queue.run(1, self._work), name="in-place work")

    def _activators_changed(self, change: CacheChange) -> None:
        is_gone = change.type is EventType.DELETED
        if self._activators.drop(change.key) if is_gone else self._activators.put(change.key, change.new):
            for key in self._workloads.cache:
                self._queue.add(key)

    async def _work(self, key: Key) -> None:
        workload = self._workloads.cache.get(key)
        if workload is None or not taken_service(workload):
            return
        own: Object = {"apiVersion": SCALED_WORKLOAD.api_version, "kind": SCALED_WORKLOAD.name, **workload}
        selector = f"{SERVICE_NAME}={taken_service(workload)}"
        listing = await self._cluster.list(ENDPOINT_SLICE, key[0], label_selector=selector)
        for write in in_place_writes(own, self._activators.backends, listing.items):
            # The workload is gone, or another has just written.
            with contextlib.suppress(AlreadyExists, NotFound):
                await self._cluster.write(write)
