"""Credentials for registries in Secrets, as kubectl and Docker write them. Pure."""

import base64
import binascii
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.imagereference import ImageReference
from serving.core.model.objects import Object, name_of

_CONFIG, _LEGACY = ".dockerconfigjson", ".dockercfg"
_EXPECTED = (
    f'a Secret of type kubernetes.io/dockerconfigjson, with {{"auths": {{"REGISTRY": {{"auth": ...}}}}}} in {_CONFIG}'
)
# Names of Docker Hub in credentials files.
_HUB = {"index.docker.io", "registry-1.docker.io"}


def auths_of(secrets: Iterable[Object]) -> dict[str, str]:
    """Registry credentials in Secrets, by registry, as NAME:PASSWORD in base64.

    The first Secret with a registry wins. Raises ``InvalidValue`` if a Secret has no credentials.
    """
    auths: dict[str, str] = {}
    for secret in secrets:
        auths = {**_auths_of(secret), **auths}
    return auths


def auth_for(reference: ImageReference, auths: Mapping[str, str]) -> str:
    """The credentials for an image, chosen as by a kubelet: the longest matching registry or folder; else ""."""
    image = f"{reference.registry}/{reference.repository}".split("/")
    matching = [(key, auth) for key, auth in auths.items() if _matches(_parts(key), image)]
    return max(matching, key=lambda item: len(_parts(item[0])))[1] if matching else ""


def _parts(key: str) -> list[str]:
    """The host and folders of a registry key. "https://index.docker.io/v1/" is Docker Hub's key."""
    host, *path = key.partition("://")[2].split("/") if "://" in key else key.split("/")
    folders = [folder for folder in path if folder and folder not in ("v1", "v2")]
    return ["docker.io" if host in _HUB else host, *folders]


def _matches(parts: list[str], image: list[str]) -> bool:
    # A star matches within one DNS label of the host.
    is_host = parts[0].count(".") == image[0].count(".") and fnmatch.fnmatchcase(image[0], parts[0])
    return is_host and parts[1:] == image[1 : len(parts)]


def _auths_of(secret: Object) -> dict[str, str]:
    data: Mapping[str, str] = secret.get("data") or {}
    try:
        entries = _decoded(data[_CONFIG])["auths"] if _CONFIG in data else _decoded(data[_LEGACY])
        return {registry: _auth_of(entry) for registry, entry in entries.items()}
    except (KeyError, TypeError, AttributeError, ValueError, *UNREADABLE) as error:
        raise InvalidValue(text=name_of(secret), expected=_EXPECTED) from error


def _decoded(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(text) from error


def _auth_of(entry: Mapping[str, str]) -> str:
    """A registry entry's credentials in base64; some tools omit the field ``auth``."""
    return entry.get("auth") or base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
