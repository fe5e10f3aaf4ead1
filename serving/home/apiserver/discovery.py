"""Serves API discovery: ``/api``, ``/apis``, ``/apis/G/V``, and the aggregated form of all of them.

Built from ``kinds.py``. Newer clients request the aggregated form (``apidiscovery.k8s.io``), which saves a request for each
group; older ones walk the groups.
"""

from aiohttp import web

from serving.cluster.kinds import DEPLOYMENT, KINDS, POD, SERVICE, Kind
from serving.home.apiserver.responses import json_response
from serving.model.errors import NotFound
from serving.model.objects import Object

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_VIEW_VERBS = ["get", "list", "watch"]
_PART_VERBS = ["get", "patch", "update"]
# The kinds of Kubernetes itself in ``kubectl get all``.
_IN_ALL = {POD, SERVICE, DEPLOYMENT}
_AGGREGATED = ("v2", "v2beta1")

_UNKNOWN = "the server could not find the requested resource"


def _group_versions() -> dict[str, list[str]]:
    """The versions of each group, the preferred one first, in the order of the kinds."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        versions = found.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    return found


def api_versions() -> Object:
    """The response to ``/api``."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list() -> Object:
    """The response to ``/apis``."""
    groups = [group_of(group) for group in _group_versions() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group_of(group: str) -> Object | None:
    """The response to ``/apis/G``; None for an unknown group."""
    versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in _group_versions().get(group, ())]
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
    """The version of the aggregated form that the client prefers; "" for none."""
    first = accept.partition(",")[0].replace(" ", "")
    for version in _AGGREGATED:
        if "as=APIGroupDiscoveryList" in first and f";v={version};" in first + ";":
            return version
    return ""


def aggregated(version: str, *, core: bool) -> Object:
    """All groups with all resources: the core group for ``/api``, the others for ``/apis``."""
    items = [
        {"metadata": {"name": group}, "versions": [_aggregated_version(group, one) for one in versions]}
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
    """A kind and its subresources as ``/apis/G/V`` lists them."""
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
    found: Object | None
    match raw_path.strip("/").split("/"):
        case ["api" | "apis" as root] if version:
            response = json_response(aggregated(version, core=root == "api"))
            kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            response.headers["Content-Type"] = kind
            return response
        case ["api"]:
            found = api_versions()
        case ["apis"]:
            found = group_list()
        case ["api", version]:
            found = resource_list("", version)
        case ["apis", group]:
            found = group_of(group)
        case ["apis", group, version]:
            found = resource_list(group, version)
        case [""]:
            found = {
                "paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            }
        case _:
            return None
    if found is None:
        raise NotFound(_UNKNOWN)
    return json_response(found)
