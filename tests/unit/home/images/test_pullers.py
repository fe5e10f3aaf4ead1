import base64
import json
from typing import Any

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.home.images.pullers import credentials_of

PAIR = base64.b64encode(b"me:hush").decode()


def new_secret(content: object, key: str = ".dockerconfigjson") -> Object:
    return {"metadata": {"name": "s"}, "data": {key: base64.b64encode(json.dumps(content).encode()).decode()}}


def credentials(*secrets: Object) -> Any:  # noqa: ANN401 - JSON
    return json.loads(credentials_of(secrets))


def test_credentials_of_all_secrets_are_merged_with_first_preferred() -> None:
    secret = new_secret({"auths": {"a.example": {"auth": PAIR, "email": "me@example"}}})
    two = new_secret({"auths": {"a.example": {"auth": "other"}, "b.example": {"auth": "b"}}})
    assert credentials(secret, two) == {"auths": {"a.example": {"auth": PAIR}, "b.example": {"auth": "b"}}}


@pytest.mark.parametrize("key", [".dockercfg", ".dockerconfigjson"])
def test_auth_is_derived_from_username_and_password(key: str) -> None:
    entries = {"a.example": {"username": "me", "password": "hush"}}
    content = entries if key == ".dockercfg" else {"auths": entries}
    assert credentials(new_secret(content, key)) == {"auths": {"a.example": {"auth": PAIR}}}


def test_credentials_without_secrets_are_empty() -> None:
    assert credentials_of([]) == b""


@pytest.mark.parametrize(
    "secret",
    [
        {"metadata": {"name": "s"}},
        {"metadata": {"name": "s"}, "data": {".dockerconfigjson": "!"}},
        {"metadata": {"name": "s"}, "data": {".dockerconfigjson": base64.b64encode(b"{").decode()}},
        new_secret([]),
        new_secret({"auths": {"a.example": {"username": "me"}}}),
        new_secret({"auths": {"a.example": "me"}}),
        {"metadata": {"name": "login"}, "data": {".dockercfg": base64.b64encode(b"[" * 5000).decode()}},
        {"metadata": {"name": "login"}, "data": {".dockercfg": base64.b64encode(b'{"\xff":1}').decode()}},
    ],
)
def test_secret_without_valid_credentials_is_rejected(secret: Object) -> None:
    with pytest.raises(InvalidValue) as raised:
        credentials_of([secret])
    assert raised.value.expected.startswith("a Secret of type kubernetes.io/dockerconfigjson")
