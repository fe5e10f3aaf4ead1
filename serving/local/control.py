"""``python -m serving.local.control``: the store, its API, the controllers, and what runs the pods of this machine.

Environment, from the supervisor: ``SERVING_STATE`` (the state folder), ``SERVING_KEY_FILE``, ``SERVING_STATS_URL``, and
``SERVING_LISTEN_FDS`` with the socket "api". What users wrote is read back from the journal; the rest is made anew.
"""

import asyncio
import gc
import os
import sys
from pathlib import Path

from serving.aio.daemon import inherited_sockets, run_daemon
from serving.cluster.admission import admit
from serving.cluster.api.running import running
from serving.cluster.api.server import ApiOptions, application
from serving.cluster.garbage import collect_garbage
from serving.cluster.journal import Journal
from serving.cluster.memory import MemoryCluster
from serving.controller.loop import run as run_controller
from serving.local.kubelet import Kubelet, NodeSettings
from serving.local.manager import Manager
from serving.local.podlogs import FilePodLogs
from serving.local.state import StateFolder
from serving.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS
from serving.settings.load import load
from serving.wire.tokens import read_key

__all__ = ["main"]

_GC_THRESHOLD = 50_000


async def _body(stop: asyncio.Event) -> None:
    state = StateFolder(Path(os.environ["SERVING_STATE"]))
    controller = load(CONTROLLER, registry=DAEMONS, environment=os.environ).settings
    scaling = load(AUTOSCALER, registry=DAEMONS, environment=os.environ).settings
    cluster = MemoryCluster(Journal(state.journal), admit=admit)
    node = NodeSettings(
        pods=state.pods, logs=state.logs, stats_url=os.environ["SERVING_STATS_URL"], key=read_key(state.key)
    )
    logs = FilePodLogs(state.logs / "pods")
    api = application(cluster, ApiOptions(token=state.token.read_text()), logs=logs)
    try:
        async with running(api, inherited_sockets()["api"]), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(collect_garbage(cluster), name="garbage"),
                group.create_task(Manager(cluster).run(), name="manager"),
                group.create_task(Kubelet(cluster, node).run(), name="kubelet"),
            ]
            await run_controller(cluster, stop, settings=controller, scaling=scaling)
            for task in tasks:
                task.cancel()
    finally:
        await cluster.close()


def main() -> int:
    """Run until told to stop; returns the exit code."""
    # Most objects live long: looking for cycles among all of them would stop the loop for tens of milliseconds.
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    return run_daemon("control", _body)


if __name__ == "__main__":
    sys.exit(main())
