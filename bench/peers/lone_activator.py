"""An activator with one revision of one pod, all in this process but the pod.

    python bench/peers/lone_activator.py PORT POD_PORT

Answers for the host "hello.default.localhost". Its autoscaler is never there, which it takes calmly.
"""

import asyncio
import logging
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from serving.activator.main import Activator
from serving.cluster.kinds import ENDPOINT_SLICE, REVISION, ROUTE
from serving.cluster.memory import MemoryCluster
from serving.settings.activator import ActivatorSettings

__all__ = ["main"]

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
    settings = ActivatorSettings(
        stats_url="ws://127.0.0.1:1/stats", public_address=f"127.0.0.1:{port}", inner_address="127.0.0.1:0"
    )
    await Activator(settings, cluster, key=bytes(32)).run(asyncio.Event())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), int(sys.argv[2])))
