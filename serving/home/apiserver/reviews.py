"""Serves reviews of pod and user tokens, and checks the Host header.

The signer of pod tokens identifies them, by a function ``identify`` that is passed in. Responses have a real server's
format. A user's response also has its role and namespaces.
"""

from collections.abc import Callable, Collection

import msgspec

from serving.core.model.grants import Grant
from serving.core.model.knative import GRANT_NAMESPACES, GRANT_ROLE
from serving.core.model.objects import Object
from serving.home.apiserver.requests import Fault
from serving.net.aio.clock import wall_s

API_AUDIENCE = "https://kubernetes.default.svc.cluster.local"
"""The audience of tokens and reviews without an explicit one: the API server."""

TOKEN_REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class KnownToken(msgspec.Struct, frozen=True, kw_only=True):
    """A ServiceAccount token bound to a pod. ``until_s`` is its expiry in seconds since the epoch; None means never."""

    namespace: str
    pod: str
    pod_uid: str
    audiences: tuple[str, ...]
    account: str = "default"
    until_s: float | None = None


class _ReviewSpec(msgspec.Struct, frozen=True):
    token: str = ""
    audiences: list[str] = []


class _Review(msgspec.Struct, frozen=True):
    spec: _ReviewSpec


class TokenReviews:
    """Serves TokenReviews. ``identify`` returns the pod and service account of a token, None if it is unknown."""

    def __init__(self, identify: Callable[[str], KnownToken | None] = lambda _: None) -> None:
        self._identify = identify

    def review(self, body: object, grant_of: Callable[[str], Grant | None] = lambda _: None) -> Object:
        """The TokenReview in ``body``, with its status.

        ``grant_of`` returns the user and role of a user's access token, None for any other token. Raises ``Fault`` 400
        if ``body`` is not a TokenReview.
        """
        try:
            spec = msgspec.convert(body, _Review).spec
        except msgspec.ValidationError as error:
            raise Fault(400, f"the body is not a TokenReview: {error}") from error
        audiences = set(spec.audiences or (API_AUDIENCE,))
        # User tokens are for this API only, and unknown to other audiences.
        grant = grant_of(spec.token) if API_AUDIENCE in audiences else None
        status = _status(self._identify(spec.token), audiences) if grant is None else _status_of_user(grant)
        return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "status": status}


def _status(token: KnownToken | None, requested: set[str]) -> Object:
    if token is None or (token.until_s is not None and token.until_s <= wall_s()):
        return {"user": {}, "error": "token is unknown, or has expired"}
    audiences = sorted(requested & set(token.audiences))
    if not audiences:
        return {"user": {}, "error": f"token audiences {list(token.audiences)} are none of {sorted(requested)}"}
    extra = {
        "authentication.kubernetes.io/pod-name": [token.pod],
        "authentication.kubernetes.io/pod-uid": [token.pod_uid],
    }
    username = f"system:serviceaccount:{token.namespace}:{token.account}"
    return {"authenticated": True, "audiences": audiences, "user": {"username": username, "extra": extra}}


def _status_of_user(grant: Grant) -> Object:
    namespaces = ["*"] if grant.namespaces is None else sorted(grant.namespaces)
    extra = {GRANT_ROLE: [str(grant.role)], GRANT_NAMESPACES: namespaces}
    user = {"username": grant.user, "groups": grant.groups, "extra": extra}
    return {"authenticated": True, "audiences": [API_AUDIENCE], "user": user}


def check_host(header: str, allowed: Collection[str]) -> None:
    """Raise ``Fault`` 403 unless the Host header names an allowed host; any port is allowed."""
    host = header.strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name not in allowed:
        raise Fault(403, f"the Host header names {name or 'nothing'}; this server is {', '.join(sorted(allowed))}")
