"""``python -m serving.autoscaler.main``: decides how many pods each revision has.

Environment:

- ``KUBECONFIG``: the server whose Revisions, Deployments and Pods it follows; without it the cluster it runs in.
- ``SERVING_KEY_FILE``: the file of the cluster key, of which it derives the tokens of those who send stats. Needed.
- ``SERVING_LISTEN_FDS``: bound sockets by name, ``{"stats": 3}``; without it the settings' address.
- ``SERVING_AUTOSCALER_<FIELD>``: each setting of ``serving.settings.autoscaler`` in its plain unit.
"""

import asyncio
import os
import sys

import aiohttp

from serving.aio.daemon import inherited_sockets, run_daemon
from serving.autoscaler.client import prove_hand_off
from serving.autoscaler.loop import AutoscalerLoop
from serving.autoscaler.server import StatsServer
from serving.cluster.kube import KubeCluster
from serving.model.errors import InvalidValue, SettingsError
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.daemons import AUTOSCALER, DAEMONS
from serving.settings.load import load
from serving.wire.tokens import read_key

__all__ = ["main", "run"]

_KEY_FILE_VARIABLE = "SERVING_KEY_FILE"
_USAGE_EXIT = 2


async def run(settings: AutoscalerSettings, *, key: bytes, stop: asyncio.Event) -> None:
    """Serve stats and decide until ``stop`` is set."""
    async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster, aiohttp.ClientSession() as session:

        async def prove() -> bool:
            return await prove_hand_off(session, settings.activator_address)

        loop = AutoscalerLoop(cluster, settings, prove=prove)
        server = StatsServer(key=key, take=loop.take, explain=loop.explain)
        host, _, port = settings.stats_address.rpartition(":")
        async with server.serve(inherited_sockets().get("stats") or (host, int(port))):
            await loop.run(stop)


def main() -> int:
    """Run until told to stop; returns the exit code."""
    try:
        settings = load(AUTOSCALER, registry=DAEMONS, environment=os.environ).settings
        key = read_key(os.environ[_KEY_FILE_VARIABLE])
    except (SettingsError, InvalidValue, KeyError, OSError) as error:
        text = f"{_KEY_FILE_VARIABLE} is not set" if isinstance(error, KeyError) else str(error)
        sys.stderr.write(f"{text}\n")
        return _USAGE_EXIT

    async def body(stop: asyncio.Event) -> None:
        await run(settings, key=key, stop=stop)

    return run_daemon("autoscaler", body)


if __name__ == "__main__":
    sys.exit(main())
