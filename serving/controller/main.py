"""``python -m serving.controller.main``: the controller against the server that KUBECONFIG names, or the one it runs in.

Settings are defaults and ``SERVING_CONTROLLER_...`` in the environment; those of the autoscaler are read too, because a
revision starts with the scale that it asks for. One controller at a time: a lease is not taken yet.
"""

import asyncio
import os
import sys

from serving.aio.daemon import run_daemon
from serving.cluster.kube import KubeCluster
from serving.controller.loop import run
from serving.metrics.controller import ControllerMetrics
from serving.metrics.server import serve_page
from serving.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS
from serving.settings.load import load

__all__ = ["main"]


async def _body(stop: asyncio.Event) -> None:
    settings = load(CONTROLLER, registry=DAEMONS, environment=os.environ).settings
    scaling = load(AUTOSCALER, registry=DAEMONS, environment=os.environ).settings
    kubeconfig = os.environ.get("KUBECONFIG")
    async with KubeCluster(kubeconfig) as cluster:
        metrics = ControllerMetrics()
        async with serve_page(metrics.page, settings.metrics_address):
            await run(cluster, stop, settings=settings, scaling=scaling, metrics=metrics)


def main() -> int:
    """Run until told to stop; returns the exit code."""
    return run_daemon("controller", _body)


if __name__ == "__main__":
    sys.exit(main())
