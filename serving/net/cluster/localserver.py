"""Recognises the kubeconfig of ``serving up``: JSON, one cluster at a loopback address, and a token.

Other kubeconfigs may need certificates, expiring tokens or credential plug-ins, which the ``kubernetes`` package
supports. Its import takes half a second and 20 MiB, which neither the daemons of one machine nor the CLI need for their
own server.
"""

import base64

import msgspec

CLUSTER_EXTRA = "the extra for clusters: pip install 'serving[cluster]'"
"""The extra to install if the ``kubernetes`` package is missing."""

_LOOPBACK = ("https://127.0.0.1:", "http://127.0.0.1:")


class TokenServer(msgspec.Struct, frozen=True, kw_only=True):
    """An API server that authenticates by a bearer token.

    ``authority`` is the certificate of the authority that signed the server's certificate, as PEM; "" without TLS.
    """

    url: str
    token: str
    authority: str


class LocalServer(TokenServer, frozen=True, kw_only=True):
    """The API server of ``serving up``."""

    context: str
    namespace: str


class _KubeconfigCluster(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    server: str
    certificate_authority_data: str = ""


class _NamedCluster(msgspec.Struct):
    cluster: _KubeconfigCluster


class _KubeconfigUser(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _NamedUser(msgspec.Struct):
    user: _KubeconfigUser


class _KubeconfigContext(msgspec.Struct):
    namespace: str = "default"


class _NamedContext(msgspec.Struct):
    context: _KubeconfigContext


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    clusters: tuple[_NamedCluster]
    users: tuple[_NamedUser]
    contexts: tuple[_NamedContext]
    current_context: str


def local_server(text: str | bytes) -> LocalServer | None:
    """Parse a kubeconfig of ``serving up``; None for any other kubeconfig or text."""
    try:
        kubeconfig = msgspec.json.decode(text, type=_Kubeconfig)
        cluster, user, context = (
            kubeconfig.clusters[0].cluster,
            kubeconfig.users[0].user,
            kubeconfig.contexts[0].context,
        )
        authority = base64.b64decode(cluster.certificate_authority_data, validate=True).decode("ascii")
    except ValueError:
        return None
    if not cluster.server.startswith(_LOOPBACK):
        return None
    return LocalServer(
        url=cluster.server.rstrip("/"),
        token=user.token,
        authority=authority,
        context=kubeconfig.current_context,
        namespace=context.namespace or "default",
    )
