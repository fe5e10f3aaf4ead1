"""What the dashboard is fed with: objects by watches, decisions by the autoscaler's events, counters by the activator's page.

Each source is followed on its own and comes back by itself: while the autoscaler restarts, objects go on being shown.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from serving.aio.clock import now_s, wall_s
from serving.aio.periodic import every
from serving.cluster.kinds import NODE, NODE_METRICS, POD, REVISION, SERVING_SERVICE, Kind
from serving.cluster.port import Cluster, EventType
from serving.cluster.reflector import CacheChange, Reflector
from serving.dashboard.board import Board
from serving.dashboard.deciders import Deciders
from serving.dashboard.requests import Requests
from serving.dashboard.sources import read_pages
from serving.dashboard.views import View, node_view, pod_view, revision_view, service_view
from serving.model.errors import ClusterError
from serving.settings.dashboard import DashboardSettings

__all__ = ["PERIOD_S", "Feed"]

_log = logging.getLogger("dashboard")

PERIOD_S = 2.0
_PAST_S = 3600.0
# As often as metrics-server measures.
_USES_PERIOD_S = 15.0
_LINE_BYTES_MAX = 2**20
_PODS = "serving.knative.dev/revision"


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One kind that is shown: its name on the page, what to follow, and how to read it."""

    name: str
    kind: Kind
    view: Callable[[Mapping[str, Any]], View | None]
    selector: str = ""


_SHOWN = (
    _Shown(name="service", kind=SERVING_SERVICE, view=service_view),
    _Shown(name="revision", kind=REVISION, view=revision_view),
    _Shown(name="pod", kind=POD, view=pod_view, selector=_PODS),
    _Shown(name="node", kind=NODE, view=node_view),
)


class Feed:
    """Fills a board. ``on_tick`` is told each row time with the rows that changed, ``on_decision`` each decision."""

    def __init__(
        self,
        cluster: Cluster,
        board: Board,
        *,
        settings: DashboardSettings,
        on_tick: Callable[[float, dict[str, list[float | None]]], None],
        on_decision: Callable[[View], None],
    ) -> None:
        self._board = board
        self._cluster = cluster
        self._settings = settings
        self._on_tick = on_tick
        self._on_decision = on_decision
        self._requests = Requests()
        self._reflectors = [self._reflector(cluster, one) for one in _SHOWN]

    def __repr__(self) -> str:
        return f"Feed({self._board})"

    @property
    def is_synced(self) -> bool:
        """Whether all objects have been seen once."""
        return all(one.synced.is_set() for one in self._reflectors)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow everything until ``stop`` is set."""
        limits = aiohttp.ClientTimeout(total=None, connect=5)
        async with (
            aiohttp.ClientSession(timeout=limits, read_bufsize=_LINE_BYTES_MAX) as session,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(one.run(), name=f"dashboard {one.kind.plural}") for one in self._reflectors]
            since_s = wall_s() - _PAST_S
            deciders = Deciders(session, self._settings.autoscaler_url, since_s=since_s, on_event=self._told)
            tasks.append(group.create_task(deciders.run(), name="dashboard decisions"))
            tasks.append(group.create_task(self._look_at_nodes(), name="dashboard node use"))
            tasks.append(group.create_task(self._tick(session, stop), name="dashboard rows"))
            await stop.wait()
            for task in tasks:
                task.cancel()

    def _reflector(self, cluster: Cluster, shown: _Shown) -> Reflector:
        def changed(change: CacheChange) -> None:
            is_gone = change.type is EventType.DELETED
            self._board.put(shown.name, "/".join(change.key), None if is_gone else shown.view(change.new))

        reflector = Reflector(cluster, shown.kind, label_selector=shown.selector)
        reflector.on_change(changed)
        return reflector

    async def _look_at_nodes(self) -> None:
        while True:
            try:
                listing = await self._cluster.list(NODE_METRICS)
            except ClusterError as error:
                # Not every cluster measures: then there is no column.
                _log.debug("use.unknown", extra={"error": str(error)})
            else:
                self._board.uses.take(listing.items, wall_s())
            await asyncio.sleep(_USES_PERIOD_S)

    def _told(self, event: str, content: Any) -> None:  # noqa: ANN401 - JSON
        if event == "sample":
            self._board.sample(content)
        else:
            self._on_decision(self._board.decision(content))

    async def _tick(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        async def beat() -> None:
            pages = await read_pages(session, self._settings.activator_metrics_url)
            self._board.requests(self._requests.read(pages, now_s()) if pages else None)
            self._row()

        def failed(error: Exception) -> None:
            _log.debug("activator.lost", extra={"error": str(error)})
            self._board.requests(None)
            self._row()

        await every(PERIOD_S, beat, stop=stop, on_error=failed)

    def _row(self) -> None:
        at_s = round(wall_s(), 1)
        self._on_tick(at_s, self._board.tick(at_s))
