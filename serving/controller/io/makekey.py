"""Creates the daemons' Secrets once, and reads the cluster key.

The leading controller creates them before any other work. An existing Secret stays unchanged: every secret between
daemons is derived from the cluster key, so another key would disconnect all pods. The controller may create Secrets,
and read only the one with the key.

The Secret ``serving-query-token`` has the token of queries (``serving.net.metrics.queries``). The Secret
``serving-inner-authority`` has the certificate by which clients without a key identify daemons. The key's Secret also
has the mode of inner TLS for installations whose settings have none. A Secret of an older installation has no mode,
because its pods may not support inner TLS.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping

import msgspec

from serving.core.model.errors import AlreadyExists, Problem, SettingsError
from serving.core.settings.innertls import ENABLED
from serving.net.cluster.kinds import SECRET
from serving.net.cluster.port import Cluster
from serving.net.metrics.queries import QUERY_TOKEN_SECRET
from serving.net.wire.tokens import KEY_BYTES, KEY_MODE_FIELD, KEY_SECRET

AUTHORITY_SECRET = "serving-inner-authority"  # noqa: S105 - the name of a Secret
"""The Secret with the inner authority's certificate in a cluster."""

_KEY_FIELD = "key"
_AUTHORITY_FIELD = "ca.crt"
_TOKEN_BYTES = 32


class ClusterKey(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster key, and the mode of inner TLS stored with it ("" if an earlier version created the key)."""

    key: bytes
    inner_tls: str


async def cluster_key(cluster: Cluster, namespace: str) -> ClusterKey:
    """The cluster key of a namespace. It is created if it does not exist.

    Raises:
        SettingsError: when the Secret has no key of 32 bytes.
        ClusterError: when the cluster refuses a call.
    """
    key = secrets.token_bytes(KEY_BYTES)
    created = {_KEY_FIELD: key, KEY_MODE_FIELD: ENABLED.encode()}
    if await _create(cluster, namespace, KEY_SECRET, data=created):
        return ClusterKey(key=key, inner_tls=ENABLED)
    data = (await cluster.get(SECRET, namespace, KEY_SECRET)).get("data") or {}
    try:
        secret = base64.b64decode(data.get(_KEY_FIELD, ""), validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != KEY_BYTES:
        where, what = f"Secret {namespace}/{KEY_SECRET}", f"{_KEY_FIELD} has {len(secret)} bytes"
        raise SettingsError(
            [Problem(where=where, what=what, expected=f"{KEY_BYTES} bytes; delete the Secret for a new one")]
        )
    mode = base64.b64decode(data.get(KEY_MODE_FIELD, "")).decode(errors="replace")
    return ClusterKey(key=secret, inner_tls=mode)


async def make_tokens(cluster: Cluster, namespace: str, *, actions: str = "") -> None:
    """Create the query token, and the dashboard's token in the Secret ``actions``. Existing tokens stay."""
    for name in filter(None, (QUERY_TOKEN_SECRET, actions)):
        token = secrets.token_urlsafe(_TOKEN_BYTES).encode()
        await _create(cluster, namespace, name, data={"token": token})


async def write_authority(cluster: Cluster, namespace: str, certificate: str) -> None:
    """Write the certificate of the inner authority, with which the dashboard and Prometheus verify daemons.

    ``certificate`` is "" if there is no inner TLS.
    """
    data = {_AUTHORITY_FIELD: certificate.encode()}
    if not await _create(cluster, namespace, AUTHORITY_SECRET, data=data):
        await cluster.patch(SECRET, namespace, AUTHORITY_SECRET, patch={"data": _encoded(data)})


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {field: base64.b64encode(value).decode() for field, value in data.items()}


async def _create(cluster: Cluster, namespace: str, name: str, *, data: Mapping[str, bytes]) -> bool:
    labels = {"app.kubernetes.io/part-of": "serving"}
    secret = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "Opaque",
        "data": _encoded(data),
    }
    try:
        await cluster.create(SECRET, secret)
    except AlreadyExists:
        return False
    return True
