"""Feeds the dashboard from watches, the autoscalers' event streams, and the activators' metrics.

Each source reconnects independently: while the autoscaler restarts, the page continues to show objects.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from serving.core.model.errors import ClusterError
from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import Key, Object, labels_of
from serving.core.settings.dashboard import DashboardSettings
from serving.core.traffic.requesthistory import RequestReport, merged
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.mutualtls import DaemonQueries
from serving.net.aio.periodic import every, next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import (
    DOMAIN_MAPPING,
    NODE,
    NODE_GROUP,
    NODE_METRICS,
    POD,
    POD_METRICS,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector, ReflectorSettings
from serving.tools.dashboard.board import Board, Requests, pod_uses
from serving.tools.dashboard.coldstarts import ColdRequest
from serving.tools.dashboard.cost import owner_of, workload_owner
from serving.tools.dashboard.deciders import Deciders, read_pages
from serving.tools.dashboard.marks import Mark
from serving.tools.dashboard.topology import ServedHost, hosts_of
from serving.tools.dashboard.views import View, lean_pod, pod_view, revision_view, service_view, start_facts
from serving.tools.dashboard.workloads import WorkloadPods, labelled, workload_view

_log = logging.getLogger("dashboard")
_T = TypeVar("_T")

PERIOD_S = 2.0
_PAST_S = 3600.0
# The interval of metrics-server.
_USES_PERIOD_S = 15.0
_GROUPS_RETRY_S = 30.0
# A limit for all open maps together.
_HOSTS_VALID_S = 10.0
_LINE_BYTES_MAX = 2**20
_LEAN = ReflectorSettings(transform=lean_pod)


def _put_service(board: Board, key: Key, service: Object | None) -> None:
    board.put("service", "/".join(key), None if service is None else service_view(service))


def _put_revision(board: Board, key: Key, revision: Object | None) -> None:
    board.put("revision", "/".join(key), None if revision is None else revision_view(revision))
    if revision is not None:
        board.put_facts("/".join(key), start_facts(revision))
        board.owners["/".join(key)] = owner_of(revision)
    board.nodes.put_revision("/".join(key), revision)


def _put_workload(board: Board, key: Key, workload: Object | None) -> None:
    board.put("revision", "/".join(key), None if workload is None else workload_view(workload))


def _put_pod(board: Board, key: Key, pod: Object | None) -> None:
    board.put("pod", "/".join(key), None if pod is None else pod_view(pod))
    if pod is not None:
        board.cold.set_pod(pod, wall_s())
    # Pods of other owners count too, because their requests use resources of nodes.
    board.nodes.put_pod(key, pod)


def _put_node(board: Board, key: Key, node: Object | None) -> None:
    board.nodes.put_node(key[1], node)


_FOLLOWED: Mapping[Kind, Callable[[Board, Key, Object | None], None]] = {
    SERVING_SERVICE: _put_service,
    REVISION: _put_revision,
    POD: _put_pod,
    NODE: _put_node,
    SCALED_WORKLOAD: _put_workload,
}


class Feed:
    """Watches the cluster, the autoscalers and the activators, and stores their state in a board.

    ``on_tick`` is called with the time, the changed rows and the marks of each tick; ``on_decision`` with each
    decision. ``headers`` returns the headers of queries, ``queries`` the settings for queries to daemons.
    """

    def __init__(  # noqa: PLR0913 - its sources, and what it feeds
        self,
        cluster: Cluster,
        board: Board,
        *,
        settings: DashboardSettings,
        on_tick: Callable[[float, dict[str, list[float | None]], list[Mark]], None],
        on_decision: Callable[[View], None],
        headers: Callable[[], Mapping[str, str]],
        queries: Callable[[], DaemonQueries] = DaemonQueries,
    ) -> None:
        self._board = board
        self._cluster = cluster
        self._settings = settings
        self._on_tick = on_tick
        self._on_decision = on_decision
        self._headers = headers
        self._queries = queries
        self._requests = Requests()
        self._workload_pods = WorkloadPods()
        self._deciders: Deciders | None = None
        self._session: aiohttp.ClientSession | None = None
        self._hosts: list[ServedHost] = []
        self._hosts_until_s = 0.0
        self._reflectors = [self._reflector(cluster, kind) for kind in _FOLLOWED]
        self._caches = {reflector.kind: reflector.cache for reflector in self._reflectors}

    @property
    def is_synced(self) -> bool:
        """Whether the watches have delivered all existing objects."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    def service(self, namespace: str, name: str) -> tuple[Object | None, list[Object]]:
        """A Service (None if unknown), and its Revisions."""
        services, revisions = (self._caches[kind] for kind in (SERVING_SERVICE, REVISION))
        own = [
            revision
            for key, revision in revisions.items()
            if key[0] == namespace and labels_of(revision).get(SERVICE_LABEL) == name
        ]
        return services.get((namespace, name)), own

    async def policies(self, names: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """The policies' savings from the autoscalers; ``names`` filter them."""
        return [] if self._deciders is None else await self._deciders.policies(names)

    async def cold_requests(self, namespace: str) -> list[ColdRequest]:
        """The last cold starts in a namespace from all activators that respond."""
        return await self._read_records(f"/coldstarts/{namespace}", list[ColdRequest])

    async def recorded(self, namespace: str, revision: str) -> RequestReport | None:
        """The stored requests of a revision from all activators that respond; None without any."""
        reports = await self._read_records(f"/requests/{namespace}/{revision}", list[RequestReport])
        return next(iter(merged(reports)), None)

    async def _read_records(self, path: str, kind: type[list[_T]]) -> list[_T]:
        """Read JSON lists from all activators that respond."""
        if self._session is None:
            return []
        urls = self._settings.activator_metrics_url
        try:
            pages = await read_pages(self._session, urls, path=path, headers=self._headers(), queries=self._queries)
            return [record for page in pages.values() for record in msgspec.json.decode(page, type=kind)]
        except (OSError, msgspec.DecodeError) as error:
            _log.debug("records.unread", extra={"path": path, "error": str(error)})
            return []

    async def hosts(self) -> list[ServedHost]:
        """The hosts of Routes and DomainMappings, listed at most every 10 s; empty if they may not be listed."""
        if now_s() >= self._hosts_until_s:
            self._hosts_until_s = now_s() + _HOSTS_VALID_S
            routes, mappings = [await self._listed(kind) for kind in (ROUTE, DOMAIN_MAPPING)]
            self._hosts = hosts_of(routes, mappings)
        return self._hosts

    async def _listed(self, kind: Kind) -> Sequence[Object]:
        try:
            return (await self._cluster.list(kind)).items
        except ClusterError as error:
            _log.warning("hosts.unknown", extra={"kind": kind.resource, "error": str(error)})
            return []

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Keep a client session open, for ``run`` and the queries of pages."""
        limits = aiohttp.ClientTimeout(total=None, connect=5)
        async with aiohttp.ClientSession(timeout=limits, read_bufsize=_LINE_BYTES_MAX) as self._session:
            yield self._session

    async def run(self, stop: asyncio.Event, session: aiohttp.ClientSession) -> None:
        """Watch all sources until ``stop`` is set. ``session`` is that of ``connected``."""
        async with supervise() as group:
            tasks = [
                group.start(reflector.run(), name=f"dashboard {reflector.kind.plural}")
                for reflector in self._reflectors
            ]
            since_s = wall_s() - _PAST_S
            deciders = self._deciders = Deciders(
                session,
                self._settings.autoscaler_url,
                since_s=since_s,
                on_event=self._process_event,
                headers=self._headers,
                queries=self._queries,
            )
            tasks.append(group.start(deciders.run(), name="dashboard decisions"))
            tasks.append(group.start(self._poll_nodes(), name="dashboard node use"))
            tasks.append(group.start(self._watch_groups(), name="dashboard node groups"))
            tasks.append(group.start(self._tick(session, stop), name="dashboard rows"))
            await stop.wait()
            for task in tasks:
                task.cancel()

    def _reflector(self, cluster: Cluster, kind: Kind) -> Reflector:
        def changed(change: CacheChange) -> None:
            self._put(kind, change.key, None if change.type is EventType.DELETED else change.new)

        return Reflector(cluster, kind, settings=_LEAN if kind == POD else None, on_change=changed)

    def _put(self, kind: Kind, key: Key, resource: Object | None) -> None:
        if kind == SCALED_WORKLOAD and key in self._caches[REVISION]:
            # The Revision is served in its place.
            return
        if kind == POD and resource is not None and (workload := self._workload_pods.workload_of(resource)):
            resource = labelled(resource, workload)
            self._board.owners[f"{key[0]}/{workload}"] = workload_owner(resource, workload)
        _FOLLOWED[kind](self._board, key, resource)
        if kind == SCALED_WORKLOAD and self._workload_pods.put(key, resource):
            for (namespace, name), pod in self._caches[POD].items():
                if namespace == key[0]:
                    self._put(POD, (namespace, name), pod)

    async def _poll_nodes(self) -> None:
        while True:
            wait_s = _USES_PERIOD_S
            try:
                listing = await self._cluster.list(NODE_METRICS)
            except ClusterError as error:
                # A cluster without metrics-server has no measured use.
                _log.debug("use.unknown", extra={"error": str(error)})
            else:
                self._board.nodes.measured(listing.items, wall_s())
                await self._measure_pods()
                # A metrics-server that has just started responds soon.
                wait_s = _USES_PERIOD_S if listing.items else PERIOD_S
            await next_beat(wait_s)

    async def _measure_pods(self) -> None:
        try:
            listing = await self._cluster.list(POD_METRICS)
        except ClusterError as error:
            # An installation of an earlier version may not list them.
            _log.debug("pod_use.unknown", extra={"error": str(error)})
        else:
            self._board.measured(pod_uses(listing.items))

    async def _watch_groups(self) -> None:
        groups = Reflector(
            self._cluster, NODE_GROUP, on_change=lambda _: self._board.nodes.set_groups(list(groups.cache.values()))
        )
        while True:
            try:
                await self._cluster.list(NODE_GROUP)
            except ClusterError as error:
                # A cluster without the component nodegroup lacks the kind, and a reflector would report an error.
                _log.debug("groups.unknown", extra={"error": str(error)})
                await asyncio.sleep(_GROUPS_RETRY_S)
            else:
                return await groups.run()

    def _process_event(self, event: str, content: Any) -> None:  # noqa: ANN401 - JSON
        if event == "sample":
            self._board.sample(content)
        else:
            self._on_decision(self._board.decision(content))

    async def _tick(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        async def beat() -> None:
            urls = self._settings.activator_metrics_url
            pages = await read_pages(session, urls, headers=self._headers(), queries=self._queries)
            self._board.requests(self._requests.read(pages, now_s()) if pages else None)
            self._row()

        def failed(error: Exception) -> None:
            _log.debug("activator.lost", extra={"error": str(error)})
            self._board.requests(None)
            self._row()

        await every(PERIOD_S, beat, stop=stop, on_error=failed, is_shared=True)

    def _row(self) -> None:
        at_s = round(wall_s(), 1)
        self._on_tick(at_s, self._board.tick(at_s), self._board.marks.drain(at_s))
