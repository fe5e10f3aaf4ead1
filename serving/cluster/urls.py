"""Paths, queries and bodies of calls to a Kubernetes API. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from serving.cluster.kinds import POD, Kind
from serving.model.objects import Object


def object_path(kind: Kind, namespace: str, name: str = "", *, subresource: str | None = None) -> str:
    """Where the API has an object, or all of a kind where there is no name."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    where = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    tail = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
    return f"{root}{where}/{kind.plural}{tail}"


def query_of(**parameters: str) -> dict[str, str]:
    """The parameters that are not empty."""
    return {name: value for name, value in parameters.items() if value}


def dry_run_query(dry_run: bool) -> dict[str, str]:  # noqa: FBT001 - the port's own flag
    """The query of a write, which a dry run does not carry out."""
    return {"dryRun": "All"} if dry_run else {}


def with_type(kind: Kind, body: Mapping[str, Any]) -> Object:
    """The body with the type of its kind, unless it has one."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def eviction_path(namespace: str, name: str) -> str:
    """Where an eviction of a pod is created."""
    return object_path(POD, namespace, name, subresource="eviction")


def eviction_body(namespace: str, name: str, uid: str | None) -> Object:
    """An Eviction of policy/v1; with a uid, of that pod only."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {} if uid is None else {"preconditions": {"uid": uid}},
    }
