"""``python -m serving.autoscaler.main``: decides how many pods each revision has.

Environment:

- ``KUBECONFIG``: the server whose Revisions, Deployments and Pods it follows; without it the cluster it runs in.
- ``SERVING_KEY_FILE``: the file of the cluster key, of which it derives the tokens of those who send stats. Needed.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"stats": 3}``; without it the settings' address.
- ``SERVING_AUTOSCALER_<FIELD>``: each setting of ``serving.settings.autoscaler`` in its plain unit.
"""

import asyncio
import gc
import os
import resource
import socket
import sys

import msgspec

from serving.aio.daemon import inherited_sockets, run_daemon
from serving.autoscaler.client import Prober
from serving.autoscaler.loop import Autoscaler
from serving.autoscaler.revision import RevisionKey
from serving.autoscaler.server import StatsServer
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster
from serving.model.errors import InvalidValue, SettingsError
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.daemons import AUTOSCALER, DAEMONS
from serving.settings.load import load
from serving.wire.tokens import read_key

__all__ = ["AutoscalerDaemon", "main"]

_KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
_USAGE_EXIT = 2
# Frames make no cycles, so that looking for them rarely costs nothing (default: each 700 objects).
_GC_THRESHOLD = 20_000


class AutoscalerDaemon:
    """All parts, wired. ``address`` is where it listens once ``is_serving`` is set."""

    def __init__(self, settings: AutoscalerSettings, cluster: Cluster, *, key: bytes) -> None:
        self.autoscaler = Autoscaler(cluster, settings=settings, prove=Prober(settings.activator_address))
        self.server = StatsServer(
            key=key,
            record=self.autoscaler.record,
            decisions=self._decisions,
            numbers=self.autoscaler.numbers,
            is_well=lambda: self.autoscaler.is_synced,
            connections_max=settings.stats_connections_max,
        )
        self.address: tuple[str, int] = ("", 0)
        self.is_serving = asyncio.Event()
        self._settings = settings

    async def run(self, stop: asyncio.Event, *, listener: socket.socket | None = None) -> None:
        """Take stats and decide until ``stop`` is set. ``listener`` is a bound socket in the place of the address."""
        host, _, port = self._settings.stats_address.rpartition(":")
        async with self.server.serve(listener or (host, int(port))) as self.address:
            self.is_serving.set()
            await self.autoscaler.run(stop)

    def _decisions(self, key: RevisionKey) -> bytes:
        return msgspec.json.encode(self.autoscaler.decisions(key))


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        settings = load(AUTOSCALER, registry=DAEMONS, environment=os.environ).settings
        key = read_key(os.environ[_KEY_FILE_VARIABLE])
    except (SettingsError, InvalidValue, KeyError, OSError) as error:
        text = f"{_KEY_FILE_VARIABLE} is not set" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{text}\n")
        return _USAGE_EXIT
    # Each pod is a connection.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

    async def body(stop: asyncio.Event) -> None:
        async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster:
            await AutoscalerDaemon(settings, cluster, key=key).run(stop, listener=inherited_sockets().get("stats"))

    return run_daemon("autoscaler", body)


if __name__ == "__main__":
    sys.exit(main())
