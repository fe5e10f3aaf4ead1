"""Secrets with the credentials of registries, as ``imagePullSecrets`` name them, and what a pull takes of them. Pure.

Input: Secrets of the types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg; output: one file of credentials as Docker,
podman and skopeo read it (containers-auth.json(5)). Of two Secrets with one registry the first counts.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.model.errors import InvalidValue
from serving.model.objects import Object, name_of

_CONFIG, _LEGACY = ".dockerconfigjson", ".dockercfg"
_EXPECTED = (
    f'a Secret of type kubernetes.io/dockerconfigjson, with {{"auths": {{"REGISTRY": {{"auth": ...}}}}}} in {_CONFIG}'
)


def credentials_of(secrets: Iterable[Object]) -> bytes:
    """The file of credentials; empty without any. Raises ``InvalidValue`` for a Secret that has none."""
    auths: dict[str, Object] = {}
    for secret in secrets:
        auths = {**_auths_of(secret), **auths}
    return msgspec.json.encode({"auths": auths}) if auths else b""


def _auths_of(secret: Object) -> dict[str, Object]:
    data: Mapping[str, str] = secret.get("data") or {}
    try:
        found = _decoded(data[_CONFIG])["auths"] if _CONFIG in data else _decoded(data[_LEGACY])
        return {registry: {"auth": _auth_of(entry)} for registry, entry in found.items()}
    except (KeyError, TypeError, AttributeError, ValueError, msgspec.DecodeError) as error:
        raise InvalidValue(text=name_of(secret), expected=_EXPECTED) from error


def _decoded(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(text) from error


def _auth_of(entry: Mapping[str, str]) -> str:
    """The pair in base64, which kubectl writes beside its parts and other tools leave out."""
    return entry.get("auth") or base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
