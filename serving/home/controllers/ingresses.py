"""Serves a machine's Ingresses and HTTPRoutes: creates a ScaledWorkload for each Deployment behind them.

It follows routes, Services, Deployments and ScaledWorkloads, and decides by namespace (``ingressrules.py``). A part of
a route without effect becomes an Event of the route.
"""

import contextlib
from collections.abc import Callable

from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.event import EventText, digest
from serving.core.model.objects import Object, annotations_of, controller_uid_of, nested, uid_of
from serving.home.controllers.ingressrules import routing_of, workload_writes
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import announce
from serving.net.cluster.kinds import DEPLOYMENT, HTTP_ROUTE, INGRESS, SCALED_WORKLOAD, SERVICE, Kind
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.workqueue import WorkQueue

_COMPONENT = "serving-ingress"
_ROUTES = (INGRESS, HTTP_ROUTE)


class Ingresses:
    """Maintains a ScaledWorkload for each Deployment behind an Ingress or HTTPRoute of a user.

    ``domain`` returns the domain for hosts of routes that name no host.
    """

    def __init__(self, cluster: Cluster, domain: Callable[[], str]) -> None:
        self._cluster = cluster
        self._domain = domain
        self._queue: WorkQueue[str] = WorkQueue("ingresses")
        kinds = (*_ROUTES, SERVICE, DEPLOYMENT, SCALED_WORKLOAD)
        self._reflectors = {kind: Reflector(cluster, kind, on_change=self._changed) for kind in kinds}

    async def run(self) -> None:
        """Watch routes and write their ScaledWorkloads until cancelled."""
        async with supervise() as group:
            await start_synced(group, self._reflectors.values(), owner="ingresses")
            group.start(self._queue.run(1, self._settle), name="ingresses work")

    def _changed(self, change: CacheChange) -> None:
        # Revisions have Deployments and Services too, which change with every pod.
        if controller_uid_of(change.new):
            return
        is_gone = change.type is EventType.DELETED
        if is_gone or change.old is None or _read_of(change.old) != _read_of(change.new):
            self._queue.add(change.key[0])

    async def _settle(self, namespace: str) -> None:
        routes = [
            {**route, "apiVersion": kind.api_version, "kind": kind.name}
            for kind in _ROUTES
            for route in self._own(kind, namespace)
        ]
        workloads = self._all(SCALED_WORKLOAD, namespace)
        if not routes and not workloads:
            return
        routing = routing_of(
            routes, self._own(SERVICE, namespace), self._own(DEPLOYMENT, namespace), domain=self._domain()
        )
        writes, notes = workload_writes(routing, workloads)
        for write in writes:
            # The watch has not delivered it yet.
            with contextlib.suppress(AlreadyExists, NotFound):
                await self._cluster.write(write)
        for note in (*routing.notes, *notes):
            words = EventText(reason="NotServed", message=note.text, is_warning=True)
            suffix = digest(uid_of(note.route), note.text)
            await announce(self._cluster, note.route, words, suffix=suffix, component=_COMPONENT)

    def _own(self, kind: Kind, namespace: str) -> list[Object]:
        """The objects of a kind that users wrote: those without an owner."""
        return [resource for resource in self._all(kind, namespace) if not controller_uid_of(resource)]

    def _all(self, kind: Kind, namespace: str) -> list[Object]:
        cache = self._reflectors[kind].cache
        return [cache[key] for key in sorted(cache) if key[0] == namespace]


def _read_of(resource: Object) -> tuple[object, ...]:
    """The fields of an object on which routing depends: uid, annotations, deletion, and the spec except replicas."""
    spec = resource.get("spec") or {}
    return (
        uid_of(resource),
        annotations_of(resource),
        nested(resource, "metadata", "deletionTimestamp"),
        {key: value for key, value in spec.items() if key != "replicas"},
    )
