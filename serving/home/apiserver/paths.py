"""Parse a path of the Kubernetes API.

Input: the escaped path of a URL; output: a ``RequestTarget``. An unknown kind is ``NotFound``, as on a real server; the
deprecated ``/watch/`` paths are ``Unsupported``.
"""

from urllib.parse import unquote

import msgspec

from serving.cluster.kinds import KINDS, NAMESPACE, Kind
from serving.model.errors import NotFound, Unsupported

_BY_PLACE = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
_UNKNOWN = "the server could not find the requested resource"


class RequestTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a request. ``namespace`` None is all namespaces, "" a cluster-scoped kind; ``name`` "" is the collection."""

    kind: Kind
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def one_namespace(self) -> str:
        """The namespace of a single object, "" for kinds without one."""
        return self.namespace or ""


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
    if kind is None or len(rest) > 3 or not all(rest) or namespace == "" or (namespace and not kind.namespaced):
        raise NotFound(_UNKNOWN)
    if kind.namespaced and namespace is None and len(rest) > 1:
        raise NotFound(_UNKNOWN)
    return RequestTarget(
        kind=kind,
        namespace=namespace if kind.namespaced else "",
        name=rest[1] if len(rest) > 1 else "",
        subresource=rest[2] if len(rest) > 2 else "",
    )
