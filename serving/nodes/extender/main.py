"""The extender: ``python -m serving.nodes.extender.main`` scores nodes for a kube-scheduler.

Environment:

- ``KUBECONFIG``: the server whose Nodes and Pods are watched; without it, the pod's own cluster.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"placement": 3}``; without it the settings' address.
- ``SERVING_PLACEMENT_<FIELD>``: each setting of ``serving.core.settings.placement`` in its plain unit.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()


import asyncio
import logging
import os
import socket
import sys

from aiohttp import web

from serving.core.model.errors import ClusterError, InvalidValue
from serving.core.settings.daemons import DAEMONS, PLACEMENT
from serving.core.settings.load import load
from serving.core.settings.placement import PlacementSettings
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.daemon import inherited_sockets, run_daemon
from serving.net.aio.output import write_error
from serving.net.aio.periodic import every
from serving.net.aio.supervise import supervise
from serving.net.cluster.kinds import NODE, POD, Kind
from serving.net.cluster.kube import connect
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from serving.nodes.extender.extender import BindingCall, Extender
from serving.nodes.extender.io.extender_server import ExtenderServer
from serving.nodes.extender.io.loadsources import load_source
from serving.nodes.extender.io.tlssite import TlsSite
from serving.nodes.extender.loadreport import LoadReport
from serving.nodes.placement.book import NodeBook, node_of, pod_of
from serving.nodes.placement.scores.provider import Scorer

_log = logging.getLogger("placement")

_SHUTDOWN_S = 5.0
# A write, not an object: the server sets the pod's node.
_BINDING = Kind(group="", version="v1", name="Binding", plural="bindings", has_status=False)


class PlacementDaemon:
    """All components of the daemon. ``address`` is set once ``is_serving`` is."""

    def __init__(self, settings: PlacementSettings, cluster: Cluster) -> None:
        """Raises ``SettingsError`` for an unknown node score, or for a score whose library is missing."""
        self.book = NodeBook()
        self.extender = Extender(self.book, Scorer(settings))
        self.report: LoadReport | None = None
        """The newest load of all nodes; None before the first report."""
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()
        self._cluster = cluster
        self._settings = settings
        self._nodes = Reflector(cluster, NODE, on_change=self._node_changed)
        self._pods = Reflector(cluster, POD, on_change=self._pod_changed)

    @property
    def is_synced(self) -> bool:
        """Whether all nodes and pods have been listed once."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Watch nodes and pods and answer calls until ``stop`` is set. ``listener`` is a bound socket.

        Raises ``InvalidCertificate`` for invalid TLS files.
        """
        if listener is None:
            host, _, port = self._settings.listen_address.rpartition(":")
            listener = socket.create_server((host, int(port)))
        self.address = listener.getsockname()[:2]
        server = ExtenderServer(
            self.extender,
            is_synced=lambda: self.is_synced,
            report=lambda: self.report,
            bind=self._bind if self._settings.binds else None,
        )
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            with listener:
                site = TlsSite(runner, listener, self._settings.tls)
                await site.start()
                await self._work(site, stop)
        finally:
            await runner.cleanup()

    async def _work(self, site: TlsSite, stop: asyncio.Event) -> None:
        def on_error(error: Exception) -> None:
            _log.error("placement.failed", exc_info=error)

        async with supervise() as group:
            tasks = [
                group.start(reflector.run(), name=f"placement {reflector.kind.plural}")
                for reflector in (self._nodes, self._pods)
            ]
            tasks.append(group.start(self._poll_load(), name="placement load"))
            self.is_serving.set()
            await every(self._settings.tls.reload_period_s, site.reload, stop=stop, on_error=on_error)
            for task in tasks:
                task.cancel()

    async def _poll_load(self) -> None:
        """Query the load of nodes periodically."""
        period_s, is_logged = self._settings.load_period_s, False
        if not period_s:
            return
        async with load_source(self._settings, self._cluster, self.book.node) as source:
            while True:
                try:
                    self.report = await source.read(now_s(), wall_s())
                except (ClusterError, InvalidValue) as error:
                    # The last load counts until it expires; then scores use requests and limits.
                    if not is_logged:
                        _log.warning("load.unknown", extra={"source": self._settings.load.source, "error": str(error)})
                    is_logged = True
                else:
                    self.book.set_usages(self.report.usages)
                    is_logged = False
                await asyncio.sleep(period_s)

    async def _bind(self, call: BindingCall) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": call.pod, "namespace": call.namespace, "uid": call.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": call.node},
        }
        await self._cluster.create(_BINDING, body)

    def _node_changed(self, change: CacheChange) -> None:
        if change.type is EventType.DELETED:
            self.book.drop_node(change.key[1])
        else:
            self.book.set_node(node_of(change.new))

    def _pod_changed(self, change: CacheChange) -> None:
        pod = None if change.type is EventType.DELETED else pod_of(change.new)
        if pod is None:
            self.book.drop_pod(change.key)
        else:
            self.book.set_pod(pod)


def main() -> int:
    """Run until a stop signal; return the exit code."""

    async def body(stop: asyncio.Event) -> None:
        loaded = load(PLACEMENT, registry=DAEMONS, environment=os.environ)
        for problem in loaded.ignored:
            write_error(f"warning: {problem}")
        async with connect("placement") as cluster:
            await PlacementDaemon(loaded.settings, cluster).run(stop, listener=inherited_sockets().get("placement"))

    return run_daemon("placement", body)


if __name__ == "__main__":
    sys.exit(main())
