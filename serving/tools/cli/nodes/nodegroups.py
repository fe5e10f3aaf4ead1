"""``serving nodegroups``, and the parts of ``serving get`` and ``serving why`` about node groups."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from serving.core.model.anticipation import anticipated_pods_of
from serving.core.model.knative import REMOVAL_TAINT, REVISION_LABEL
from serving.core.model.objects import (
    FINISHED_PHASES,
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    labels_of,
    name_of,
    nested,
    timestamp_s,
)
from serving.net.cluster.kinds import EVENT, NODE, NODE_GROUP, POD, REVISION
from serving.tools.cli.client.api import ApiClient, api_options, fail
from serving.tools.cli.client.objects import items_of, object_of
from serving.tools.cli.client.output import aligned, output_option
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.rows import server_table

# Number of the last Events of node groups in the story of a revision.
_EVENTS_MAX = 10

_GROUP, _NODE = "nodegroup", "node"
# The reason of the daemon's Event about a new node.
_SCALED_UP = "ScaledUp"
_EVENT_NAMESPACE = "default"
_DAY_S = 86400.0

_output_option = output_option()


def revision_story(
    pods: Sequence[Object], *, nodes: Sequence[Object], groups: Sequence[Object], events: Sequence[Object]
) -> list[str]:
    """The placement of a revision's pods, then the history of the node groups; empty without node groups.

    ``events`` are the Events of NodeGroups, oldest first. Those of all groups are included, because a waiting pod may
    get a node of any group.
    """
    if not groups:
        return []
    living = [pod for pod in pods if nested(pod, "status", "phase") not in FINISHED_PHASES]
    placed = Counter(str(node) for pod in living if (node := nested(pod, "spec", "nodeName")))
    waiting = [pod for pod in living if not nested(pod, "spec", "nodeName")]
    lines = []
    if placed:
        lines.append("pods: " + ", ".join(f"{count} on {node}" for node, count in sorted(placed.items())))
    if waiting:
        why = str(condition_of(waiting[0], "PodScheduled").get("message") or "the scheduler has not processed it yet")
        lines.append(f"pods: {len(waiting)} wait{'s' if len(waiting) == 1 else ''} for a node: {why}")
    by_name = {name_of(node): node for node in nodes}
    ours = {name_of(group) for group in groups if waiting or any(_has(group, by_name.get(node)) for node in placed)}
    own_events = [event for event in events if nested(event, "involvedObject", "name") in ours][-_EVENTS_MAX:]
    for event in own_events:
        stamp = str(event.get("lastTimestamp") or nested(event, "metadata", "creationTimestamp") or "")
        lines.append(f"{stamp[11:19]} nodegroup/{nested(event, 'involvedObject', 'name')}: {event.get('message')}")
    if ours:
        lines.append("more: " + ", ".join(f"serving why nodegroup/{name}" for name in sorted(ours)))
    return lines


def pods_by_revision(pods: Sequence[Object]) -> str:
    """The number of pods by revision, largest first: "hello-00001 3, words-00002 1, others 2"."""
    counts = Counter(
        labels_of(pod).get(REVISION_LABEL, "others")
        for pod in pods
        if nested(pod, "status", "phase") not in FINISHED_PHASES
    )
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def expected_lines(revisions: Sequence[Object], *, now_s: float) -> Iterator[str]:
    """Yield the anticipated pods published by autoscalers, one line per revision."""
    for revision in revisions:
        anticipated = anticipated_pods_of(annotations_of(revision))
        if anticipated is not None and anticipated.until_s > now_s:
            yield f"now: {name_of(revision)} expects to need {anticipated.count} pods within the boot time of a node"


def print_why_of_nodes(api: ApiClient, name: str, *, since_s: float) -> bool:
    """Print the history of "nodegroup/NAME" or "node/NAME"; return False for any other name."""
    kind, _, own_name = name.partition("/")
    if kind not in {_GROUP, "ng", _NODE, "no"} or not own_name:
        return False
    groups, events = items_of(api, NODE_GROUP), events_of_groups(api, since_s)
    nodes, pods = items_of(api, NODE), items_of(api, POD, everywhere=True)
    if kind in {_GROUP, "ng"}:
        group = next((group for group in groups if name_of(group) == own_name), None)
        lines = node_group_lines(own_name, group, events)
        if group is not None:
            lines += _requesters(api, group, nodes=nodes, pods=pods)
    else:
        node = next((node for node in nodes if name_of(node) == own_name), None)
        lines = node_lines(own_name, node, groups=groups, events=events)
        own = pods_by_revision([pod for pod in pods if nested(pod, "spec", "nodeName") == own_name])
        lines += [f"pods on it: {own}"] if own else []
    if not lines:
        fail(f"nothing is known of {name}; is there such a {kind}?")
    click.echo("\n".join(lines))
    return True


def node_story(api: ApiClient, is_ours: Callable[[str], bool], *, since_s: float) -> list[str]:
    """The history of the node groups, as far as it concerns the selected revisions' pods; empty without node groups."""
    groups = api.peek(path_of(NODE_GROUP, None)).get("items")
    if not groups:
        return []
    pods = [pod for pod in items_of(api, POD, REVISION_LABEL) if is_ours(labels_of(pod).get(REVISION_LABEL, ""))]
    return revision_story(pods, nodes=items_of(api, NODE), groups=groups, events=events_of_groups(api, since_s))


