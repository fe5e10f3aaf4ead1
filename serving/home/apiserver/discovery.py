"""Serves API discovery: ``/api``, ``/apis``, ``/apis/G/V``, their aggregated form, and the OpenAPI schemas.

The responses are built from ``kinds.py``. Newer clients request the aggregated form (``apidiscovery.k8s.io``), which
saves a request for each group. Older clients request each group.
"""

import functools
import hashlib
from typing import Any

import msgspec
from aiohttp import web

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object
from serving.home.apiserver.content import json_response
from serving.home.schemas.crds import OPEN_SCHEMA, builtin_schemas, crds, described_schema, referred, schema_name
from serving.net.cluster.kinds import DEPLOYMENT, KINDS, POD, SERVICE, Kind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_VIEW_VERBS = ["get", "list", "watch"]
_PART_VERBS = ["get", "patch", "update"]
# Kubernetes' own kinds in ``kubectl get all``.
_IN_ALL = {POD, SERVICE, DEPLOYMENT}
_AGGREGATED = ("v2", "v2beta1")

_UNKNOWN = "the server could not find the requested resource"

# Clients request the first, an invalid media type; kube-apiserver responds with the second since 1.23.
PROTOBUF_ACCEPT = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_TITLE = "serving"
_GVK = "x-kubernetes-group-version-kind"


def _group_versions() -> dict[str, list[str]]:
    """The versions of each group, the preferred one first, in the order of the kinds."""
    versions_by_group: dict[str, list[str]] = {}
    for kind in KINDS:
        versions = versions_by_group.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    return versions_by_group


