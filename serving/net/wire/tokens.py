"""The secrets between daemons, each derived from the cluster key, so that none is stored.

A connection for stats has a token that is bound to the sending pod or activator. A request from an activator to a pod
has the pod's secret; only then the queue-proxy trusts the headers that are reserved for daemons. In a cluster's
Deployment the secret is the revision's, because the template exists before its pods. Each secret is HMAC-SHA256(key,
purpose/names) in hexadecimal. Names in Kubernetes contain no slash, so different pods have different texts. Autoscaler,
activator and controller have the key and derive secrets. A queue-proxy gets its own two secrets and never the key.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping

import msgspec

from serving.core.model.base64url import decode_base64url, encode_base64url
from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.identities import CallerIdentity
from serving.core.model.launch import KEY_FILE_VARIABLE

# The digest's length: a longer key adds nothing to HMAC-SHA256, a shorter one weakens it.
KEY_BYTES = 32

KEY_SECRET = "serving-key"  # noqa: S105 - the name of a Secret
"""The Secret with the cluster key."""

KEY_MODE_FIELD = "inner-tls"
"""The entry in that Secret with the mode of inner TLS at the installation."""


_CALLER_VERSION = "v1"


class _CallerClaims(CallerIdentity, frozen=True, kw_only=True):
    until_s: float


def pod_token(key: bytes, *, namespace: str, revision: str, pod: str) -> str:
    """The bearer token of one pod's stats websocket."""
    return _derived(key, "stat", namespace, revision, pod)


def revision_token(key: bytes, *, namespace: str, revision: str) -> str:
    """The token shared by all pods of a revision, for a pod template."""
    return _derived(key, "stat-of-revision", namespace, revision)


def activator_token(key: bytes, *, name: str) -> str:
    """The bearer token of one activator's stats websocket."""
    return _derived(key, "activator", name)


def autoscaler_token(key: bytes, *, name: str) -> str:
    """The bearer token of one autoscaler's websocket to another."""
    return _derived(key, "autoscaler", name)


def pod_secret(key: bytes, *, namespace: str, pod: str) -> str:
    """The value of ``K-Pod-Secret`` in each request from an activator to this pod."""
    return _derived(key, "secret", namespace, pod)


def prompt_secret(key: bytes) -> bytes:
    """The key of the hashes of prompts: the same in all activators, so that they choose the same pods."""
    return _derived(key, "prompts").encode()


def revision_secret(key: bytes, *, namespace: str, uid: str) -> str:
    """The pod secret shared by a revision's pods.

    It is derived from the uid, so that a later revision of the same name has another secret.
    """
    return _derived(key, "revision", namespace, uid)


def access_token(key: bytes, *, namespace: str, route: str, version: str = "") -> str:
    """The bearer token for callers of a private service; a new version invalidates the previous one."""
    return _derived(key, "access", namespace, route, version or "-")


def probe_proof(secret: str | bytes, *, nonce: str) -> str:
    """The proof in the response to a readiness probe. Computing it requires the pod's secret.

    Another pod at a reused address cannot compute the proof.
    """
    return hmac.new(_bytes_of(secret), f"ready/{nonce}".encode(), hashlib.sha256).hexdigest()


def matches(token: str | bytes, expected: str | bytes) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(_bytes_of(token), _bytes_of(expected))


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Read the cluster key from its file.

    Raises:
        InvalidValue: when the file does not hold exactly 32 bytes.
        OSError: when the file cannot be read.
    """
    # Not pathlib, whose import takes 3 ms of a sidecar's start.
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        key = file.read()
    if len(key) != KEY_BYTES:
        raise InvalidValue(text=f"{path} with {len(key)} bytes", expected=f"a key file of {KEY_BYTES} bytes")
    return key


def read_cluster_key(environment: Mapping[str, str]) -> bytes:
    """Read the cluster key from the file in ``SERVING_KEY_FILE``. Raises ``SettingsError``."""
    try:
        return read_key(environment[KEY_FILE_VARIABLE])
    except (KeyError, InvalidValue, OSError) as error:
        what = "not set" if isinstance(error, KeyError) else str(error)
        raise SettingsError([Problem(where=KEY_FILE_VARIABLE, what=what, expected="the file of the key")]) from error


def caller_token(key: bytes, caller: CallerIdentity, *, until_s: float) -> str:
    """A token by which a pod identifies itself to other services until ``until_s``, in unix seconds.

    The token is "v1.CLAIMS.SIGNATURE", with the claims as JSON in base64url.
    """
    claims = _CallerClaims(**msgspec.structs.asdict(caller), until_s=until_s)
    body = encode_base64url(msgspec.json.encode(claims))
    return f"{_CALLER_VERSION}.{body}.{_derived(key, 'caller', body)}"


def read_caller_token(key: bytes, text: str, *, now_s: float) -> CallerIdentity:
    """The caller in a token.

    ``now_s`` is seconds since the epoch. Raises ``InvalidValue``; its text does not contain the token.
    """
    version, _, rest = text.partition(".")
    body, _, signature = rest.partition(".")
    if version != _CALLER_VERSION or not body or "/" in body:
        raise InvalidValue(text="the token", expected="it is not a caller token")
    if not matches(signature, _derived(key, "caller", body)):
        raise InvalidValue(text="the token", expected="its token is not signed by this cluster")
    claims = msgspec.json.decode(decode_base64url(body), type=_CallerClaims)
    if claims.until_s <= now_s:
        raise InvalidValue(text="the token", expected="its token has expired")
    return claims


def caller_key(key: bytes, *, namespace: str, pod: str) -> str:
    """The key with which an app on a single machine requests its caller token from its queue-proxy."""
    return _derived(key, "callerkey", namespace, pod)


def _derived(key: bytes, *parts: str) -> str:
    assert all(parts), parts
    assert not any("/" in part for part in parts), parts
    return hmac.new(key, "/".join(parts).encode(), hashlib.sha256).hexdigest()


def _bytes_of(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
