"""The OpenAPI schemas of the served kinds: v3 for current clients, a minimal v2 for old ones.

Clients read v3 for ``kubectl explain`` and to learn that the server validates fields (the parameter ``fieldValidation`` on
PATCH); otherwise they would validate themselves and need every schema. Custom resources have their CRD's schema, Kubernetes'
own kinds those of ``builtin_schemas``. kubectl 1.20 reads v2 as protobuf only, and leaves validation to the server if it is empty.
"""

import functools
import hashlib
from typing import Any

import msgspec

from serving.cluster.kinds import KINDS, Kind
from serving.home.schemas.crds import OPEN_SCHEMA, builtin_schemas, crds, described_schema, referred, schema_name
from serving.model.objects import Object

# Clients request the first, an invalid media type; a kube-apiserver responds with the second since 1.23.
PROTOBUF_ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_TITLE = "serving"
_GVK = "x-kubernetes-group-version-kind"


def openapi_v3_index() -> Object:
    """The response to ``/openapi/v3``: the URL of each group's document, with a hash for caching."""
    return {"paths": {place: {"serverRelativeURL": _url(place)} for place in _places()}}


def openapi_v3(place: str) -> Object | None:
    """The document of a group and version, such as "apis/apps/v1" or "api/v1"; None if it is unknown."""
    return _document(place) if place in _places() else None


def openapi_v2() -> Object:
    """A valid document without definitions."""
    return {"swagger": "2.0", "info": {"title": _TITLE, "version": "v1"}, "paths": {}, "definitions": {}}


def openapi_v2_protobuf() -> bytes:
    """The same as ``openapi.v2.Document``: fields 1 swagger, 2 info (1 title, 2 version), 8 paths, 9 definitions."""
    info = _field(1, _TITLE.encode()) + _field(2, b"v1")
    return _field(1, b"2.0") + _field(2, info) + _field(8, b"") + _field(9, b"")


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field. Short ones only: number below 16, less than 128 bytes, so that each is one byte."""
    assert number < 16, "a field's number must fit one byte with its type"
    assert len(data) < 128, "a length must fit one byte"
    return bytes([number << 3 | 2, len(data)]) + data


@functools.cache
def _places() -> dict[str, tuple[Kind, ...]]:
    found: dict[str, tuple[Kind, ...]] = {}
    for kind in KINDS:
        place = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
        found[place] = (*found.get(place, ()), kind)
    return found


@functools.cache
def _url(place: str) -> str:
    digest = hashlib.sha256(msgspec.json.encode(_document(place))).hexdigest()
    return f"/openapi/v3/{place}?hash={digest[:32].upper()}"


@functools.cache
def _document(place: str) -> Object:
    kinds = _places()[place]
    paths: Object = {}
    for kind in kinds:
        paths |= _paths(place, kind)
    schemas = {_name(kind): _schema(kind) for kind in kinds}
    waiting = [name for schema in schemas.values() for name in referred(schema)]
    while waiting:
        name = waiting.pop()
        if name not in schemas:
            schemas[name] = described_schema(name)
            waiting.extend(referred(schemas[name]))
    return {
        "openapi": "3.0.0",
        "info": {"title": _TITLE, "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _name(kind: Kind) -> str:
    """A schema's name: the group's parts in reverse, "dev.knative.serving.v1.Service", or that of Kubernetes' own schema."""
    if schema_name(kind) in builtin_schemas():
        return schema_name(kind)
    return ".".join([*reversed((kind.group or "core").split(".")), kind.version, kind.name])


def _gvk(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _schema(kind: Kind) -> Object:
    crd, name = crds().get(kind), schema_name(kind)
    known: dict[str, Any] = dict(crd.schema if crd else OPEN_SCHEMA)
    if crd is None and name in builtin_schemas():
        known = described_schema(name)
    return known | {_GVK: [_gvk(kind)]}


def _paths(place: str, kind: Kind) -> Object:
    scope = "/namespaces/{namespace}" if kind.namespaced else ""
    whole = f"/{place}{scope}/{kind.plural}"
    return {
        whole: {"get": _operation(kind, "list"), "post": _operation(kind, "post")},
        whole + "/{name}": {verb: _operation(kind, verb) for verb in ("get", "put", "patch", "delete")},
    }


def _operation(kind: Kind, verb: str) -> Object:
    parameters = [_parameter("dryRun"), _parameter("fieldManager"), _parameter("fieldValidation")]
    schema = {"$ref": f"#/components/schemas/{_name(kind)}"}
    return {
        "operationId": f"{verb}{kind.name}",
        "parameters": parameters if verb in {"post", "put", "patch"} else [],
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
        "x-kubernetes-action": verb,
        _GVK: _gvk(kind),
    }


def _parameter(name: str) -> Object:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
