"""The allowed callers of a service: the rule of ``serving.dev/allow-from``.

Input: the annotation, as in "namespace/shop, serviceaccount/shop/cart, service/shop/front". Output: a rule that admits
authenticated callers. An unreadable entry admits no caller and is reported as a problem; the other entries apply.
"""

import re
from collections.abc import Iterator

import msgspec

from serving.model.identities import CallerIdentity

_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_ENTRY = re.compile(
    rf"namespace/(?P<namespace>{_NAME})|(?P<kind>serviceaccount|service)/(?P<of>{_NAME})/(?P<name>{_NAME})"
)
_EVERYONE = "*"
# Each request of a caller is held to all of them.
_ENTRIES_MAX = 64


class AllowedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace, or an account or a service in it; an empty name matches any."""

    namespace: str
    account: str = ""
    service: str = ""

    def admits(self, caller: CallerIdentity) -> bool:
        """Whether a caller is meant."""
        return (
            caller.namespace == self.namespace
            and self.account in ("", caller.account)
            and self.service in ("", caller.service)
        )


class CallerRule(msgspec.Struct, frozen=True, kw_only=True):
    """The callers of a service. ``is_open`` admits every caller, also unauthenticated ones."""

    callers: tuple[AllowedCaller, ...] = ()
    is_open: bool = False

    def admits(self, caller: CallerIdentity) -> bool:
        """Whether a caller may call."""
        return self.is_open or any(one.admits(caller) for one in self.callers)


def caller_rule(text: str) -> tuple[CallerRule, list[str]]:
    """The rule of an annotation, and the entries that cannot be read."""
    entries = [one for one in re.split(r"[,\s]+", text) if one]
    wrong = [*_wrong(entries), *entries[_ENTRIES_MAX:]]
    if entries == [_EVERYONE]:
        return CallerRule(is_open=True), []
    found = []
    for entry in entries[:_ENTRIES_MAX]:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            continue
        names = {"account" if match["kind"] == "serviceaccount" else "service": match["name"]} if match["kind"] else {}
        found.append(AllowedCaller(namespace=match["namespace"] or match["of"], **names))
    return CallerRule(callers=tuple(found)), wrong


def _wrong(entries: list[str]) -> Iterator[str]:
    is_alone = len(entries) == 1
    return (one for one in entries[:_ENTRIES_MAX] if not _ENTRY.fullmatch(one) and not (is_alone and one == _EVERYONE))
