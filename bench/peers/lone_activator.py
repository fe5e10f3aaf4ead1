"""An activator with one revision of one pod, all in this process but the pod.

    python bench/peers/lone_activator.py PORT POD_PORT

Answers for the host "hello.default.localhost". Its autoscaler is never there, which it takes calmly. On SIGUSR1 it
writes what it holds, as JSON, into the file that ``LONE_ACTIVATOR_STATE`` names. ``LONE_ACTIVATOR_IDLE_S`` is for how
long it keeps idle connections to the pod.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from serving.activator.main import Activator
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.http import HttpSettings
from serving.core.settings.tls import TlsSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import ENDPOINT_SLICE, REVISION, ROUTE

_REVISION = "hello-00001"


async def main(port: int, pod_port: int) -> None:
    """Serve until killed."""
    logging.disable()
    cluster = MemoryCluster()
    here = {"namespace": "default"}
    await cluster.create(
        REVISION,
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Revision",
            "metadata": {"name": _REVISION, **here},
            "spec": {"servingState": "Active", "containerConcurrency": 0},
        },
    )
    route = {"apiVersion": "serving.knative.dev/v1", "kind": "Route", "metadata": {"name": "hello", **here}, "spec": {}}
    await cluster.create(ROUTE, route)
    status = {"url": "http://hello.default.localhost", "traffic": [{"revisionName": _REVISION, "percent": 100}]}
    await cluster.patch(ROUTE, "default", "hello", patch={"status": status}, subresource="status")
    labels = {"kubernetes.io/service-name": f"{_REVISION}-private", "serving.knative.dev/revision": _REVISION}
    await cluster.create(
        ENDPOINT_SLICE,
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{_REVISION}-private-p", "labels": labels, **here},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True, "terminating": False}}],
            "ports": [{"name": "http", "port": pod_port}],
        },
    )
    http = HttpSettings(upstream_idle_max_s=float(os.environ.get("LONE_ACTIVATOR_IDLE_S", "60")))
    settings = ActivatorSettings(
        http=http,
        tls=TlsSettings(address="127.0.0.1:0"),
        stats_url="ws://127.0.0.1:1/stats",
        public_address=f"127.0.0.1:{port}",
        inner_address="127.0.0.1:0",
    )
    activator = Activator(settings, cluster, key=bytes(32))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _report, activator)
    await activator.run(asyncio.Event())


def _report(activator: Activator) -> None:
    result = {
        "tasks": len(asyncio.all_tasks()),
        "inside": sum(level for _, level, _ in activator.ingress.router.inside()),
        "client_connections": activator.server.connection_count,
        "pod_connections": activator.server.pool.open_count,
    }
    path = Path(os.environ["LONE_ACTIVATOR_STATE"])
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result))
    draft.rename(path)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2])))
