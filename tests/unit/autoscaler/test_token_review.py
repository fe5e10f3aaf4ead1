"""The pod of a token, and the validity of the verdict."""

import base64
import math
from typing import Any

import pytest

from serving.autoscaler.token_review import (
    Pace,
    PodClaim,
    PodProof,
    Reviewed,
    SeenPod,
    claim_of,
    expiry_s,
    objection_to,
    seen_of,
    verdict_of,
)
from serving.core.model.nodata import NoData

NAMES = {"namespace": "n", "revision": "r", "pod": "p"}
CLAIM = PodClaim(namespace="n", revision="r", pod="p")
PROOF = PodProof(namespace="n", pod="p", uid="u")
SEEN = SeenPod(revision="r", uid="u")


def respond(**status: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    extra = {
        "authentication.kubernetes.io/pod-name": ["p"],
        "authentication.kubernetes.io/pod-uid": ["u"],
        "authentication.kubernetes.io/node-name": ["elsewhere"],
    }
    user = {"username": "system:serviceaccount:n:default", "extra": extra}
    return {"status": {"authenticated": True, "audiences": ["us"], "user": user, **status}}


def token(payload: bytes) -> str:
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.c2ln"


def test_query_with_namespace_revision_and_pod_is_a_claim() -> None:
    assert claim_of(NAMES) == CLAIM


@pytest.mark.parametrize("names", [{}, {"activator": "a"}, {**NAMES, "more": "x"}, {**NAMES, "pod": ""}])
def test_other_query_is_no_claim(names: dict[str, str]) -> None:
    assert claim_of(names) is None


def test_token_review_response_proves_a_pod() -> None:
    assert verdict_of(respond(), audience="us") == PROOF


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        ({"authenticated": False, "error": "expired"}, "expired"),
        ({"authenticated": False}, "a token that is good"),
        ({"audiences": ["them"]}, "a token for us"),
        ({"audiences": None}, "a token for us"),
        ({"user": {"username": "admin"}}, "a token that is bound to a pod"),
        ({"user": {"username": "system:serviceaccount:n:default"}}, "a token that is bound to a pod"),
    ],
)
def test_unauthenticated_or_unbound_token_proves_no_pod(status: dict[str, Any], missing: str) -> None:
    assert verdict_of(respond(**status), audience="us") == NoData(missing=missing)


def test_response_without_a_status_proves_no_pod() -> None:
    assert isinstance(verdict_of({}, audience="us"), NoData)


def test_revision_of_a_pod_is_read_from_its_label() -> None:
    labels = {"serving.knative.dev/revision": "r"}
    assert seen_of({"metadata": {"uid": "u", "labels": labels}}) == SEEN
    assert seen_of({"metadata": {"uid": "u"}}) is None
    assert seen_of(None) is None


def test_claim_is_proved_by_the_token_of_its_pod() -> None:
    assert objection_to(CLAIM, PROOF, SEEN) is None


@pytest.mark.parametrize(
    ("verdict", "seen", "objection"),
    [
        (NoData(missing="more"), SEEN, "it needs more"),
        (PodProof(namespace="n", pod="q", uid="u"), SEEN, "the token is that of pod n/q"),
        (PodProof(namespace="m", pod="p", uid="u"), SEEN, "the token is that of pod m/p"),
        (PROOF, None, "there is no such pod"),
        (PROOF, SeenPod(revision="r", uid="later"), "there is no such pod"),
        (PROOF, SeenPod(revision="s", uid="u"), "the pod is one of revision s"),
    ],
)
def test_claim_is_rejected_for_another_pod_uid_or_revision(
    verdict: PodProof | NoData, seen: SeenPod | None, objection: str
) -> None:
    assert objection_to(CLAIM, verdict, seen) == objection


def test_token_expiry_is_read_from_its_payload() -> None:
    assert expiry_s(token(b'{"exp": 1700.5, "iss": "x"}')) == 1700.5


@pytest.mark.parametrize("text", ["opaque", "a.b.c", token(b"[]"), token(b"{}"), token(b"\xff")])
def test_token_without_readable_expiry_never_expires(text: str) -> None:
    assert expiry_s(text) == math.inf


def test_proof_is_cached_for_at_most_10_minutes() -> None:
    reviewed = Reviewed()
    assert reviewed.known("t", 0.0) is None
    reviewed.learn("t", PROOF, 100.0)
    assert reviewed.known("t", 699.9) == PROOF
    assert reviewed.known("t", 700.0) is None
    assert len(reviewed) == 0


def test_proof_expires_with_its_token() -> None:
    reviewed, text = Reviewed(), token(b'{"exp": 130}')
    reviewed.learn(text, PROOF, 100.0)
    assert reviewed.known(text, 129.9) == PROOF
    assert reviewed.known(text, 130.0) is None


def test_rejection_is_cached_for_10_s() -> None:
    reviewed = Reviewed()
    reviewed.learn("t", NoData(missing="x"), 100.0)
    assert reviewed.known("t", 109.9) == NoData(missing="x")
    assert reviewed.known("t", 110.0) is None


def test_cached_rejection_ends_when_the_clock_is_set_back() -> None:
    reviewed = Reviewed()
    reviewed.learn("t", NoData(missing="x"), 10_000.0)
    assert reviewed.known("t", 100.0) is None


def test_review_cache_is_bounded_and_evicts_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.autoscaler.token_review._KNOWN_MAX", 2)
    reviewed = Reviewed()
    for name in ("a", "b", "a", "c"):
        reviewed.learn(name, PROOF, 0.0)
    assert [reviewed.known(name, 1.0) for name in ("a", "b", "c")] == [PROOF, None, PROOF]


def test_review_cache_stores_no_token_text() -> None:
    reviewed = Reviewed()
    reviewed.learn("a token", PROOF, 0.0)
    assert "a token" not in repr(reviewed._known)


def test_token_reviews_are_paced_and_dropped_beyond_the_maximum_wait() -> None:
    pace = Pace(per_s=10.0, wait_max_s=0.15)
    waits = [pace.wait_s(5.0) for _ in range(4)]
    assert waits[:2] == [0.0, pytest.approx(0.1)]
    assert waits[2:] == [None, None]
    assert pace.wait_s(6.0) == 0.0
