"""``python -m tests.cluster_e2e.own_server FOLDER``: our own API server, for when there is no other.

The memory store with its API, the garbage collector, and the manager of ``serving/local`` in the place of a
controller-manager: pods for Deployments, slices for Services. It says ``ready`` on its standard output, with its
kubeconfig in the folder, and runs until its standard input ends.
"""

import asyncio
import functools
import socket
import sys
from pathlib import Path

import uvloop

from serving.cluster.admission import admit
from serving.cluster.api.kubeconfig import kubeconfig
from serving.cluster.api.running import running
from serving.cluster.api.server import ApiOptions, application
from serving.cluster.garbage import collect_garbage
from serving.cluster.memory import MemoryCluster
from serving.local.manager import Manager
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["main"]

_TOKEN = "cluster-e2e"  # noqa: S105 - a server that lives for some tests


async def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    cluster = MemoryCluster(admit=functools.partial(admit, scaling=AutoscalerSettings()))
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (folder / "kubeconfig").write_text(kubeconfig(url, _TOKEN))
        async with (
            running(application(cluster, ApiOptions(token=_TOKEN)), listener, shutdown_s=0.2),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(Manager(cluster).run()), group.create_task(collect_garbage(cluster))]
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
            for task in tasks:
                task.cancel()
    await cluster.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
