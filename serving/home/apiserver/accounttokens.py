"""ServiceAccount tokens for pods, for projected volumes with ``serviceAccountToken``.

A token is a JSON Web Token (RFC 7519) signed with HMAC-SHA256 and the cluster key, with the claims that a
kube-apiserver writes. The server's TokenReview accepts the token; it grants no right in the API. A token is valid for a
fixed time slot, so that all readers in one slot get the same text. It is replaced after half of its lifetime.
"""

import hashlib
import hmac

import msgspec

from serving.core.model.base64url import decode_base64url, encode_base64url
from serving.core.model.objects import Object, name_of, namespace_of, uid_of
from serving.home.apiserver.reviews import API_AUDIENCE, KnownToken

LIFETIME_MIN_S = 600
"""Shortest lifetime, in seconds. Source: Kubernetes, TokenRequestSpec."""

_HEADER = b'{"alg":"HS256","typ":"JWT"}'


class _Bound(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""


class _Place(msgspec.Struct, frozen=True):
    namespace: str
    pod: _Bound
    serviceaccount: _Bound


class _TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    aud: tuple[str, ...]
    exp: int
    iat: int
    iss: str
    sub: str
    place: _Place = msgspec.field(name="kubernetes.io")


def account_token(key: bytes, pod: Object, *, audience: str, lifetime_s: int, now_s: float) -> str:
    """A token of a pod's service account that expires in ``lifetime_s / 2`` to ``lifetime_s`` seconds.

    Calls within the same half of a lifetime return the same text. ``audience`` "" means the API server. ``now_s`` is
    seconds since the epoch.
    """
    slot_s = lifetime_s // 2
    issued_s = int(now_s) // slot_s * slot_s
    account = pod["spec"].get("serviceAccountName") or "default"
    namespace = namespace_of(pod)
    claims = _TokenClaims(
        aud=(audience or API_AUDIENCE,),
        exp=issued_s + lifetime_s,
        iat=issued_s,
        iss=API_AUDIENCE,
        sub=f"system:serviceaccount:{namespace}:{account}",
        place=_Place(namespace, _Bound(name_of(pod), uid_of(pod)), _Bound(account)),
    )
    signed = ".".join(map(encode_base64url, (_HEADER, msgspec.json.encode(claims)))).encode()
    return (signed + b"." + _signature(key, signed)).decode()


def read_account_token(key: bytes, text: str) -> KnownToken | None:
    """The account in a token, even if the token has expired; None if it was not signed by ``key``."""
    signed, _, signature = text.encode("utf-8", "surrogateescape").rpartition(b".")
    if not hmac.compare_digest(signature, _signature(key, signed)):
        return None
    try:
        payload = signed.partition(b".")[2]
        claims = msgspec.json.decode(decode_base64url(payload.decode()), type=_TokenClaims)
    except ValueError:
        return None
    return KnownToken(
        namespace=claims.place.namespace,
        pod=claims.place.pod.name,
        pod_uid=claims.place.pod.uid,
        audiences=claims.aud,
        account=claims.place.serviceaccount.name,
        until_s=claims.exp,
    )


def _signature(key: bytes, signed: bytes) -> bytes:
    return encode_base64url(hmac.new(key, signed, hashlib.sha256).digest()).encode()
