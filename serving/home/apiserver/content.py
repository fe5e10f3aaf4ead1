"""Content negotiation: the Accept header, and request bodies as JSON, YAML or protobuf.

A client lists media types in order of preference, and the first supported one wins. Objects are written as JSON, as a
``Table`` or as ``PartialObjectMetadata``. Protobuf is read for Go clients (``protobuf.py``) and never written.
"""

import enum
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import yaml

from serving.home.apiserver.protobuf import MEDIA_TYPE, decode_protobuf
from serving.home.apiserver.requests import Fault

_JSON_TYPES = {"application/json", "application/*", "*/*"}
_YAML_TYPES = {"application/yaml", "application/x-yaml", "text/yaml"}

_SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Shape(enum.StrEnum):
    """The shape of objects in a response; the values are the ``as`` parameter of the Accept header."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class WantedShape(msgspec.Struct, frozen=True):
    """A shape and its version of ``meta.k8s.io``."""

    shape: Shape
    version: str = "v1"


def wanted(accept: str) -> WantedShape:
    """The first supported entry of the Accept header. Raises ``Fault`` 406."""
    for clause in accept.split(",") if accept.strip() else ("*/*",):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media.lower() not in _JSON_TYPES:
            continue
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        shape, version = given.get("as", ""), given.get("v", "v1")
        known = version in {"v1", "v1beta1"} and given.get("g", "meta.k8s.io") == "meta.k8s.io"
        if not shape:
            return WantedShape(Shape.WHOLE)
        if shape in list(Shape) and known:
            return WantedShape(Shape(shape), version)
    raise Fault(406, "only the following media types are accepted: application/json, application/json;as=Table")


def decode_body(data: bytes, content_type: str) -> Any:  # noqa: ANN401 - whatever was sent
    """Decode a body. Raises ``Fault`` 400 or 415."""
    media = content_type.partition(";")[0].strip().lower()
    if media == MEDIA_TYPE:
        return decode_protobuf(data)
    if media in _YAML_TYPES or media.endswith("+yaml"):
        return _from_yaml(data)
    if media and media != "application/json" and not media.endswith("+json"):
        raise Fault(415, f"the body of the request was in an unknown format - accepted are JSON and YAML, not {media}")
    return _decoded(msgspec.json.decode, data)


def duplicate_fields(data: bytes, content_type: str = "") -> list[str]:
    """Duplicate keys in a JSON or YAML body, in order of appearance.

    A parser keeps the last value of each.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media == MEDIA_TYPE:
        return []
    if media in _YAML_TYPES or media.endswith("+yaml"):
        return _duplicate_yaml_keys(yaml.compose(data, Loader=_SAFE_LOADER))
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.extend(_repeated(key for key, _ in pairs))

    json.loads(data, object_pairs_hook=note)
    return found


def _duplicate_yaml_keys(node: yaml.Node | None) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [key for child in node.value for key in _duplicate_yaml_keys(child)]
    if not isinstance(node, yaml.MappingNode):
        return []
    below = [key for _, child in node.value for key in _duplicate_yaml_keys(child)]
    return [*below, *_repeated(str(key.value) for key, _ in node.value)]


def _repeated(keys: Iterable[str]) -> list[str]:
    """Keys after their first occurrence."""
    seen: set[str] = set()
    found: list[str] = []
    for key in keys:
        if key in seen:
            found.append(key)
        seen.add(key)
    return found


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:  # noqa: ANN401 - whatever was sent
    try:
        return decode(data)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise Fault(400, f"the object provided is unrecognized: {error}") from error


class _YamlLoader(_SAFE_LOADER):  # type: ignore[misc, valid-type]
    """YAML with the types of JSON: no dates."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _from_yaml(data: bytes) -> Any:  # noqa: ANN401 - whatever was sent
    # A few lines of aliases can expand to gigabytes.
    if any(isinstance(event, yaml.events.AliasEvent) for event in _decoded(_events, data)):
        raise Fault(400, "aliases are not taken in YAML")
    return _decoded(lambda text: yaml.load(text, Loader=_YamlLoader), data)  # noqa: S506 - a safe loader


def _events(data: bytes) -> list[object]:
    return list(yaml.parse(data, Loader=_SAFE_LOADER))
