"""Creates the Secrets of the daemons, each once, and reads the cluster key.

The leading controller does so before it works. A Secret that exists is kept: every secret between daemons is derived from the
cluster key, so another key would cut off all pods. The controller may create Secrets and read that one.

The Secret ``serving-query-token`` has the token of queries (``serving.metrics.queries``).
"""

import base64
import binascii
import secrets

from serving.cluster.kinds import SECRET
from serving.cluster.port import Cluster
from serving.metrics.queries import QUERY_TOKEN_SECRET
from serving.model.errors import AlreadyExists, Problem, SettingsError
from serving.wire.tokens import KEY_BYTES, KEY_SECRET

_KEY_FIELD = "key"
_TOKEN_BYTES = 32


async def cluster_key(cluster: Cluster, namespace: str) -> bytes:
    """The cluster key of a namespace, created if there is none.

    Raises:
        SettingsError: when the Secret has no key of 32 bytes. A refusal of the cluster is raised too.
    """
    key = secrets.token_bytes(KEY_BYTES)
    if await _create(cluster, namespace, KEY_SECRET, key=_KEY_FIELD, value=key):
        return key
    data = (await cluster.get(SECRET, namespace, KEY_SECRET)).get("data") or {}
    try:
        found = base64.b64decode(data.get(_KEY_FIELD, ""), validate=True)
    except binascii.Error:
        found = b""
    if len(found) != KEY_BYTES:
        where, what = f"Secret {namespace}/{KEY_SECRET}", f"{_KEY_FIELD} has {len(found)} bytes"
        raise SettingsError(
            [Problem(where=where, what=what, expected=f"{KEY_BYTES} bytes; delete the Secret for a new one")]
        )
    return found


async def make_tokens(cluster: Cluster, namespace: str, *, actions: str = "") -> None:
    """Create the tokens of queries and of the dashboard, the latter in a Secret named ``actions``. Existing ones stay."""
    for name in filter(None, (QUERY_TOKEN_SECRET, actions)):
        token = secrets.token_urlsafe(_TOKEN_BYTES).encode()
        await _create(cluster, namespace, name, key="token", value=token)


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
