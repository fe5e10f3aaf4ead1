"""Credentials in pull Secrets; ``tests/unit/home/images/test_pullers.py`` tests invalid Secrets."""

import base64
import json

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import parse_reference
from serving.core.model.pullsecrets import auth_for, auths_of

AUTHS = {
    "https://index.docker.io/v1/": "hub",
    "r.example:5000": "host",
    "r.example:5000/team": "folder",
    "*.cloud.example": "star",
}


@pytest.mark.parametrize(
    ("image", "auth"),
    [
        ("nginx", "hub"),
        ("r.example:5000/app", "host"),
        ("r.example:5000/team/app", "folder"),
        ("r.example:5000/teams/app", "host"),
        ("a.cloud.example/app", "star"),
        ("a.b.cloud.example/app", ""),
        ("other.example/app", ""),
    ],
)
def test_longest_matching_registry_key_has_credentials(image: str, auth: str) -> None:
    assert auth_for(parse_reference(image), AUTHS) == auth


def test_first_secret_overrides_second() -> None:
    def secret(auth: str) -> dict[str, object]:
        content = json.dumps({"auths": {"r.example": {"auth": auth}}}).encode()
        return {"metadata": {"name": "s"}, "data": {".dockerconfigjson": base64.b64encode(content).decode()}}

    assert auths_of([secret("one"), secret("two")]) == {"r.example": "one"}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {".dockerconfigjson": "no base64"},
        {".dockerconfigjson": base64.b64encode(b"[]").decode()},
        {".dockercfg": base64.b64encode(b'{"r.example": {"username": "u"}}').decode()},
    ],
)
def test_secret_without_credentials_is_reported_by_name(data: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match="'s'"):
        auths_of([{"metadata": {"name": "s"}, "data": data}])
