"""Marks of the charts: changes of a revision at a moment. Pure.

Input: views of objects before and after a change; output: marks. A change without a time in the object gets the time of
the tick that observes it.
"""

import contextlib
import datetime as dt
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from serving.core.model.event import OOM_KILLED_REASON

# The maximum in one response from the disk.
_RECENT_MAX = 2_200
_ENDED = frozenset({OOM_KILLED_REASON, "Evicted"})


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event on a revision's charts: ``kind`` is "decision", "deploy" or "failure"; ``key`` "namespace/revision"."""

    key: str
    at_s: float
    kind: str
    text: str


class Marks:
    """Collects marks until ``drain``, and stores the last marks of each revision."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[Mark]] = {}
        self._timed: list[Mark] = []
        self._seen: list[tuple[str, str, str]] = []

    def decide(self, decision: Mapping[str, Any]) -> None:
        """Mark a decision that changed the scale."""
        mark = Mark(key=decision["key"], at_s=decision["at_s"], kind="decision", text=decision["sentence"])
        self._timed.append(mark)

    def change(self, kind: str, key: str, *, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
        """Record the changes between two views of an object.

        Without a previous view, only the creation of a revision is marked.
        """
        if kind == "revision" and before is None:
            with contextlib.suppress(ValueError):
                made_s = dt.datetime.fromisoformat(after.get("created", "")).timestamp()
                self._timed.append(Mark(key=key, at_s=made_s, kind="deploy", text=f"{after['name']} is created"))
        if before is not None:
            changes = {"revision": _failed, "service": _moved, "pod": _ended}[kind]
            self._seen += changes(key, before, after)

    def drain(self, at_s: float) -> list[Mark]:
        """Return the marks since the last call. Marks without a time get ``at_s``."""
        seen = [Mark(key=key, at_s=at_s, kind=kind, text=text) for key, kind, text in self._seen]
        marks, self._timed, self._seen = self._timed + seen, [], []
        for mark in marks:
            self._recent.setdefault(mark.key, deque(maxlen=_RECENT_MAX)).append(mark)
        return marks

    def recent(self, key: str, *, from_s: float, to_s: float) -> list[Mark]:
        """The last marks of a revision in a range, in the order of their creation."""
        return [mark for mark in self._recent.get(key, ()) if from_s <= mark.at_s <= to_s]

    def forget(self, key: str) -> None:
        """Drop the marks of a deleted revision."""
        self._recent.pop(key, None)


def _failed(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if after.get("ready") == "False" != before.get("ready"):
        reason = next((condition["reason"] for condition in after["conditions"] if condition["type"] == "Ready"), "")
        yield key, "failure", f"{after['name']} fails: {reason}" if reason else f"{after['name']} fails"


def _moved(_: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    old, new = _shares(before), _shares(after)
    if old != new:
        text = ", ".join(f"{share} % to {name}" for name, share in new.items())
        for name in {**old, **new}:
            yield f"{after['namespace']}/{name}", "deploy", f"traffic: {text or 'none'}"


def _ended(_: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    key, name = f"{after['namespace']}/{after['revision']}", after["name"]
    if after.get("restarts", 0) > before.get("restarts", 0):
        is_killed = after.get("oom_kills", 0) > before.get("oom_kills", 0)
        yield key, "failure", f"{name} ran out of memory" if is_killed else f"a container of {name} restarts"
    if after.get("reason") != before.get("reason") and after.get("reason") in _ENDED:
        yield key, "failure", f"{name}: {after['reason']}"


def _shares(view: Mapping[str, Any]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for target in view.get("traffic", ()):
        if target["percent"]:
            shares[target["revision"]] = shares.get(target["revision"], 0) + target["percent"]
    return shares
