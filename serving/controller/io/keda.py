"""Serves KEDA's HTTP resources: follows routes and ScaledObjects, and writes their ScaledWorkloads and conditions.

A cluster has these kinds with the component keda-http of config/. A server without them, and one that does not let us list them,
is asked again from time to time: a KEDA of the cluster's own serves them itself.
"""

import contextlib
import logging
from functools import partial

from serving.controller.keda.conversion import convert_route
from serving.controller.keda.reconcile import reconcile_route
from serving.core.model.errors import AlreadyExists, ClusterError, NotFound
from serving.core.model.objects import Object
from serving.net.aio.clock import stamp
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT, SCALED_WORKLOAD, Kind
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.net.cluster.workqueue import WorkQueue

_log = logging.getLogger(__name__)

_ROUTES = (HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE)
_RETRY_S = 30.0
_WORKERS = 4

_RouteKey = tuple[Kind, str, str]


class KedaRoutes:
    """The routes of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._routes = {
            kind: Reflector(cluster, kind, on_change=partial(self._route_changed, kind)) for kind in _ROUTES
        }
        self._scaled = Reflector(cluster, KEDA_SCALED_OBJECT, on_change=self._scaled_changed)
        self._workloads = Reflector(cluster, SCALED_WORKLOAD, on_change=self._workload_changed)
        self._queue: WorkQueue[_RouteKey] = WorkQueue("keda", on_error=_log_failure)

    async def run(self) -> None:
        """Follow and write until cancelled, once the server has the kinds."""
        while not await self._is_served():
            await next_beat(_RETRY_S)
        reflectors = (*self._routes.values(), self._scaled, self._workloads)
        async with supervise() as group:
            for reflector in reflectors:
                group.start(reflector.run(), name=f"keda-{reflector}")
            for reflector in reflectors:
                await reflector.synced.wait()
            group.start(self._queue.run(_WORKERS, self._work), name="keda-work")

    async def _is_served(self) -> bool:
        try:
            for kind in (*_ROUTES, KEDA_SCALED_OBJECT):
                await self._cluster.list(kind, page_size=1)
        except ClusterError:
            return False
        return True

    def _route_changed(self, kind: Kind, change: CacheChange) -> None:
        self._queue.add((kind, *change.key))

    def _scaled_changed(self, change: CacheChange) -> None:
        """A ScaledObject names routes of its namespace, before the change or after."""
        for kind in _ROUTES:
            for namespace, name in self._routes[kind].cache:
                if namespace == change.key[0]:
                    self._queue.add((kind, namespace, name))

    def _workload_changed(self, change: CacheChange) -> None:
        for kind in _ROUTES:
            if change.key in self._routes[kind].cache:
                self._queue.add((kind, *change.key))

    async def _work(self, key: _RouteKey) -> None:
        kind, *place = key
        where = (place[0], place[1])
        route = self._routes[kind].cache.get(where)
        if route is None:
            return
        conversion = convert_route(_named(kind, route), self._scaled_in(where[0]))
        plan = reconcile_route(kind, route, conversion, workload=self._workloads.cache.get(where), now=stamp())
        for write in plan.writes:
            # Created before and not seen yet, or deleted meanwhile: the watch brings it.
            with contextlib.suppress(AlreadyExists, NotFound):
                await self._cluster.write(write)

    def _scaled_in(self, namespace: str) -> list[Object]:
        cache = self._scaled.cache
        return [cache[key] for key in sorted(cache) if key[0] == namespace]


def _named(kind: Kind, route: Object) -> Object:
    """The route with its kind: items of a list have none."""
    return {**route, "apiVersion": kind.api_version, "kind": kind.name}


def _log_failure(key: _RouteKey, error: Exception) -> None:
    _log.warning("keda.failed", extra={"key": "/".join(key[1:]), "error": str(error)})
