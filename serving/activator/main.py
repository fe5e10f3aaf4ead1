"""``python -m serving.activator.main``: the ingress and buffer, in front of all services.

Environment:

- ``KUBECONFIG``: the server whose Routes, Revisions and EndpointSlices it serves; without it the cluster it runs in.
- ``SERVING_KEY_FILE``: the file of the cluster key, of which it derives its token and the secrets of pods. Needed.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"public": 3, "inner": 4}``; without it the settings' addresses.
- ``SERVING_ACTIVATOR_<FIELD>``: each setting of ``serving.settings.activator`` in its plain unit.
"""

import asyncio
import gc
import logging
import os
import random
import resource
import socket
import sys
from collections.abc import Coroutine, Mapping, Sequence

from serving.activator.client import StatsClient
from serving.activator.desk import Desk, Wake
from serving.activator.loop import ClusterView, report_loads
from serving.activator.routes import Listener, Routes
from serving.activator.server import Ingress
from serving.aio.daemon import inherited_sockets, run_daemon
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster
from serving.metrics.server import serve_page
from serving.model.errors import InvalidValue, Problem, SettingsError
from serving.proxy.accesslog import stdout_log
from serving.proxy.exchange import Exchange
from serving.proxy.server import HttpServer
from serving.settings.activator import ActivatorSettings
from serving.settings.daemons import ACTIVATOR, DAEMONS
from serving.settings.load import load
from serving.wire.tokens import read_key

__all__ = ["Activator", "main"]

_log = logging.getLogger("activator")

_KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
_USAGE_EXIT = 2
# Requests make few cycles, so that looking for them rarely costs nothing (default: each 700 objects).
_GC_THRESHOLD = 20_000
# A client has its refusal within this time.
_REFUSAL_S = 1.0


class Activator:
    """All parts of the daemon, wired. ``addresses`` are those of its listeners once ``is_serving`` is set."""

    def __init__(self, settings: ActivatorSettings, cluster: Cluster, *, key: bytes) -> None:
        draw = random.Random().random  # noqa: S311 - spreads requests and pauses
        self.settings = settings
        self.access_log = stdout_log(settings.http)
        self.server = HttpServer(settings.http, access_log=self.access_log)
        self.client = StatsClient(settings, key=key, draw=draw, on_connected=self._connected)
        self.ingress = Ingress(
            settings,
            Desk[Exchange](settings, random=draw),
            Routes(),
            key=key,
            draw=draw,
            clock=self.server.clock,
            on_wake=self._wake,
        )
        metrics, client = self.ingress.metrics, self.client
        metrics.lost_frames = lambda: client.dropped_count
        metrics.connection.set_function(lambda: client.is_connected)
        self.view = ClusterView(cluster, self.ingress, clock=self.server.clock)
        self.addresses: dict[Listener, tuple[str, int]] = {}
        self.is_serving = asyncio.Event()

    async def run(self, stop: asyncio.Event, *, sockets: Mapping[str, socket.socket] | None = None) -> None:
        """Serve until ``stop`` is set, and drain. ``sockets`` are bound ones by the listeners' names."""
        settings, ended = self.settings, asyncio.Event()
        async with asyncio.TaskGroup() as group:
            view = group.create_task(self.view.run(), name="cluster view")
            if not await _first(self.view.synced(), stop):
                view.cancel()
                return
            await self._listen(sockets or {})
            told = group.create_task(self.client.run(ended), name="stats connection")
            reports = group.create_task(
                report_loads(
                    self.ingress, self.client, period_s=settings.report_period_s, clock=self.server.clock, stop=ended
                ),
                name="stats reports",
            )
            await stop.wait()
            await self._drain()
            ended.set()
            await asyncio.wait([told, reports])
            view.cancel()

    async def _listen(self, sockets: Mapping[str, socket.socket]) -> None:
        given = {Listener.PUBLIC: self.settings.public_address, Listener.INNER: self.settings.inner_address}
        for listener, address in given.items():
            where = sockets.get(listener.value) or _host_and_port(address)
            self.addresses[listener] = await self.server.listen(where, self.ingress, listener=listener.value)
        self.is_serving.set()
        _log.info(
            "activator.serving",
            extra={str(listener): f"{host}:{port}" for listener, (host, port) in self.addresses.items()},
        )

    async def _drain(self) -> None:
        """Be unready, take what comes for the lag, then nothing more; who runs or waits has some time, then is refused or cut."""
        self.ingress.is_draining = True
        self.server.drain()
        await asyncio.sleep(self.settings.drain_lag_s)
        closing = asyncio.get_running_loop().call_later(self.settings.drain_grace_s, self.ingress.close)
        # Refusals of the last moment still have to reach their clients.
        cut_count = await self.server.finish(grace_s=self.settings.drain_grace_s + _REFUSAL_S)
        closing.cancel()
        self.ingress.close()
        if self.access_log is not None:
            await self.access_log.close()
        _log.info("activator.stopped", extra={"cut": cut_count, "dropped_frames": self.client.dropped_count})

    def _wake(self, wakes: Sequence[Wake]) -> None:
        self.client.tell([(wake.key, wake.poke.load) for wake in wakes if wake.poke is not None])
        for wake in wakes:
            rows = self.ingress.metrics.of(wake.key)
            if wake.flip:
                rows.woken("flip")
                self.view.flip(wake)
            poke = wake.poke
            if poke is not None:
                rows.woken(poke.reason)
            said = {"poke": poke.reason.value, "concurrency": poke.load.concurrency} if poke else {}
            _log.info(
                "revision.wanted",
                extra={"namespace": wake.key[0], "revision": wake.key[1], "flip": wake.flip, **said},
            )

    def _connected(self) -> None:
        self.ingress.desk.told_nobody()
        self.ingress.tick_soon()


async def _first(wanted: Coroutine[object, object, object], stop: asyncio.Event) -> bool:
    """Wait for something, or for the end; whether it came."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wanted), group.create_task(stop.wait())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return tasks[0] in done


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        problem = Problem(where=address, what="not an address", expected='host and port, as in "127.0.0.1:8080"')
        raise SettingsError([problem])
    return host.strip("[]"), int(port)


def _raise_descriptor_limit() -> None:
    """Each request is two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        settings = load(ACTIVATOR, registry=DAEMONS, environment=os.environ).settings
        key = read_key(os.environ[_KEY_FILE_VARIABLE])
    except (SettingsError, InvalidValue, KeyError, OSError) as error:
        text = f"{_KEY_FILE_VARIABLE} is not set" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{text}\n")
        return _USAGE_EXIT
    _raise_descriptor_limit()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

    async def body(stop: asyncio.Event) -> None:
        async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster:
            activator, sockets = Activator(settings, cluster, key=key), inherited_sockets()
            where = sockets.get("activator-metrics") or settings.metrics_address
            async with serve_page(activator.ingress.metrics.page, where):
                await activator.run(stop, sockets=sockets)

    return run_daemon("activator", body)


if __name__ == "__main__":
    sys.exit(main())
