"""``python -m serving.placement.main``: tells a kube-scheduler which nodes are best for a pod.

Environment:

- ``KUBECONFIG``: the server whose Nodes and Pods it follows; without it the cluster it runs in.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"placement": 3}``; without it the settings' address.
- ``SERVING_PLACEMENT_<FIELD>``: each setting of ``serving.settings.placement`` in its plain unit.
"""

if __name__ == "__main__":
    # Before the imports below, which take long: see there.
    from serving.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import logging
import os
import socket
import sys

from serving.aio.clock import now_s
from serving.aio.daemon import inherited_sockets, run_daemon
from serving.cluster.api.running import running
from serving.cluster.connect import connect
from serving.cluster.kinds import NODE, NODE_METRICS, POD
from serving.cluster.port import Cluster, EventType
from serving.cluster.reflector import CacheChange, Reflector
from serving.model.errors import ClusterError, SettingsError
from serving.placement.book import NodeBook
from serving.placement.extender import Extender
from serving.placement.facts import node_of, pod_of
from serving.placement.io.extender_server import application
from serving.placement.load import NodeLoads
from serving.scheduler.provider import Scorer
from serving.settings.daemons import DAEMONS, PLACEMENT
from serving.settings.load import load
from serving.settings.placement import PlacementSettings

__all__ = ["PlacementDaemon", "main"]

_log = logging.getLogger("placement")

_USAGE_EXIT = 2


class PlacementDaemon:
    """All parts, wired. ``address`` is where it listens once ``is_serving`` is set."""

    def __init__(self, settings: PlacementSettings, cluster: Cluster) -> None:
        """Raises ``SettingsError`` for a node score that does not exist, or that lacks a library."""
        self.book = NodeBook()
        self.extender = Extender(self.book, Scorer(settings))
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()
        self._cluster = cluster
        self._settings = settings
        self._nodes, self._pods = Reflector(cluster, NODE), Reflector(cluster, POD)
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    @property
    def is_synced(self) -> bool:
        """Whether all nodes and pods have been seen once."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Follow nodes and pods and answer until ``stop`` is set. ``listener`` is a bound socket."""
        if listener is None:
            host, _, port = self._settings.listen_address.rpartition(":")
            listener = socket.create_server((host, int(port)))
        self.address = listener.getsockname()[:2]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one.run(), name=f"placement {one.kind.plural}") for one in (self._nodes, self._pods)
            ]
            tasks.append(group.create_task(self._look(), name="placement load"))
            with listener:
                async with running(application(self.extender, is_synced=lambda: self.is_synced), listener):
                    self.is_serving.set()
                    await stop.wait()
            for task in tasks:
                task.cancel()

    async def _look(self) -> None:
        """List what nodes use, each period."""
        loads, period_s, is_told = NodeLoads(self._settings.load_samples_max), self._settings.load_period_s, False
        while period_s:
            try:
                listing = await self._cluster.list(NODE_METRICS)
            except ClusterError as error:
                # Without a metrics-server scores go by requests and limits.
                if not is_told:
                    _log.warning("load.unknown", extra={"error": str(error)})
                is_told = True
            else:
                self.book.take_usages(loads.take(listing.items, self.book.node, now_s()))
                is_told = False
            await asyncio.sleep(period_s)

    def _node_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.book.drop_node(change.key[1])
        else:
            self.book.take_node(node_of(change.new))

    def _pod_changed(self, change: CacheChange) -> None:
        pod = None if change.type is EventType.DELETED else pod_of(change.new)
        if pod is None:
            self.book.drop_pod(change.key)
        else:
            self.book.take_pod(pod)


def main() -> int:
    """Run until a stop signal; returns the exit code."""
    try:
        settings = load(PLACEMENT, registry=DAEMONS, environment=os.environ).settings
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_EXIT

    async def body(stop: asyncio.Event) -> None:
        async with connect("placement") as cluster:
            await PlacementDaemon(settings, cluster).run(stop, listener=inherited_sockets().get("placement"))

    return run_daemon("placement", body)


if __name__ == "__main__":
    sys.exit(main())
