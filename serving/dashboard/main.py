"""``python -m serving.dashboard.main``: a page that shows services, pods, and why they scaled. Read-only.

Environment:

- ``KUBECONFIG``: the server whose Services, Revisions, Pods and Nodes it follows; without it the cluster it runs in.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"dashboard": 3}``; without it the settings' address.
- ``SERVING_DASHBOARD_<FIELD>``: each setting of ``serving.settings.dashboard`` in its plain unit.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator

from aiohttp import web

from serving.aio.daemon import inherited_sockets, run_daemon
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster
from serving.dashboard.board import Board
from serving.dashboard.feed import PERIOD_S, Feed
from serving.dashboard.server import Pages
from serving.model.errors import SettingsError
from serving.settings.daemons import DAEMONS, DASHBOARD
from serving.settings.dashboard import DashboardSettings
from serving.settings.load import load

__all__ = ["Dashboard", "main"]

_HISTORY_S = 3600.0
_USAGE_EXIT = 2


class Dashboard:
    """All parts, wired. ``address`` is where it listens once ``is_serving`` is set."""

    def __init__(self, settings: DashboardSettings, cluster: Cluster) -> None:
        self._settings = settings
        self._board = Board(int(_HISTORY_S / PERIOD_S))
        self._pages = Pages(self._board, settings, is_well=lambda: self._feed.is_synced)
        self._feed = Feed(
            cluster, self._board, settings=settings, on_tick=self._pages.tick, on_decision=self._pages.decide
        )
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Follow and show until ``stop`` is set. ``listener`` is a bound socket in the place of the address."""
        async with self._served(listener) as self.address:
            self.is_serving.set()
            await self._feed.run(stop)

    @contextlib.asynccontextmanager
    async def _served(self, listener: socket.socket | None) -> AsyncIterator[tuple[str, int]]:
        # Pages stay connected for good: they are told that it ends by its end.
        runner = web.AppRunner(self._pages.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        host, _, port = self._settings.address.rpartition(":")
        site = web.SockSite(runner, listener.dup()) if listener else web.TCPSite(runner, host, int(port))
        await site.start()
        try:
            yield runner.addresses[0][:2]
        finally:
            await runner.cleanup()


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        settings = load(DASHBOARD, registry=DAEMONS, environment=os.environ).settings
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE_EXIT

    async def body(stop: asyncio.Event) -> None:
        async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster:
            await Dashboard(settings, cluster).run(stop, listener=inherited_sockets().get("dashboard"))

    return run_daemon("dashboard", body)


if __name__ == "__main__":
    sys.exit(main())
