"""What goes on beside requests: watching the cluster, waking revisions, reporting load.

``ClusterView`` tells the ingress what Routes, Revisions and EndpointSlices there are, in the turn of the loop in which a
watch brings them, and flips revisions from Reserve to Active: one PATCH with the version that was seen; if the object has
changed since, it is read again and patched once more. A flip that fails comes again when ``wake.py`` says so. The
activator writes nothing else.
"""

import asyncio
import logging
from collections.abc import Callable

from serving.activator.client import StatsClient
from serving.activator.desk import Outcome, Wake
from serving.activator.revisions import REVISION_LABEL, RevisionFacts, ServingState, SliceFacts, revision_of, slice_of
from serving.activator.routes import RevisionKey, RouteFacts, route_of
from serving.activator.server import Ingress
from serving.aio.periodic import every
from serving.cluster.kinds import ENDPOINT_SLICE, REVISION, ROUTE
from serving.cluster.port import Cluster, EventType, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.model.errors import ClusterError, Conflict, NotFound
from serving.model.nodata import NoData
from serving.proxy.exchange import Exchange

__all__ = ["ClusterView", "report_loads"]

_log = logging.getLogger("activator")


class ClusterView:
    """The cluster as an ingress sees it. ``run`` it; ``flip`` and ``synced`` work while it runs."""

    def __init__(self, cluster: Cluster, ingress: Ingress, *, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._ingress = ingress
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self._flipping: set[RevisionKey] = set()
        # Slices of other Services are none of ours.
        slices = Reflector(cluster, ENDPOINT_SLICE, label_selector=REVISION_LABEL)
        revisions, routes = Reflector(cluster, REVISION), Reflector(cluster, ROUTE)
        revisions.on_change(self._revision_changed)
        slices.on_change(self._slice_changed)
        routes.on_change(self._route_changed)
        self._reflectors = (revisions, slices, routes)

    def __repr__(self) -> str:
        return f"ClusterView({self._ingress!r}, {len(self._flipping)} flips)"

    @property
    def is_flipping(self) -> bool:
        """Whether a revision is being made Active."""
        return bool(self._flipping)

    async def synced(self) -> None:
        """Wait until everything has been seen once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"activator {reflector!r}")

    def flip(self, wake: Wake) -> None:
        """Make a revision Active, if that is not being done already."""
        if self._group is None or wake.key in self._flipping:
            return
        self._flipping.add(wake.key)
        self._group.create_task(self._flip(wake.key, wake.resource_version), name=f"flip {wake.key[1]}")

    async def _flip(self, key: RevisionKey, resource_version: str) -> None:
        try:
            try:
                after = await self._patch(key, resource_version)
            except Conflict:
                after = await self._cluster.get(REVISION, *key)
                self._revision_seen(after)
                facts = revision_of(after)
                if isinstance(facts, NoData) or facts.serving_state is not ServingState.RESERVE:
                    return
                after = await self._patch(key, facts.resource_version)
            _log.info("revision.activated", extra={"namespace": key[0], "revision": key[1]})
            self._revision_seen(after)
        except NotFound:
            # The watch tells of it, and who waits is sent away.
            return
        except ClusterError as error:
            _log.warning(
                "revision.activation-failed", extra={"namespace": key[0], "revision": key[1], "error": str(error)}
            )
        finally:
            self._flipping.discard(key)

    async def _patch(self, key: RevisionKey, resource_version: str) -> Object:
        patch = {
            "metadata": {"resourceVersion": resource_version},
            "spec": {"servingState": ServingState.ACTIVE.value},
        }
        return await self._cluster.patch(REVISION, *key, patch=patch)

    def _revision_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._apply(self._ingress.desk.remove_revision(change.key, self._clock()))
        else:
            self._revision_seen(change.new)

    def _revision_seen(self, found: Object) -> None:
        facts = revision_of(found)
        if isinstance(facts, RevisionFacts):
            self._apply(self._ingress.desk.set_revision(facts, self._clock()))
        else:
            _unreadable("Revision", found, facts)

    def _slice_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._apply(self._ingress.desk.remove_slice("/".join(change.key), self._clock()))
            return
        facts = slice_of(change.new)
        if isinstance(facts, SliceFacts):
            self._apply(self._ingress.desk.set_slice(facts, self._clock()))
        else:
            _unreadable("EndpointSlice", change.new, facts)

    def _route_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self._ingress.routes.remove("/".join(change.key))
            return
        facts = route_of(change.new)
        if isinstance(facts, RouteFacts):
            self._ingress.routes.set(facts)
        else:
            _unreadable("Route", change.new, facts)

    def _apply(self, outcome: Outcome[Exchange]) -> None:
        self._ingress.apply(outcome)


async def report_loads(
    ingress: Ingress, client: StatsClient, *, period_s: float, clock: Callable[[], float], stop: asyncio.Event
) -> None:
    """Tell the autoscaler the load of all revisions, once a period, until ``stop`` is set."""

    async def beat() -> None:
        client.tell(ingress.desk.report(clock()))
        ingress.tick_soon()

    def on_error(error: Exception) -> None:
        _log.error("report.failed", exc_info=error)

    await every(period_s, beat, stop=stop, on_error=on_error)


def _unreadable(kind: str, found: Object, why: NoData) -> None:
    _log.error(
        "object.unreadable", extra={"kind": kind, "object": found["metadata"].get("name"), "missing": why.missing}
    )