def events_of_groups(api: ApiClient, since_s: float) -> list[Object]:
    """Events of node groups, oldest first."""
    events = [
        event
        for event in items_of(api.within(_EVENT_NAMESPACE), EVENT)
        if nested(event, "involvedObject", "kind") == NODE_GROUP.name and _seen_s(event) >= since_s
    ]
    return sorted(events, key=_seen_s)


def _requesters(api: ApiClient, group: Object, *, nodes: Sequence[Object], pods: Sequence[Object]) -> Iterator[str]:
    names = {name_of(node) for node in nodes if _has(group, node)}
    own = pods_by_revision([pod for pod in pods if nested(pod, "spec", "nodeName") in names])
    waiting = pods_by_revision([pod for pod in pods if not nested(pod, "spec", "nodeName")])
    if own:
        yield f"pods on its nodes: {own}"
    if waiting:
        yield f"pods that wait for a node: {waiting}"
    if nested(group, "spec", "anticipation"):
        yield from expected_lines(items_of(api, REVISION, everywhere=True), now_s=time.time())


def node_group_lines(name: str, group: Object | None, events: Sequence[Object]) -> list[str]:
    """The events of a group, oldest first, then the group's present state."""
    ours = [event for event in events if nested(event, "involvedObject", "name") == name]
    lines = [_line(our) for our in ours]
    if group is None:
        return lines
    return [*lines, *_present(group)]


def node_lines(name: str, node: Object | None, *, groups: Sequence[Object], events: Sequence[Object]) -> list[str]:
    """The history of one node in its group, and why the node is kept or removed."""
    lines = [_line(event) for event in events if name in str(event.get("message", "")).replace(",", " ").split()]
    if node is None:
        return [*lines, f"{name} is gone"] if lines else []
    group = next((group for group in groups if _has(group, node)), None)
    if group is not None:
        lines = [*_growth_before(node, group, events), *lines]
    if nested(node, "spec", "unschedulable"):
        lines.append(f"{name} is cordoned: it takes no new pods, and node groups leave it alone")
    taint = next((taint for taint in nested(node, "spec", "taints") or () if taint.get("key") == REMOVAL_TAINT), None)
    if taint is not None:
        lines.append(f"{name} will be removed: tainted at {_clock(taint.get('value'))}")
    kept_nodes = nested(group, "status", "kept") or ()
    lines += [f"{name} is still there: {entry.get('reason')}" for entry in kept_nodes if entry.get("node") == name]
    if group is None:
        return [*lines, f"{name} is in no node group"]
    return [*lines, f"{name} is in the node group {name_of(group)}"]


def _growth_before(node: Object, group: Object, events: Sequence[Object]) -> list[str]:
    came = str(nested(node, "metadata", "creationTimestamp") or "")
    grown = [
        event
        for event in events
        if event.get("reason") == _SCALED_UP
        and nested(event, "involvedObject", "name") == name_of(group)
        and _stamp(event) <= came
    ]
    return [f"{_line(grown[-1])}; {name_of(node)} came at {came[11:19]}"] if grown else []


def _has(group: Object, node: Object | None) -> bool:
    key = nested(group, "spec", "labelKey")
    return node is not None and bool(labels_of(node).get(str(key)) == nested(group, "spec", "labelValue"))


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
    if status.get("anticipatedPodCount"):
        yield f"now: {status['anticipatedPodCount']} pods are anticipated and count as if they were pending"
    for entry in status.get("kept") or ():
        yield f"{entry.get('node')} is still there: {entry.get('reason')}"
    for condition in conditions_of(group):
        if condition.get("status") == "False":
            yield f"{condition.get('type')} is False: {condition.get('reason')}: {condition.get('message')}"


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


class _NodeGroupsGroup(click.Group):
    """A command group in which ``nodegroups`` without a subcommand means ``nodegroups get``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["get", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_NodeGroupsGroup)
def nodegroups() -> None:
    """Show node groups, which add and remove nodes by the requests of pods. The default command is `get`."""


@nodegroups.command("get")
@_output_option
@api_options
def _get(*, api: ApiClient, output: str) -> None:
    """List node groups: nodes by state, target, utilisation, and the rule of the last decision."""
    if output == "json":
        click.echo(json.dumps(items_of(api, NODE_GROUP), indent=2))
        return
    header, rows = server_table(api, NODE_GROUP, name="", selector="", everywhere=False)
    if not rows:
        advice = "a NodeGroup manifest" if api.is_cluster else "`serving up --nodes`"
        click.echo(f"no node groups; {advice} creates one", err=True)
        return
    click.echo("\n".join(aligned([header, *rows])))


@nodegroups.command("describe")
@click.argument("name")
@_output_option
@api_options
def _describe(*, api: ApiClient, name: str, output: str) -> None:
    """Show the state of a node group and its events of the last day."""
    since_s = time.time() - _DAY_S
    if output == "json":
        description = {
            "nodegroup": object_of(api, NODE_GROUP, name),
            "events": [
                event for event in events_of_groups(api, since_s) if nested(event, "involvedObject", "name") == name
            ],
        }
        click.echo(json.dumps(description, indent=2))
        return
    print_why_of_nodes(api, f"nodegroup/{name}", since_s=since_s)
