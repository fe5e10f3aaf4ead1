"""Access to a private service."""

import pytest

from serving.activator.routing.sites import (
    AccessRule,
    access_refusal,
    caller_refusal,
    new_session,
    session_in_cookies,
    session_in_header,
)
from serving.core.model.accessrules import JwtRule, caller_rule
from serving.core.model.errors import InvalidValue
from serving.core.model.identities import CallerIdentity
from serving.core.traffic.policy import session_number
from serving.net.wire.tokens import access_token

_RULE = AccessRule(namespace="default", route="hello", version="")
_CART = CallerIdentity(namespace="shop", account="cart", service="cart")
_TOKEN = access_token(bytes(32), namespace="default", route="hello")


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


@pytest.mark.parametrize(
    ("own", "usual"),
    [
        ([], [bearer(_TOKEN)]),
        ([bearer(_TOKEN)], []),
        ([bearer(_TOKEN)], [b"Basic the app's own"]),
        ([], [f"bEaReR  {_TOKEN} ".encode()]),
    ],
)
def test_access_token_is_accepted_in_either_header(own: list[bytes], usual: list[bytes]) -> None:
    assert access_refusal(_RULE, _TOKEN, own=own, usual=usual) is None


@pytest.mark.parametrize(
    ("own", "usual"),
    [
        ([], [bearer("x")]),
        ([], [b"Basic " + _TOKEN.encode()]),
        ([bearer("x")], [bearer(_TOKEN)]),
        ([], [bearer(_TOKEN), bearer(_TOKEN)]),
        ([], [bearer("\xff")]),
    ],
)
def test_other_credentials_are_rejected_as_invalid_token(own: list[bytes], usual: list[bytes]) -> None:
    refusal = access_refusal(_RULE, _TOKEN, own=own, usual=usual)
    assert refusal is not None
    assert refusal.status == 401
    assert b'Bearer realm="default/hello", error="invalid_token"' in refusal.headers


def test_request_without_a_token_is_rejected_with_instructions() -> None:
    refusal = access_refusal(_RULE, _TOKEN, own=[], usual=[])
    assert refusal is not None
    assert b"send Authorization: Bearer TOKEN" in refusal.text
    assert refusal.headers.endswith(b'WWW-Authenticate: Bearer realm="default/hello"\r\n')


def test_access_token_differs_by_key_namespace_route_and_version() -> None:
    tokens = {
        access_token(bytes(32), namespace="default", route="hello"),
        access_token(bytes(32), namespace="other", route="hello"),
        access_token(bytes(32), namespace="default", route="hi"),
        access_token(bytes(32), namespace="default", route="hello", version="2"),
        access_token(bytes(31) + b"\1", namespace="default", route="hello"),
    }
    assert len(tokens) == 5


def test_session_cookie_round_trips() -> None:
    number, line = new_session(bytes(range(16)), is_secure=False)
    cookie = line.removeprefix(b"Set-Cookie: ").split(b";")[0]
    assert session_in_cookies([b"a=1; " + cookie + b"; b=2"]) == number
    assert line.endswith(b"; Path=/; HttpOnly; SameSite=Lax\r\n")


def test_session_cookie_is_secure_over_tls() -> None:
    assert new_session(bytes(16), is_secure=True)[1].endswith(b"; Secure\r\n")


@pytest.mark.parametrize("cookies", [[], [b""], [b"a=1"], [b"serving-session"], [b"serving-session=" + b"x" * 65]])
def test_request_without_a_valid_session_cookie_has_no_session(cookies: list[bytes]) -> None:
    assert session_in_cookies(cookies) is None


def test_session_is_read_from_the_first_header_value() -> None:
    assert session_in_header([b"ada", b"bob"]) == session_number(b"ada")
    assert session_in_header([b""]) is None
    assert session_in_header([]) is None


def only_cart(text: str) -> CallerIdentity:
    """Accept only the token of the service cart."""
    if text != "of cart":
        raise InvalidValue(text=text, expected="a token of a caller")
    return _CART


def limited_to(text: str) -> AccessRule:
    rule, wrong = caller_rule(text)
    assert wrong == []
    return AccessRule(namespace="default", route="hello", version="", is_private=False, callers=rule)


@pytest.mark.parametrize("text", ["*", "namespace/shop", "service/shop/cart", "serviceaccount/shop/cart"])
def test_an_allowed_caller_is_admitted(text: str) -> None:
    assert caller_refusal(limited_to(text), [b"of cart"], read=only_cart) is None


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        ([], b"send X-Serving-Caller: TOKEN, once"),
        ([b"of cart", b"of cart"], b"send X-Serving-Caller: TOKEN, once"),
        ([b"forged"], b"a token of a caller"),
        ([b"of cart"], b"namespace shop, serviceaccount cart, service cart is none of them"),
    ],
)
def test_other_caller_is_rejected_with_the_reason(tokens: list[bytes], why: bytes) -> None:
    refusal = caller_refusal(limited_to("service/shop/front"), tokens, read=only_cart)
    assert refusal is not None
    assert refusal.status == 403
    assert why in refusal.text


def test_rule_without_callers_admits_every_caller() -> None:
    assert caller_refusal(_RULE, [], read=only_cart) is None


def test_rule_is_lasting_unless_its_tokens_expire() -> None:
    assert _RULE.is_lasting
    assert limited_to("*").is_lasting
    assert not limited_to("namespace/shop").is_lasting
    assert not AccessRule(namespace="default", route="hello", version="", jwt=JwtRule()).is_lasting