def api_versions() -> Object:
    """The response to ``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list() -> Object:
    """The response to ``/apis``."""
    groups = [group_of(group) for group in _group_versions() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group_of(group: str) -> Object | None:
    """The response to ``/apis/G``; None for an unknown group."""
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version} for version in _group_versions().get(group, ())
    ]
    if not group or not versions:
        return None
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resource_list(group: str, version: str) -> Object | None:
    """The response to ``/apis/G/V`` or ``/api/v1``; None for an unknown version."""
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    if not kinds:
        return None
    resources = [entry for kind in kinds for entry in _entries(kind)]
    name = kinds[0].api_version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}


def aggregated_version(accept: str) -> str:
    """The version of aggregated discovery that the client prefers; "" if it accepts none."""
    first = accept.partition(",")[0].replace(" ", "")
    for version in _AGGREGATED:
        if "as=APIGroupDiscoveryList" in first and f";v={version};" in first + ";":
            return version
    return ""


def aggregated(version: str, *, core: bool) -> Object:
    """All groups with all resources: the core group for ``/api``, the others for ``/apis``."""
    items = [
        {
            "metadata": {"name": group},
            "versions": [_aggregated_version(group, group_version) for group_version in versions],
        }
        for group, versions in _group_versions().items()
        if (group == "") is core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_version(group: str, version: str) -> Object:
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    resources: list[Object] = []
    for kind in kinds:
        whole, *parts = _entries(kind)
        resources.append(
            {
                "resource": kind.plural,
                "responseKind": _kind_of(kind, whole),
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "singularResource": whole["singularName"],
                "verbs": whole["verbs"],
                "shortNames": whole["shortNames"],
                "categories": whole["categories"],
                "subresources": [
                    {
                        "subresource": part["name"].partition("/")[2],
                        "responseKind": _kind_of(kind, part),
                        "verbs": part["verbs"],
                    }
                    for part in parts
                ],
            }
        )
    return {"version": version, "resources": resources, "freshness": "Current"}


def _kind_of(kind: Kind, entry: Object) -> Object:
    group, version = entry.get("group", kind.group), entry.get("version", kind.version)
    return {"group": group, "version": version, "kind": entry["kind"]}


def _entries(kind: Kind) -> list[Object]:
    common = {"namespaced": kind.namespaced, "kind": kind.name}
    entries: list[Object] = [
        {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            **common,
            "verbs": _VIEW_VERBS if kind.is_view else _VERBS,
            "shortNames": list(kind.short_names),
            "categories": [*kind.categories, *(["all"] if kind in _IN_ALL else [])],
        }
    ]
    if kind.has_status and not kind.is_view:
        entries.append({"name": f"{kind.plural}/status", "singularName": "", **common, "verbs": _PART_VERBS})
    if kind.has_scale:
        scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        entries.append(
            {"name": f"{kind.plural}/scale", "singularName": "", **common, "verbs": _PART_VERBS} | scale,
        )
    if kind == POD:
        entries.append({"name": f"{kind.plural}/log", "singularName": "", **common, "verbs": ["get"]})
        for name, response in (
            ("attach", "PodAttachOptions"),
            ("exec", "PodExecOptions"),
            ("portforward", "PodPortForwardOptions"),
        ):
            verbs = {"namespaced": True, "kind": response, "verbs": ["create", "get"]}
            entries.append({"name": f"{kind.plural}/{name}", "singularName": "", **verbs})
        eviction = {"group": "policy", "version": "v1", "kind": "Eviction"}
        entries.append(
            {"name": f"{kind.plural}/eviction", "singularName": "", **common, "verbs": ["create"]} | eviction,
        )
    return entries


def discovery_response(raw_path: str, accept: str) -> web.Response | None:
    """The response to a discovery path; None for other paths."""
    version = aggregated_version(accept)
    document: Object | None
    match raw_path.strip("/").split("/"):
        case ["api" | "apis" as root] if version:
            response = json_response(aggregated(version, core=root == "api"))
            kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            response.headers["Content-Type"] = kind
            return response
        case ["api"]:
            document = api_versions()
        case ["apis"]:
            document = group_list()
        case ["api", version]:
            document = resource_list("", version)
        case ["apis", group]:
            document = group_of(group)
        case ["apis", group, version]:
            document = resource_list(group, version)
        case [""]:
            document = {
                "paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            }
        case _:
            return None
    if document is None:
        raise NotFound(_UNKNOWN)
    return json_response(document)


def openapi_v3_index() -> Object:
    """The response to ``/openapi/v3``: the URL of each group's document, with a hash for caching."""
    return {"paths": {place: {"serverRelativeURL": _url(place)} for place in _places()}}


def openapi_v3(place: str) -> Object | None:
    """The OpenAPI document of a group and version, such as "apis/apps/v1" or "api/v1"; None if unknown."""
    return _document(place) if place in _places() else None


def openapi_v2() -> Object:
    """The response to ``/openapi/v2``: a valid document without definitions."""
    return {"swagger": "2.0", "info": {"title": _TITLE, "version": "v1"}, "paths": {}, "definitions": {}}


def openapi_v2_protobuf() -> bytes:
    """``openapi.v2.Document`` as protobuf: fields 1 swagger, 2 info (1 title, 2 version), 8 paths, 9 definitions."""
    info = _field(1, _TITLE.encode()) + _field(2, b"v1")
    return _field(1, b"2.0") + _field(2, info) + _field(8, b"") + _field(9, b"")


def _field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited field. The number must be below 16, and the data shorter than 128 bytes."""
    assert number < 16, "a field's number must fit one byte with its type"
    assert len(data) < 128, "a length must fit one byte"
    return bytes([number << 3 | 2, len(data)]) + data


@functools.cache
def _places() -> dict[str, tuple[Kind, ...]]:
    kinds_by_place: dict[str, tuple[Kind, ...]] = {}
    for kind in KINDS:
        place = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
        kinds_by_place[place] = (*kinds_by_place.get(place, ()), kind)
    return kinds_by_place


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
    """The name of a kind's schema: reversed group, version and kind, as in "dev.knative.serving.v1.Service"."""
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
