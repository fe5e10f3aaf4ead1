"""``python -m serving.cli.makekey``: makes the cluster key as a Secret, in the cluster that this process runs in.

A job of ``config/`` runs it once, with an account that may create Secrets and read none. A key that is there is kept:
every secret between daemons is derived from it, so that another one would cut off all pods.

Environment: ``SERVING_SYSTEM_NAMESPACE``, where it goes; ``KUBECONFIG`` in the place of the pod's own account.
"""

import asyncio
import base64
import os
import secrets
import sys

from serving.aio.daemon import run_daemon
from serving.cluster.kinds import SECRET
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster, Object
from serving.model.errors import AlreadyExists
from serving.wire.tokens import KEY_BYTES

__all__ = ["NAME", "main", "make_key"]

NAME = "serving-key"
_NAMESPACE_VARIABLE = "SERVING_SYSTEM_NAMESPACE"
_NAMESPACE = "knative-serving"


async def make_key(cluster: Cluster, namespace: str) -> bool:
    """Make the Secret; whether there was none. What the cluster refuses is raised."""
    try:
        await cluster.create(SECRET, _secret(namespace))
    except AlreadyExists:
        return False
    return True


def _secret(namespace: str) -> Object:
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    labels = {"app.kubernetes.io/part-of": "serving"}
    return {
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": {"key": key},
    }


async def _body(_: asyncio.Event) -> None:
    async with KubeCluster(os.environ.get("KUBECONFIG")) as cluster:
        await make_key(cluster, os.environ.get(_NAMESPACE_VARIABLE, _NAMESPACE))


def main() -> int:
    """Run once; returns the exit code."""
    return run_daemon("makekey", _body)


if __name__ == "__main__":
    sys.exit(main())
