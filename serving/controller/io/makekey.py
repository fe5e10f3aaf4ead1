"""``python -m serving.controller.io.makekey``: creates the Secrets of the daemons in the present cluster.

A job of ``config/`` runs it once, with an account that may create Secrets and read none. A Secret that exists is kept:
every secret between daemons is derived from the cluster key, so another key would cut off all pods.

The Secret ``serving-query-token`` has the token of queries (``serving.metrics.queries``).

Environment: ``SERVING_SYSTEM_NAMESPACE``, the namespace of the Secrets; ``SERVING_MAKEKEY_DASHBOARD_TOKEN``, the name of a
Secret with a new token for the dashboard's actions, none if it is empty; ``KUBECONFIG``, used instead of the pod's account.
"""

import asyncio
import base64
import os
import secrets
import sys

from serving.aio.daemon import run_daemon
from serving.cluster.kinds import SECRET
from serving.cluster.kube import connect
from serving.cluster.port import Cluster
from serving.metrics.queries import QUERY_TOKEN_SECRET
from serving.model.errors import AlreadyExists
from serving.wire.tokens import KEY_BYTES, KEY_SECRET

_NAMESPACE_VARIABLE = "SERVING_SYSTEM_NAMESPACE"
_TOKEN_VARIABLE = "SERVING_MAKEKEY_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_NAMESPACE = "knative-serving"
_TOKEN_BYTES = 32


async def make_key(cluster: Cluster, namespace: str) -> bool:
    """Create the Secret with the cluster key; False if it exists. A refusal of the cluster is raised."""
    return await _create(cluster, namespace, KEY_SECRET, key="key", value=secrets.token_bytes(KEY_BYTES))


async def make_token(cluster: Cluster, namespace: str, name: str) -> bool:
    """Create a Secret with a token, for queries or the dashboard; False if it exists, as when the user created it."""
    return await _create(cluster, namespace, name, key="token", value=secrets.token_urlsafe(_TOKEN_BYTES).encode())


async def _create(cluster: Cluster, namespace: str, name: str, *, key: str, value: bytes) -> bool:
    labels = {"app.kubernetes.io/part-of": "serving"}
    secret = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode()},
    }
    try:
        await cluster.create(SECRET, secret)
    except AlreadyExists:
        return False
    return True


async def _body(_: asyncio.Event) -> None:
    namespace = os.environ.get(_NAMESPACE_VARIABLE, _NAMESPACE)
    async with connect("install") as cluster:
        await make_key(cluster, namespace)
        await make_token(cluster, namespace, QUERY_TOKEN_SECRET)
        if token_name := os.environ.get(_TOKEN_VARIABLE):
            await make_token(cluster, namespace, token_name)


def main() -> int:
    """Run once and return the exit code."""
    return run_daemon("makekey", _body)


if __name__ == "__main__":
    sys.exit(main())
