"""Restricts a response to the namespaces of a grant. All of the dashboard's responses pass this filter. Pure.

A body is a mapping of named parts; a part without a rule is omitted, so that a new part is hidden until it has a rule.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.grants import Grant, Role
from serving.core.model.knative import GRANT_NAMESPACES, GRANT_ROLE

NO_NODES: Mapping[str, Any] = {
    "count": 0,
    "lines": [],
    "groups": [],
    "next_pod": {"cpu_millicores": 0, "memory_bytes": 0},
}
"""The part ``nodes`` for a user of some namespaces; nodes and their groups have the pods of all namespaces."""

_USER = re.compile(r"(?P<user>[^\s=,]+)=(?P<role>view|deploy|admin):(?P<namespaces>\*|[a-z0-9-]+(\+[a-z0-9-]+)*)")
_EXPECTED = "USER=ROLE:NAMESPACE+NAMESPACE or USER=ROLE:*, separated by commas, with the role view, deploy or admin"


def visible(body: Mapping[str, Any], grant: Grant) -> Mapping[str, Any]:
    """The parts of a body that a user may see. Items of other namespaces are removed."""
    if grant.namespaces is None:
        return body
    return {name: _RULES[name](part, grant) for name, part in body.items() if name in _RULES}


def read_users(text: str) -> dict[str, Grant]:
    """Parse the setting ``proxy-users`` into grants by user. Raises ``SettingsError``."""
    grants: dict[str, Grant] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        match = _USER.fullmatch(entry)
        user = entry.partition("=")[0]
        if match is None or user in grants:
            what = f"{entry!r}" if match is None else f"{user} stands there twice"
            raise SettingsError([Problem(where="proxy-users", what=what, expected=_EXPECTED)])
        names = match["namespaces"]
        namespaces = None if names == "*" else frozenset(names.split("+"))
        grants[user] = Grant(user=user, role=Role(match["role"]), namespaces=namespaces)
    return grants


def reviewed_grant(review: Mapping[str, Any]) -> Grant | None:
    """The grant in a TokenReview of ``serving up``; None if the token has no user, or a user of another server."""
    status = review.get("status") or {}
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    roles, namespaces = extra.get(GRANT_ROLE) or [], extra.get(GRANT_NAMESPACES) or []
    if status.get("authenticated") is not True or len(roles) != 1 or roles[0] not in set(Role):
        return None
    chosen = None if list(namespaces) == ["*"] else frozenset(namespaces)
    return Grant(user=str(user.get("username", "")), role=Role(roles[0]), namespaces=chosen)


def _open(part: object, grant: Grant) -> object:
    del grant
    return part


def _items(part: object, grant: Grant) -> object:
    """The visible items of a part: a mapping by "namespace/name", or a list of named items."""
    if isinstance(part, Mapping):
        return {key: value for key, value in part.items() if grant.may_read(key)}
    return [entry for entry in cast("list[object]", part) if grant.may_read(_owner(entry))]


def _item(part: object, grant: Grant) -> object:
    return part if part is not None and grant.may_read(_owner(part)) else None


def _owner(entry: object) -> str:
    """The namespace of an item, or of a key that begins with a namespace."""
    if isinstance(entry, Mapping):
        return str(entry.get("key") or entry.get("namespace") or "")
    return str(getattr(entry, "key", "") or getattr(entry, "namespace", ""))


def _sparklines(part: object, grant: Grant) -> object:
    lines = cast("Mapping[str, Any]", part)
    return {**lines, "sums": _items(lines["sums"], grant)}


def _nodes(part: object, grant: Grant) -> object:
    del part, grant
    return NO_NODES


_RULES: Mapping[str, Callable[[object, Grant], object]] = {
    **dict.fromkeys(
        ("at_s", "columns", "from_s", "may_act", "may_read_logs", "prices", "step_s", "to_s", "user"), _open
    ),
    **dict.fromkeys(
        ("changed_s", "decisions", "hosts", "marks", "objects", "pods", "policies", "rows", "services"), _items
    ),
    "decision": _item,
    "nodes": _nodes,
    "sparklines": _sparklines,
}
