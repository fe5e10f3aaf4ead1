"""The rules of allow-from and jwt."""

import pytest

from serving.core.model.accessrules import AllowedCaller, CallerRule, JwtRule, caller_rule, is_key_url, jwt_rule
from serving.core.model.identities import CallerIdentity

ISSUER = "https://login.example.com"
FRONT = CallerIdentity(namespace="shop", account="cart", service="front")


def admits(text: str, caller: CallerIdentity = FRONT) -> bool:
    return caller_rule(text)[0].admits(caller)


@pytest.mark.parametrize(
    "text",
    [
        "namespace/shop",
        "serviceaccount/shop/cart",
        "service/shop/front",
        "*",
        "namespace/other, service/shop/front",
        "namespace/other\nservice/shop/front",
    ],
)
def test_matching_caller_entry_admits_caller(text: str) -> None:
    assert admits(text)
    assert caller_rule(text)[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "namespace/other",
        "serviceaccount/other/cart",
        "serviceaccount/shop/front",
        "service/shop/cart",
        "service/other/front",
    ],
)
def test_caller_without_matching_entry_is_denied(text: str) -> None:
    assert not admits(text)
    assert caller_rule(text)[1] == []


def test_pod_without_service_does_not_match_service_entry() -> None:
    assert not admits("service/shop/front", CallerIdentity(namespace="shop", account="cart"))


@pytest.mark.parametrize(
    "wrong",
    [
        "shop",
        "namespace/",
        "namespace/Shop",
        "service/shop",
        "service//front",
        "namespace/shop/x",
        "pod/shop/p",
        "nam espace/x",
    ],
)
def test_invalid_caller_entry_is_reported_and_admits_no_caller(wrong: str) -> None:
    rule, problems = caller_rule(wrong)
    assert problems
    assert not rule.admits(FRONT)


def test_star_with_other_entries_is_reported_and_ignored() -> None:
    rule, problems = caller_rule("*, namespace/other")
    assert problems == ["*"]
    assert rule == CallerRule(callers=(AllowedCaller(namespace="other"),))


def test_entries_beyond_64_are_reported_and_ignored() -> None:
    rule, problems = caller_rule(", ".join(f"namespace/n{number}" for number in range(70)))
    assert (len(rule.callers), len(problems)) == (64, 6)


def test_jwt_rule_has_issuer_audiences_key_url_and_claims() -> None:
    text = f"issuer={ISSUER}, audience=api, audience=web,jwks={ISSUER}/keys?a=b, claims=sub+email_verified"
    expected = JwtRule(
        issuer=ISSUER, audiences=("api", "web"), jwks=f"{ISSUER}/keys?a=b", claims=("sub", "email_verified")
    )
    assert jwt_rule(text) == (expected, [])
    assert expected.keys_url == f"{ISSUER}/keys?a=b"


def test_jwt_rule_without_jwks_uses_discovery_url_of_issuer() -> None:
    rule, problems = jwt_rule(f"issuer={ISSUER}/, audience=api")
    assert problems == []
    assert rule.claims == ("sub",)
    assert rule.keys_url == f"{ISSUER}/.well-known/openid-configuration"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8/k",
        "http://localhost/k",
        "http://[::1]:8/k",
        "http://i.n.svc.cluster.local/k",
        f"{ISSUER}:8443/k",
    ],
)
def test_http_key_url_is_valid_on_loopback_and_in_cluster(url: str) -> None:
    assert jwt_rule(f"issuer={ISSUER}, audience=api, jwks={url}")[1] == []


@pytest.mark.parametrize("url", ["https://x/a,b", "https://x/a b", "https://x/a\r\nHost: y", "", "https://"])
def test_malformed_key_url_is_invalid(url: str) -> None:
    assert not is_key_url(url)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "exactly one issuer"),
        (f"issuer={ISSUER}", "audience=NAME is needed"),
        (f"issuer={ISSUER}, issuer={ISSUER}, audience=a", "exactly one issuer"),
        ("audience=a, jwks=https://x", "exactly one issuer"),
        (f"issuer={ISSUER}, audience=a, jwks=https://x, jwks=https://y", "at most one jwks"),
        (f"issuer={ISSUER}, audience=a, key=x", "is none of"),
        (f"issuer={ISSUER}, audience=", "is none of"),
        (f"issuer={ISSUER}, audience=a b", "is none of"),
        (f"issuer={ISSUER}, audience=a, claims=a b", "is none of"),
        (f"issuer={ISSUER}, audience=a, claims=a+", "claims=NAME"),
        (f"issuer={ISSUER}, audience=a, claims=x:y", "claims=NAME"),
        (f"issuer={ISSUER}, audience=a, claims={'+'.join('abcdefghijklmnopq')}", "claims=NAME"),
        (f"issuer={ISSUER}, audience=a, jwks=http://login.example.com/keys", "no https://"),
        (f"issuer={ISSUER}, audience=a, jwks=file:///etc/passwd", "no https://"),
        (f"issuer={ISSUER}, audience=a, jwks=https://user@x/k", "no https://"),
        (f"issuer={ISSUER}, audience=a, jwks=https://x:99999/k", "no https://"),
        (f"issuer={ISSUER}, audience=a, jwks=http://localhost.evil.example/k", "no https://"),
        ("issuer=login, audience=a", "no https://"),
        (",".join([f"issuer={ISSUER}", *(f"audience=a{number}" for number in range(17))]), "at most 16"),
    ],
)
def test_invalid_jwt_rule_is_reported_and_empty(text: str, problem: str) -> None:
    rule, problems = jwt_rule(text)
    assert rule == JwtRule()
    assert any(problem in each_problem for each_problem in problems), problems
