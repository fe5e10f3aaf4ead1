"""The HTTP details of the Kubernetes API: paths, queries, bodies of deletions, errors, and permissions of calls."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from serving.core.model.errors import (
    UNREADABLE,
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Problem,
    TooManyRequests,
    Unavailable,
    Unsupported,
    UnsupportedMediaType,
)
from serving.core.model.objects import Object
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Delete, Evict

SERVER_NAME = "serving"
"""The header Server of this project's API server, which has ``TOGETHER_PATH``."""

TOGETHER_PATH = "/serving/writes"
"""POST executes several writes."""

_VARIABLE = "SERVING_KUBE_RECORD"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TEXT_LENGTH_MAX = 500

_BY_STATUS: dict[int, type[ClusterError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Unsupported,
    409: Conflict,
    410: Gone,
    415: UnsupportedMediaType,
    429: TooManyRequests,
    501: Unsupported,
}


class WriteCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A write as a request of its own, or as a part of a request with several."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Any
    content_type: str = "application/json"


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a write, in a request with several writes."""

    status: int
    body: Any


def object_path(kind: Kind, namespace: str, name: str = "", *, subresource: str | None = None) -> str:
    """The API path of an object, or of all objects of the kind if ``name`` is empty."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    where = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    tail = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
    return f"{root}{where}/{kind.plural}{tail}"


def query_of(**parameters: str) -> dict[str, str]:
    """The non-empty query parameters."""
    return {name: value for name, value in parameters.items() if value}


def dry_run_query(dry_run: bool) -> dict[str, str]:  # noqa: FBT001 - the port's own flag
    """The query parameters of a write. With ``dry_run``, the server does not store the result."""
    return {"dryRun": "All"} if dry_run else {}


def listed_kind(api_version: str, name: str, resources: Sequence[Mapping[str, Any]]) -> Kind | None:
    """The kind of this name in the discovery response of an API version; None if it is not listed."""
    group, _, version = api_version.rpartition("/")
    names = {str(resource.get("name")) for resource in resources}
    for resource in resources:
        plural = str(resource.get("name"))
        if resource.get("kind") == name and "/" not in plural:
            return Kind(
                group=group,
                version=version,
                name=name,
                plural=plural,
                namespaced=bool(resource.get("namespaced")),
                has_scale=f"{plural}/scale" in names,
            )
    return None


def with_type(kind: Kind, body: Mapping[str, Any]) -> Object:
    """Add the kind's ``apiVersion`` and ``kind`` to a body that lacks them."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def deletion_body(write: Delete) -> Object:
    """The DeleteOptions of a deletion."""
    preconditions = {"uid": write.uid, "resourceVersion": write.resource_version}
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": write.propagation,
        "preconditions": {key: value for key, value in preconditions.items() if value is not None},
        **({} if write.grace_s is None else {"gracePeriodSeconds": write.grace_s}),
    }


def eviction_body(write: Evict) -> Object:
    """An Eviction of policy/v1. If the write has a uid, only a pod with this uid is evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": write.namespace, "name": write.name},
        "deleteOptions": {} if write.uid is None else {"preconditions": {"uid": write.uid}},
    }


class CallRecorder:
    """Records the distinct API calls of a process to a file.

    Each new pair of verb and resource is written immediately, so that the file is complete even if the daemon is
    killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    def add(self, method: str, path: str, query: Mapping[str, str]) -> None:
        """Record a call."""
        permission = permission_of(method, path, query)
        if permission not in self._seen:
            self._seen.add(permission)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{permission}\n")


def recorder_from_environment() -> CallRecorder | None:
    """The recorder configured in the environment; None without one."""
    path = os.environ.get(_VARIABLE)
    return CallRecorder(Path(path)) if path else None


def permission_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """The verb and resource of a call: GET /apis/apps/v1/deployments with watch=true is "watch deployments.apps"."""
    _, root, *rest = path.split("/")
    group = rest.pop(0) if root == "apis" else ""
    rest.pop(0)
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return "get discovery"
    plural, name, *parts = [*rest, ""] if len(rest) == 1 else rest
    resource = "/".join([f"{plural}.{group}" if group else plural, *parts])
    verb = _VERBS.get(method) or ("watch" if query.get("watch") else "get" if name else "list")
    return f"{verb} {resource}"


class _StatusCause(msgspec.Struct):
    field: str = ""
    message: str = ""


class _StatusDetails(msgspec.Struct):
    causes: list[_StatusCause] | None = None


class _StatusReply(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _StatusDetails | None = None


def error_of(status: int, body: bytes, retry_after: str = "") -> ClusterError:
    """The error for a response with status 400 or more. ``retry_after`` is the text of the Retry-After header."""
    try:
        reply = msgspec.json.decode(body, type=_StatusReply)
    except UNREADABLE:
        text = body[:_TEXT_LENGTH_MAX].decode("utf-8", "replace").strip()
        reply = _StatusReply(message=f"HTTP {status}: {text}" if text else f"HTTP {status} without a text")
    return _error(status, reply, retry_after)


def event_error(status: Mapping[str, Any]) -> ClusterError:
    """The error for an ERROR event of a watch."""
    try:
        reply = msgspec.convert(status, type=_StatusReply)
    except msgspec.ValidationError:
        reply = _StatusReply(message="the watch failed without a reason")
    return _error(reply.code or Unavailable.status, reply, "")


def _error(status: int, reply: _StatusReply, retry_after: str) -> ClusterError:
    message = reply.message or f"HTTP {status} {reply.reason}".strip()
    if status == AlreadyExists.status and reply.reason == AlreadyExists.reason:
        return AlreadyExists(message)
    if status in _BY_STATUS:
        wait = f" (asked to wait {retry_after} s)" if retry_after and status == TooManyRequests.status else ""
        return _BY_STATUS[status](message + wait)
    if 400 <= status < 500 and status != 408:
        causes = (reply.details.causes if reply.details else None) or []
        return Invalid(
            message, [Problem(where=cause.field, what=cause.message, expected="see the message") for cause in causes]
        )
    return Unavailable(f"{message} (asked to wait {retry_after} s)" if retry_after else message)
