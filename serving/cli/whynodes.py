"""``serving why nodegroup/NAME`` and ``serving why node/NAME``: what node groups did, with the rule that asked for it, and what holds now.

The story is in the Events of the NodeGroups, the present in their status.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from serving.cli.api import ApiClient, fail
from serving.cli.objects import items_of
from serving.cluster.kinds import EVENT, NODE, NODE_GROUP
from serving.cluster.port import Object
from serving.model.knative import REMOVAL_TAINT
from serving.model.objects import conditions_of, labels_of, name_of, nested, timestamp_s

__all__ = ["node_group_lines", "node_lines", "print_why_of_nodes"]

_GROUP, _NODE = "nodegroup", "node"
_EVENT_NAMESPACE = "default"


def print_why_of_nodes(api: ApiClient, name: str, *, since_s: float) -> bool:
    """Print the story of "nodegroup/NAME" or "node/NAME"; False if the name is of neither form."""
    kind, _, found = name.partition("/")
    if kind not in {_GROUP, "ng", _NODE, "no"} or not found:
        return False
    groups = items_of(api, NODE_GROUP)
    events = [
        one
        for one in items_of(api.within(_EVENT_NAMESPACE), EVENT)
        if nested(one, "involvedObject", "kind") == NODE_GROUP.name and _seen_s(one) >= since_s
    ]
    events.sort(key=_seen_s)
    if kind in {_GROUP, "ng"}:
        group = next((one for one in groups if name_of(one) == found), None)
        lines = node_group_lines(found, group, events)
    else:
        node = next((one for one in items_of(api, NODE) if name_of(one) == found), None)
        lines = node_lines(found, node, groups=groups, events=events)
    if not lines:
        fail(f"nothing is known of {name}; is there such a {kind}?")
    click.echo("\n".join(lines))
    return True


def node_group_lines(name: str, group: Object | None, events: Sequence[Object]) -> list[str]:
    """What a group did, oldest first, and what it does now."""
    ours = [one for one in events if nested(one, "involvedObject", "name") == name]
    lines = [_line(one) for one in ours]
    if group is None:
        return lines
    return [*lines, *_present(group)]


def node_lines(name: str, node: Object | None, *, groups: Sequence[Object], events: Sequence[Object]) -> list[str]:
    """What node groups did with one node, and why it is there or going."""
    lines = [_line(one) for one in events if name in str(one.get("message", "")).replace(",", " ").split()]
    if node is None:
        return [*lines, f"{name} is gone"] if lines else []
    group = next((one for one in groups if _has(one, node)), None)
    if nested(node, "spec", "unschedulable"):
        lines.append(f"{name} is cordoned: it takes no new pods, and node groups leave it alone")
    taint = next((one for one in nested(node, "spec", "taints") or () if one.get("key") == REMOVAL_TAINT), None)
    if taint is not None:
        lines.append(f"{name} is to be removed: tainted at {_clock(taint.get('value'))}")
    kept = nested(group, "status", "kept") or ()
    lines += [f"{name} is still there: {one.get('reason')}" for one in kept if one.get("node") == name]
    if group is None:
        return [*lines, f"{name} is in no node group"]
    return [*lines, f"{name} is in the node group {name_of(group)}"]


def _has(group: Object, node: Object) -> bool:
    key = nested(group, "spec", "labelKey")
    return bool(labels_of(node).get(str(key)) == nested(group, "spec", "labelValue"))


def _present(group: Object) -> Iterator[str]:
    status: Mapping[str, Any] = group.get("status") or {}
    name, nodes, last = name_of(group), status.get("nodes") or {}, status.get("lastPass") or {}
    if not last:
        yield f"{name}: no pass yet"
    else:
        usage = status.get("utilization") or {}
        full = ", ".join(
            f"{word} {usage[key]:g} %"
            for word, key in (("cpu", "cpuPercent"), ("memory", "memoryPercent"))
            if key in usage
        )
        yield (
            f"now: {nodes.get('untainted', 0)} of {nodes.get('total', 0)} nodes take pods, {nodes.get('coming', 0)} on their way;"
            f" {status.get('podCount', 0)} pods request {full or 'nodes from zero'}"
        )
        limits = f", limited by {', '.join(last['limits'])}" if last.get("limits") else ""
        yield f"now: {last.get('rule')} asks for {last.get('delta', 0):+d} nodes{limits}"
    for one in status.get("kept") or ():
        yield f"{one.get('node')} is still there: {one.get('reason')}"
    for one in conditions_of(group):
        if one.get("status") == "False":
            yield f"{one.get('type')} is False: {one.get('reason')}: {one.get('message')}"


def _line(event: Object) -> str:
    count = event.get("count") or 1
    return f"{_stamp(event)[11:19]} {event.get('message')}" + (f" ({count} times)" if count > 1 else "")


def _stamp(event: Object) -> str:
    return str(event.get("lastTimestamp") or nested(event, "metadata", "creationTimestamp") or "")


def _seen_s(event: Object) -> float:
    return timestamp_s(_stamp(event)) or 0.0


def _clock(value: object) -> str:
    text = str(value or "")
    return f"{text} (unix seconds)" if text.isdecimal() else "an unknown time"
