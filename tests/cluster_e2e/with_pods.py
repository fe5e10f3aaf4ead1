"""A stage whose pods are processes of this machine, by the kubelet of ``serving up``, and requests to it.

A server takes no loopback address into a slice: pods report addresses in 10.64.0.0/16, and the activator reaches them
in 127.64.0.0/16.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from serving.home.kubelet.kubelet import Kubelet
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.processes.processruntime import ProcessRuntime
from tests.cluster_e2e.server import SPACE
from tests.cluster_e2e.stage import KEY, Stage, staged
from tests.cluster_e2e.status_kubelet import StatusKubelet
from tests.integration.local_stage import HELLO, template_process

QUEUE_PORT = 8012
COMMAND = {"serving.dev/command": f"{sys.executable} {HELLO}"}
_OVERRIDE = {"SERVING_ACTIVATOR_POD_ADDRESS_OVERRIDE": "10.=127."}


@contextlib.asynccontextmanager
async def with_pods(folder: Path, **settings: str) -> AsyncIterator[Stage]:
    """Everything at work until the end of the context; ``settings`` are the daemons' environment."""
    async with staged(folder, runs_nothing=False, settings={**_OVERRIDE, **settings}) as stage:
        with template_process(folder / "state") as template:
            async with asyncio.TaskGroup() as group:
                tasks = await _kubelet(stage, template.state.template, folder, group)
                try:
                    yield stage
                finally:
                    # While the kubelet runs: pods that stay have mounts below the folder.
                    await stage.clear()
                    for task in tasks:
                        task.cancel()


async def _kubelet(
    stage: Stage, template: Path, folder: Path, group: asyncio.TaskGroup
) -> tuple[asyncio.Task[None], ...]:
    """The one of ``serving up``, on the cluster of the stage."""
    runtime = ProcessRuntime(template)
    node = NodeContext(
        cluster=stage.cluster,
        runtime=runtime,
        pods=folder / "state" / "pods",
        logs=folder / "state" / "logs" / "pods",
        snapshots=folder / "state" / "snapshots",
        stats_url=f"ws://127.0.0.1:{stage.port('stats')}/stats",
        key=KEY,
        name=stage.server.node,
        reported_network="10.",
        # The Nodes of the server belong to others.
        registers=False,
    )
    kubelet = Kubelet(node)
    # On a server with a scheduler a node has to be there, and to have room.
    status_kubelet = StatusKubelet(stage.cluster, stage.server.node)
    beating = group.create_task(status_kubelet.beat())
    connecting = group.create_task(runtime.run())
    await kubelet.adopt()
    await status_kubelet.until_schedulable()
    return beating, connecting, group.create_task(kubelet.run())


async def send_get(stage: Stage, host: str, path: str = "/") -> tuple[int, str]:
    """Send a request until the activator knows the host, soon after it is ready: status and body."""
    async with asyncio.timeout(240):
        while (results := await asked(stage.port("public"), f"{host}.{SPACE}.localhost", path))[0] == 404:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.05)
    return results


async def asked(port: int, host: str, path: str = "/", *, address: str = "127.0.0.1") -> tuple[int, str]:
    """Send one request on its own connection: status and body."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(240):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ")[1]), body.decode()
