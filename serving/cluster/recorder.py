"""Record which verbs a process uses on which resources, to write its Role from.

If ``SERVING_KUBE_RECORD`` names a file, the kube adapter appends a line for each new pair, in the words of a Role: "patch
deployments.apps/scale". Tests compare these files with ``config/rbac``. Without the variable nothing is recorded.
"""

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "SERVING_KUBE_RECORD"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class CallRecorder:
    """Writes each pair once and immediately, so that the file of a killed daemon is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[str] = set()

    def add(self, method: str, path: str, query: Mapping[str, str]) -> None:
        """Record a call."""
        found = permission_of(method, path, query)
        if found not in self._seen:
            self._seen.add(found)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{found}\n")


def recorder_from_environment() -> CallRecorder | None:
    """The recorder that the environment configures; None without one."""
    path = os.environ.get(_VARIABLE)
    return CallRecorder(Path(path)) if path else None


def permission_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """Verb and resource of a call: GET /apis/apps/v1/deployments with watch=true is "watch deployments.apps"."""
    _, root, *rest = path.split("/")
    group = rest.pop(0) if root == "apis" else ""
    rest.pop(0)
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    plural, name, *parts = [*rest, ""] if len(rest) == 1 else rest
    resource = "/".join([f"{plural}.{group}" if group else plural, *parts])
    verb = _VERBS.get(method) or ("watch" if query.get("watch") else "get" if name else "list")
    return f"{verb} {resource}"
