"""Decides by TokenReview whether a Kubernetes token belongs to the claimed pod, and how long the verdict is valid.

A queue-proxy in a cluster has a token of its pod's ServiceAccount, issued for the audience of the autoscaler. The API
server's TokenReview returns the pod for which the token was issued. The autoscaler needs the RBAC right
``create tokenreviews``. Verdicts are stored by the token's digest, so that memory contains no token. A proof is stored
while the token is valid, at most ten minutes; a refusal is stored for ten seconds. The rate of reviews is bounded. This
module makes no calls.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.base64url import decode_base64url
from serving.core.model.knative import REVISION_LABEL
from serving.core.model.nodata import NoData

_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
# A verified token is reviewed again periodically, because the token of a deleted pod is revoked.
_PROOF_VALID_S = 600.0
# A refused client retries every few seconds, which must not cause a review each time.
_REFUSAL_VALID_S = 10.0
# More than the pods of one autoscaler, each with its current and its previous token.
_KNOWN_MAX = 65_536


class PodClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pod and revision that a connection claims to be."""

    namespace: str
    revision: str
    pod: str


class SeenPod(msgspec.Struct, frozen=True, kw_only=True):
    """The last observed state of a pod, with the revision named by its label."""

    revision: str
    uid: str


class PodProof(msgspec.Struct, frozen=True, kw_only=True):
    """A review's proof that a token belongs to this pod and to a service account of its namespace."""

    namespace: str
    pod: str
    uid: str


Verdict = PodProof | NoData
"""The result of a review; ``NoData`` has the reason of a refusal."""


class _Payload(msgspec.Struct, frozen=True):
    exp: float


def claim_of(names: Mapping[str, str]) -> PodClaim | None:
    """The claim in a query; None without one."""
    try:
        claim = msgspec.convert(names, PodClaim)
    except msgspec.ValidationError:
        return None
    return claim if all(names.values()) else None


def seen_of(pod: Mapping[str, Any] | None) -> SeenPod | None:
    """The revision and uid of a Pod; None for a pod without a revision."""
    metadata = {} if pod is None else pod["metadata"]
    revision = (metadata.get("labels") or {}).get(REVISION_LABEL)
    return None if revision is None else SeenPod(revision=revision, uid=metadata.get("uid", ""))


def objection_to(claim: PodClaim, verdict: Verdict, seen: SeenPod | None) -> str | None:
    """Why a claim is refused; None if it is proved. ``seen`` is the claimed pod."""
    if isinstance(verdict, NoData):
        return f"it needs {verdict.missing}"
    if (verdict.namespace, verdict.pod) != (claim.namespace, claim.pod):
        return f"the token is that of pod {verdict.namespace}/{verdict.pod}"
    if seen is None or seen.uid != verdict.uid:
        return "there is no such pod"
    if seen.revision != claim.revision:
        return f"the pod is one of revision {seen.revision}"
    return None


def _digest_of(token: str) -> bytes:
    """The digest that identifies a token's verdict."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def expiry_s(token: str) -> float:
    """The expiry that a verified token claims, in seconds since 1970; infinity without a claim."""
    parts = token.split(".")
    try:
        return msgspec.json.decode(decode_base64url(parts[1]), type=_Payload).exp
    except (IndexError, ValueError):
        return math.inf


def verdict_of(review: Mapping[str, Any], *, audience: str) -> Verdict:
    """The verdict of a TokenReview response."""
    status = review.get("status") or {}
    if not status.get("authenticated"):
        return NoData(missing=str(status.get("error") or "a token that is good"))
    # A server without audience support returns none: the token may then be for any audience.
    if audience not in (status.get("audiences") or ()):
        return NoData(missing=f"a token for {audience}")
    user = status.get("user") or {}
    name, extra = str(user.get("username", "")), user.get("extra") or {}
    pods: Sequence[object] = extra.get(_POD_NAME) or ()
    uids: Sequence[object] = extra.get(_POD_UID) or ()
    if not name.startswith(_ACCOUNT) or len(pods) != 1 or len(uids) != 1:
        return NoData(missing="a token that is bound to a pod")
    return PodProof(namespace=name.removeprefix(_ACCOUNT).partition(":")[0], pod=str(pods[0]), uid=str(uids[0]))


class Reviewed:
    """Cached verdicts by token. Times are in seconds since 1970."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # Each verdict with the times from which and until which it is valid.
        self._known: OrderedDict[bytes, tuple[Verdict, float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def known(self, token: str, now_s: float) -> Verdict | None:
        """The verdict about a token; None if a review is needed."""
        digest = _digest_of(token)
        verdict, since_s, until_s = self._known.get(digest, (None, -math.inf, math.inf))
        # The clock may have been set back.
        if not since_s <= now_s < until_s:
            del self._known[digest]
            return None
        return verdict

    def learn(self, token: str, verdict: Verdict, now_s: float) -> None:
        """Store a verdict; a proof expires with its token."""
        valid_s = _PROOF_VALID_S if isinstance(verdict, PodProof) else _REFUSAL_VALID_S
        digest = _digest_of(token)
        self._known[digest] = (verdict, now_s, min(now_s + valid_s, expiry_s(token)))
        self._known.move_to_end(digest)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)


class Pace:
    """Limits the rate of token reviews, and refuses reviews with too long a delay."""

    __slots__ = ("_due_s", "_spacing_s", "_wait_max_s")

    def __init__(self, *, per_s: float, wait_max_s: float) -> None:
        self._spacing_s = 1 / per_s
        self._wait_max_s = wait_max_s
        self._due_s = 0.0

    def wait_s(self, now_s: float) -> float | None:
        """Reserve a review and return its delay in seconds; None if the delay would be too long."""
        wait_s = max(0.0, self._due_s - now_s)
        if wait_s > self._wait_max_s:
            return None
        self._due_s = now_s + wait_s + self._spacing_s
        return wait_s
