"""Parses API requests: the target in the path, and the field manager. Builds ``Status`` responses.

A path of an unknown kind is ``NotFound``, as on a real server; the deprecated ``/watch/`` paths are ``Unsupported``.
"""

from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import unquote

import msgspec

from serving.core.model.errors import ApplyConflict, ClusterError, Gone, Invalid, NotFound, Unsupported
from serving.core.model.objects import Object
from serving.net.cluster.kinds import KINDS, NAMESPACE, Kind
from serving.net.cluster.port import Selection

_BY_PLACE = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
_UNKNOWN = "the server could not find the requested resource"

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
# kube-apiserver's limit, and its default manager name.
_LENGTH_MAX = 128
_VERSION_LENGTH_MAX = 20
_UNKNOWN_MANAGER = "unknown"


class RequestTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a request.

    ``namespace`` None means all namespaces; "" means a cluster-scoped kind. ``name`` "" means the collection.
    """

    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def one_namespace(self) -> str:
        """The namespace of a single object; "" for cluster-scoped kinds."""
        return self.namespace or ""

    def selection(self, query: Mapping[str, str]) -> Selection:
        """The objects selected by a request for a collection: all, or only the object with the target's name."""
        fields = [query.get("fieldSelector", ""), self.name and f"metadata.name={self.name}"]
        return Selection(
            kind=self.kind,
            namespace=self.namespace,
            label_selector=query.get("labelSelector", ""),
            field_selector=",".join(part for part in fields if part),
        )


def is_set(query: Mapping[str, str], name: str) -> bool:
    """Whether a boolean query parameter is true."""
    return query.get(name, "") in {"1", "true", "True"}


def check_list_version(query: Mapping[str, str], present: str) -> None:
    """Check that the present version satisfies the parameters of a list. Raises ``Fault`` 400, ``Gone``.

    Versions of the past are not stored. A list with a page token has the version of its first page.
    """
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    if match not in {"", "Exact", "NotOlderThan"}:
        raise Fault(400, f"resourceVersionMatch is Exact or NotOlderThan, not {match!r}")
    if match and (not version or (match == "Exact" and version == "0")):
        raise Fault(400, f"resourceVersionMatch={match} needs a resourceVersion")
    if version and (not version.isascii() or not version.isdecimal() or len(version) > _VERSION_LENGTH_MAX):
        raise Fault(400, f"resourceVersion: {version[:_VERSION_LENGTH_MAX]!r} is not a version of this server")
    if int(version or 0) > int(present) or (match == "Exact" and version != present):
        raise Gone(f"the resource version {version} is not available, only the present one {present}")


def target_of(raw_path: str) -> RequestTarget:
    """Parse a path below ``/api`` or ``/apis``. Raises ``NotFound``, ``Unsupported``."""
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    match parts:
        case ["api", version, *rest] if rest:
            return _target("", version, rest)
        case ["apis", group, version, *rest] if rest:
            return _target(group, version, rest)
        case _:
            raise NotFound(_UNKNOWN)


def _target(group: str, version: str, rest: list[str]) -> RequestTarget:
    if rest[0] == "watch":
        raise Unsupported("paths below /watch/ are deprecated and not served; use ?watch=true")
    namespace: str | None = None
    if not group and rest[0] == NAMESPACE.plural and (len(rest) <= 2 or rest[2] in {"status", "finalize"}):
        # /api/v1/namespaces/NS is the namespace itself, not its contents.
        pass
    elif rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = _BY_PLACE.get((group, version, rest[0]))
    if kind is None:
        raise NotFound(f"{_UNKNOWN}: {rest[0]} of {f'{group}/' if group else ''}{version}")
    if len(rest) > 3 or not all(rest) or namespace == "" or (namespace and not kind.namespaced):
        raise NotFound(_UNKNOWN)
    if kind.namespaced and namespace is None and len(rest) > 1:
        raise NotFound(_UNKNOWN)
    return RequestTarget(
        kind=kind,
        namespace=namespace if kind.namespaced else "",
        name=rest[1] if len(rest) > 1 else "",
        subresource=rest[2] if len(rest) > 2 else "",
    )


class Fault(Exception):
    """An invalid request. For an invalid object, ``ClusterError`` is raised instead."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def refusal_code(error: ClusterError | Fault) -> int:
    """The HTTP status of an error."""
    return error.code if isinstance(error, Fault) else error.status


def refusal(error: ClusterError | Fault, target: RequestTarget | None = None) -> Object:
    """The ``Status`` of an error. ``target`` is the target of the request."""
    code = refusal_code(error)
    reason = _REASONS.get(code, HTTPStatus(code).phrase) if isinstance(error, Fault) else error.reason
    status: Object = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": reason,
        "code": code,
    }
    # kubectl prints either the details or the message: a message without causes needs to stand alone.
    is_alone = isinstance(error, Invalid) and not error.problems
    if target is not None and not is_alone:
        # Clients print "The Service x is invalid" from it: for invalid objects the kind, rather than its plural.
        word = target.kind.name if isinstance(error, Invalid) else target.kind.plural
        details: Object = {"name": target.name, "group": target.kind.group, "kind": word}
        if isinstance(error, Invalid) and error.problems:
            details["causes"] = [
                {"reason": "FieldValueInvalid", "message": problem.what, "field": problem.where}
                for problem in error.problems
            ]
        if isinstance(error, ApplyConflict):
            details["causes"] = [
                {"reason": "FieldManagerConflict", "message": f"conflict with {field.manager}", "field": field.path}
                for field in error.fields
            ]
        status["details"] = {key: value for key, value in details.items() if value}
    return status


def success(target: RequestTarget, uid: str) -> Object:
    """The ``Status`` of a completed deletion."""
    details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def field_manager(query: Mapping[str, str], user_agent: str) -> str:
    """The field manager of a write; never empty. Raises ``Fault`` 400."""
    manager = query.get("fieldManager", "")
    if len(manager) > _LENGTH_MAX or not manager.isprintable():
        raise Fault(400, f"fieldManager: at most {_LENGTH_MAX} printable characters")
    program = "".join(letter for letter in user_agent.partition("/")[0] if letter.isprintable())
    return manager or program.strip()[:_LENGTH_MAX] or _UNKNOWN_MANAGER
