"""TokenReviews: this server knows one token for all of its users, and gives none to pods; tests tell it of theirs.

A real server signs tokens and knows its own. Here a token is whose somebody said it is, in the terms of the real answer: an
account, the pod it is bound to, for whom it is made out.
"""

from collections.abc import Callable, Mapping

import msgspec

from serving.aio.clock import wall_s
from serving.cluster.api.status import Fault
from serving.cluster.port import Object

__all__ = ["TOKEN_REVIEW_PATH", "KnownToken", "TokenReviews"]

TOKEN_REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path


class KnownToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token: made for a ServiceAccount of a namespace, bound to a pod.

    It is good until a time in seconds since 1970; None is for ever.
    """

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
    """Answers by what ``tokens`` says at that moment, by token."""

    def __init__(self, tokens: Callable[[], Mapping[str, KnownToken]] = dict) -> None:
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"TokenReviews({len(self._tokens())} tokens)"

    def answer(self, asked: object) -> Object:
        """A TokenReview with its status. Raises ``Fault`` 400 for what is none."""
        try:
            spec = msgspec.convert(asked, _Review).spec
        except msgspec.ValidationError as error:
            raise Fault(400, f"this is no TokenReview: {error}") from error
        status = _status(self._tokens().get(spec.token), set(spec.audiences))
        return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "status": status}


def _status(token: KnownToken | None, asked: set[str]) -> Object:
    if token is None or (token.until_s is not None and token.until_s <= wall_s()):
        return {"user": {}, "error": "token is unknown, or has expired"}
    audiences = sorted(asked & set(token.audiences))
    if not audiences:
        return {"user": {}, "error": f"token audiences {list(token.audiences)} are none of {sorted(asked)}"}
    extra = {
        "authentication.kubernetes.io/pod-name": [token.pod],
        "authentication.kubernetes.io/pod-uid": [token.pod_uid],
    }
    username = f"system:serviceaccount:{token.namespace}:{token.account}"
    return {"authenticated": True, "audiences": audiences, "user": {"username": username, "extra": extra}}
