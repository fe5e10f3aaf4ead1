"""TokenReviews, and the check of Host headers."""

import pytest

from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object
from serving.home.apiserver.requests import Fault
from serving.home.apiserver.reviews import LOOPBACK_HOSTS, KnownToken, TokenReviews, check_host
from serving.net.aio.clock import wall_s

TOKEN = KnownToken(namespace="n", pod="p", pod_uid="u", audiences=("us", "them"))


def status_of(known: KnownToken = TOKEN, *, name: str = "t", audiences: tuple[str, ...] = ("us",)) -> Object:
    reviews = TokenReviews({"t": known}.get)
    response = reviews.review({"spec": {"token": name, "audiences": list(audiences)}})
    assert (response["apiVersion"], response["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
    status: Object = response["status"]
    return status


def test_token_review_returns_account_and_pod() -> None:
    assert status_of() == {
        "authenticated": True,
        "audiences": ["us"],
        "user": {
            "username": "system:serviceaccount:n:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": ["p"],
                "authentication.kubernetes.io/pod-uid": ["u"],
            },
        },
    }


def test_unknown_or_expired_token_is_not_authenticated() -> None:
    expired = KnownToken(namespace="n", pod="p", pod_uid="u", audiences=("us",), until_s=wall_s() - 1)
    assert "authenticated" not in status_of(name="other")
    assert "authenticated" not in status_of(expired)


def test_token_for_another_audience_is_not_authenticated() -> None:
    assert "none of ['elsewhere']" in status_of(audiences=("elsewhere",))["error"]


def test_server_without_accounts_authenticates_no_token() -> None:
    response = TokenReviews().review({"spec": {"token": "t", "audiences": ["us"]}})
    assert "authenticated" not in response["status"]


def test_malformed_token_review_is_rejected() -> None:
    with pytest.raises(Fault, match="the body is not a TokenReview"):
        TokenReviews().review({"spec": 1})


@pytest.mark.parametrize("header", ["127.0.0.1:6080", "localhost", "LOCALHOST:1", "[::1]:6080", "[::1]"])
def test_loopback_host_headers_are_accepted(header: str) -> None:
    check_host(header, LOOPBACK_HOSTS)


@pytest.mark.parametrize(
    "header", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:6080", "[::2]"]
)
def test_other_host_headers_are_rejected_with_403(header: str) -> None:
    with pytest.raises(Fault) as caught:
        check_host(header, LOOPBACK_HOSTS)
    assert caught.value.code == 403


def test_user_token_review_has_role_and_namespaces() -> None:
    ann = Grant(user="ann", role=Role.VIEW, namespaces=frozenset({"shop", "team"}))
    reviews = TokenReviews()
    status = reviews.review({"spec": {"token": "ann.x"}}, {"ann.x": ann}.get)["status"]
    assert status["authenticated"] is True
    extra = {"serving.dev/role": ["view"], "serving.dev/namespaces": ["shop", "team"]}
    assert status["user"] == {"username": "ann", "groups": ["serving:view", "system:authenticated"], "extra": extra}
    for spec in ({"token": "bob.x"}, {"token": "ann.x", "audiences": ["autoscaler"]}):
        assert "authenticated" not in reviews.review({"spec": spec}, {"ann.x": ann}.get)["status"]
