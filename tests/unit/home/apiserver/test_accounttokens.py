import base64
import json

import pytest

from serving.core.model.objects import Object
from serving.home.apiserver.accounttokens import account_token, read_account_token
from serving.home.apiserver.reviews import KnownToken, TokenReviews

KEY = bytes(32)
POD: Object = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"serviceAccountName": "robot"}}


def token(now_s: float = 1_000_000.0, *, audience: str = "vault", lifetime_s: int = 600) -> str:
    return account_token(KEY, POD, audience=audience, lifetime_s=lifetime_s, now_s=now_s)


def claims_of(text: str) -> Object:
    part = text.split(".")[1]
    document: Object = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return document


def test_token_claims_have_audience_account_and_pod() -> None:
    claims = claims_of(token())
    assert (claims["aud"], claims["sub"]) == (["vault"], "system:serviceaccount:n:robot")
    assert claims["kubernetes.io"]["pod"] == {"name": "p", "uid": "u"}
    assert claims["exp"] - claims["iat"] == 600


def test_token_is_reused_within_half_its_lifetime() -> None:
    # Slots of 300 s: 999_900, 1_000_200, ...
    assert token(999_900.0) == token(1_000_199.0) != token(1_000_200.0)
    assert claims_of(token(1_000_199.0))["exp"] - 1_000_199 >= 300


def test_token_is_verified_with_its_key() -> None:
    known = KnownToken(namespace="n", pod="p", pod_uid="u", audiences=("vault",), account="robot", until_s=1_000_500.0)
    assert read_account_token(KEY, token()) == known
    assert read_account_token(bytes(31) + b"x", token()) is None


@pytest.mark.parametrize("text", ["", "a.b.c", "...", "é", "eyJ.eyJ"])
def test_invalid_token_has_no_owner(text: str) -> None:
    assert read_account_token(KEY, text) is None


def test_review_without_audiences_rejects_tokens_for_others() -> None:
    def is_accepted(audience: str) -> bool:
        text = account_token(KEY, POD, audience=audience, lifetime_s=600, now_s=4e9)
        reviews = TokenReviews(lambda bearer: read_account_token(KEY, bearer))
        return bool(reviews.review({"spec": {"token": text}})["status"].get("authenticated"))

    assert is_accepted("")
    assert not is_accepted("vault")
