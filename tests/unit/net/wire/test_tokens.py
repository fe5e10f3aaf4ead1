"""Secrets are derived, differ for each purpose and name, and are compared safely."""

import hashlib
import hmac
from pathlib import Path

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.identities import CallerIdentity
from serving.net.wire.tokens import (
    activator_token,
    autoscaler_token,
    caller_key,
    caller_token,
    matches,
    pod_secret,
    pod_token,
    prompt_secret,
    read_caller_token,
    read_key,
    revision_secret,
    revision_token,
)

KEY = bytes(range(32))


def test_pod_token_is_hmac_of_purpose_and_names() -> None:
    expected = hmac.new(KEY, b"stat/n/r/p", hashlib.sha256).hexdigest()
    assert pod_token(KEY, namespace="n", revision="r", pod="p") == expected


def test_tokens_differ_by_purpose_name_and_key() -> None:
    tokens = {
        pod_token(KEY, namespace="n", revision="r", pod="p"),
        revision_token(KEY, namespace="n", revision="r"),
        pod_token(KEY, namespace="n", revision="r", pod="q"),
        pod_token(KEY, namespace="n", revision="s", pod="p"),
        pod_token(KEY, namespace="m", revision="r", pod="p"),
        pod_token(bytes(32), namespace="n", revision="r", pod="p"),
        activator_token(KEY, name="p"),
        autoscaler_token(KEY, name="p"),
        pod_secret(KEY, namespace="n", pod="p"),
        pod_secret(KEY, namespace="m", pod="p"),
        revision_secret(KEY, namespace="n", uid="p"),
        revision_secret(KEY, namespace="m", uid="p"),
        revision_secret(KEY, namespace="n", uid="q"),
        prompt_secret(KEY).decode(),
        prompt_secret(bytes(32)).decode(),
    }
    assert len(tokens) == 15


def test_name_with_slash_raises_assertion_error() -> None:
    with pytest.raises(AssertionError):
        pod_secret(KEY, namespace="a/b", pod="c")


@pytest.mark.parametrize(
    ("secret", "same"), [("abc", True), (b"abc", True), ("abd", False), ("", False), ("\udcff", False)]
)
def test_secrets_are_compared_as_text_or_bytes(secret: str | bytes, same: bool) -> None:
    assert matches(secret, "abc") is same


def test_key_file_has_exactly_32_bytes(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    assert read_key(path) == KEY
    path.write_bytes(KEY[1:])
    with pytest.raises(InvalidValue, match="32 bytes"):
        read_key(path)


def test_caller_token_depends_on_all_claims() -> None:
    caller = CallerIdentity(namespace="shop", account="cart", service="front")
    tokens = {
        caller_token(KEY, caller_identity, until_s=until_s)
        for caller_identity in (
            caller,
            msgspec.structs.replace(caller, account="other"),
            CallerIdentity(namespace="shop", account="cart"),
        )
        for until_s in (1.0, 2.0)
    }
    assert len(tokens) == 6
    assert all(token.startswith("v1.") for token in tokens)


def test_caller_token_is_valid_until_it_expires() -> None:
    caller = CallerIdentity(namespace="shop", account="cart", service="front")
    text = caller_token(KEY, caller, until_s=100.0)
    caller_identity = read_caller_token(KEY, text, now_s=99.0)
    assert (caller_identity.namespace, caller_identity.account, caller_identity.service) == ("shop", "cart", "front")
    with pytest.raises(InvalidValue, match="expired"):
        read_caller_token(KEY, text, now_s=100.0)


@pytest.mark.parametrize("text", ["", "v1", "v1.", "v1..x", "v1.a/b.c", "v0.a.b", "v1.a.b", "\udcff.a.b"])
def test_invalid_caller_token_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue, match="the token"):
        read_caller_token(KEY, text, now_s=0.0)


def test_caller_key_differs_by_pod() -> None:
    assert len({caller_key(KEY, namespace=space, pod=pod) for space in "ab" for pod in "cd"}) == 4
