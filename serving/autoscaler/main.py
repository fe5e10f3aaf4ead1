"""``python -m serving.autoscaler.main``: decides how many pods each revision has.

Environment:

- ``KUBECONFIG``: the server whose Revisions, Deployments and Pods it follows; without it the cluster it runs in.
- ``SERVING_KEY_FILE``: the file of the cluster key, of which it derives the tokens of those who send stats. Needed.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"stats": 3}``; without it the settings' address.
- ``SERVING_STATE``: the state folder of one machine, into which the decision log goes; without it there is none.
- ``SERVING_AUTOSCALER_<FIELD>``: each setting of ``serving.settings.autoscaler`` in its plain unit.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from serving.aio.daemon import inherited_sockets, run_daemon
from serving.aio.linefile import LineFile
from serving.autoscaler.client import EventWriter, Prober
from serving.autoscaler.follow import Followers
from serving.autoscaler.loop import Autoscaler
from serving.autoscaler.measured import measured
from serving.autoscaler.revision import RevisionFacts
from serving.autoscaler.server import StatsServer
from serving.autoscaler.telling import DECISION_LOG, DECISION_LOG_FILES, DecisionBook, Made, Teller
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster
from serving.metrics.autoscaler import AutoscalerMetrics
from serving.metrics.lag import watch_lag
from serving.metrics.page import wanted_type
from serving.model.errors import InvalidValue, SettingsError
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.daemons import AUTOSCALER, DAEMONS
from serving.settings.load import load
from serving.wire.tokens import read_key

__all__ = ["AutoscalerDaemon", "main"]

_log = logging.getLogger("autoscaler")

_KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
_STATE_VARIABLE = "SERVING_STATE"
_USAGE_EXIT = 2
# Frames make no cycles, so that looking for them rarely costs nothing (default: each 700 objects).
_GC_THRESHOLD = 20_000


class AutoscalerDaemon:
    """All parts, wired. ``address`` is where it listens once ``is_serving`` is set."""

    def __init__(
        self,
        settings: AutoscalerSettings,
        cluster: Cluster,
        *,
        key: bytes,
        log: Callable[[bytes], None] | None = None,
    ) -> None:
        followers = Followers()
        self._events = EventWriter(cluster)
        self._teller = Teller(followers, log=log, change=self._changed)
        self.autoscaler = Autoscaler(
            cluster,
            settings=settings,
            prove=Prober(settings.activator_address),
            on_decision=self._decided,
        )
        self.metrics = AutoscalerMetrics(
            keys=lambda: self.autoscaler.keys,
            counts=lambda: self.server.numbers | self.autoscaler.numbers(),
            has_old_names=settings.metrics_old_names,
        )
        self.server = StatsServer(
            key=key,
            record=self.autoscaler.record,
            decisions=DecisionBook(followers, keys=lambda: self.autoscaler.keys, decisions=self.autoscaler.decisions),
            page=lambda accept: (self.metrics.page.text(accept), wanted_type(accept)),
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
            beside = [
                asyncio.create_task(self._events.run(), name="autoscaler events"),
                asyncio.create_task(watch_lag(self.metrics.page), name="autoscaler loop lag"),
            ]
            try:
                await self.autoscaler.run(stop)
            finally:
                for task in beside:
                    task.cancel()

    def _decided(self, made: Made) -> None:
        self._teller.tell(made)
        self.metrics.decided(measured(made.revision, made.outcome))

    def _changed(self, revision: RevisionFacts, sentence: str) -> None:
        namespace, name = revision.key
        _log.info("scale.decided", extra={"namespace": namespace, "revision": name, "sentence": sentence})
        self._events.add(revision, sentence)


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
        with contextlib.ExitStack() as stack:
            log = _decision_log(settings, os.environ.get(_STATE_VARIABLE))
            add = None if log is None else stack.enter_context(log).add
            async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster:
                daemon = AutoscalerDaemon(settings, cluster, key=key, log=add)
                await daemon.run(stop, listener=inherited_sockets().get("stats"))

    return run_daemon("autoscaler", body)


def _decision_log(settings: AutoscalerSettings, state: str | None) -> LineFile | None:
    if not state or not settings.decision_log_bytes_max:
        return None
    bytes_max = settings.decision_log_bytes_max // DECISION_LOG_FILES
    return LineFile(Path(state) / DECISION_LOG, bytes_max=bytes_max, files_max=DECISION_LOG_FILES)


if __name__ == "__main__":
    sys.exit(main())
