"""Output of ``serving why`` for node groups and nodes."""

from typing import Any

from serving.core.model.anticipation import AnticipatedPods
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION, REVISION_LABEL
from serving.tools.cli.nodes.nodegroups import (
    expected_lines,
    node_group_lines,
    node_lines,
    pods_by_revision,
    revision_story,
)

GROUP: dict[str, Any] = {
    "metadata": {"name": "default"},
    "spec": {"labelKey": "pool", "labelValue": "local"},
    "status": {
        "nodes": {"total": 3, "untainted": 2, "coming": 1},
        "podCount": 4,
        "utilization": {"cpuPercent": 40.0, "memoryPercent": 12.5},
        "lastPass": {"rule": "taint-upper", "delta": -1, "limits": ["min-nodes"]},
        "kept": [{"node": "a", "reason": "pods on it are asked to leave"}],
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "AbleToScale", "status": "False", "reason": "BreakerOpen", "message": "3 scale-ups"},
        ],
    },
}


def event(message: str, name: str = "default", *, count: int = 1) -> dict[str, Any]:
    stamp = "2026-11-22T12:00:01Z"
    return {"involvedObject": {"name": name}, "message": message, "lastTimestamp": stamp, "count": count}


EVENTS = [event("taint node a (why)"), event("delete nodes b, c (why)", count=2), event("taint node d", "other")]


def node(name: str, *, pool: str = "local", **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"pool": pool}}, "spec": spec}


def test_node_group_lines_show_events_and_current_status() -> None:
    assert node_group_lines("default", GROUP, EVENTS) == [
        "12:00:01 taint node a (why)",
        "12:00:01 delete nodes b, c (why) (2 times)",
        "now: 2 of 3 nodes take pods, 1 on their way; 4 pods request cpu 40 %, memory 12.5 %",
        "now: taint-upper asks for -1 nodes, limited by min-nodes",
        "a is still there: pods on it are asked to leave",
        "AbleToScale is False: BreakerOpen: 3 scale-ups",
    ]


def test_deleted_or_new_node_group_lines_show_what_is_known() -> None:
    assert node_group_lines("other", None, EVENTS) == ["12:00:01 taint node d"]
    assert node_group_lines("new", {"metadata": {"name": "new"}}, []) == ["new: no pass yet"]


def test_node_lines_show_cordon_taint_and_group() -> None:
    taints = [{"key": "atlassian.com/escalator", "value": "7"}]
    assert node_lines("a", node("a", taints=taints, unschedulable=True), groups=[GROUP], events=EVENTS) == [
        "12:00:01 taint node a (why)",
        "a is cordoned: it takes no new pods, and node groups leave it alone",
        "a will be removed: tainted at 7 (unix seconds)",
        "a is still there: pods on it are asked to leave",
        "a is in the node group default",
    ]
    assert node_lines("z", node("z", pool="none"), groups=[GROUP], events=EVENTS) == ["z is in no node group"]


def test_deleted_node_lines_show_its_events() -> None:
    assert node_lines("b", None, groups=[GROUP], events=EVENTS) == [
        "12:00:01 delete nodes b, c (why) (2 times)",
        "b is gone",
    ]
    assert node_lines("never", None, groups=[GROUP], events=EVENTS) == []


def test_node_lines_show_the_scale_up_before_its_creation() -> None:
    grown = {**event("ask the cloud for 1 node (scale-up asks for +1)"), "reason": "ScaledUp"}
    later = {**grown, "lastTimestamp": "2026-11-22T12:05:00Z", "message": "ask the cloud for 2 nodes"}
    other = {**grown, "involvedObject": {"name": "other"}}
    came = node("e")
    came["metadata"]["creationTimestamp"] = "2026-11-22T12:00:09Z"
    assert node_lines("e", came, groups=[GROUP], events=[grown, other, later]) == [
        "12:00:01 ask the cloud for 1 node (scale-up asks for +1); e came at 12:00:09",
        "e is in the node group default",
    ]


GROUPS = [
    {"metadata": {"name": name}, "spec": {"labelKey": "pool", "labelValue": name}} for name in ("default", "other")
]
NODES = [{"metadata": {"name": name, "labels": {"pool": pool}}} for name, pool in (("a", "default"), ("z", "other"))]


def pod(node: str = "", *, revision: str = "hello-00001", message: str = "", phase: str = "Running") -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    return {
        "metadata": {"name": "p", "labels": {REVISION_LABEL: revision} if revision else {}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": conditions},
    }


def event_of(message: str, group: str = "default") -> dict[str, Any]:
    return {"involvedObject": {"name": group}, "message": message, "lastTimestamp": "2026-11-22T12:00:01Z"}


WHYSTORY_EVENTS = [
    event_of("ask the cloud for 1 node (scale-up asks for +1)"),
    event_of("taint node z", "other"),
]


def story(*pods: dict[str, Any], groups: list[dict[str, Any]] = GROUPS) -> list[str]:
    return revision_story(pods, nodes=NODES, groups=groups, events=WHYSTORY_EVENTS)


def test_revision_story_shows_unscheduled_pods_and_node_group_events() -> None:
    waiting = pod(message="0/1 nodes are available: 1 Insufficient cpu.")
    assert story(pod("a"), pod("a"), waiting) == [
        "pods: 2 on a",
        "pods: 1 waits for a node: 0/1 nodes are available: 1 Insufficient cpu.",
        "12:00:01 nodegroup/default: ask the cloud for 1 node (scale-up asks for +1)",
        "12:00:01 nodegroup/other: taint node z",
        "more: serving why nodegroup/default, serving why nodegroup/other",
    ]


def test_revision_story_without_unscheduled_pods_shows_only_its_node_groups() -> None:
    assert story(pod("a"), pod("a", phase="Succeeded")) == [
        "pods: 1 on a",
        "12:00:01 nodegroup/default: ask the cloud for 1 node (scale-up asks for +1)",
        "more: serving why nodegroup/default",
    ]


def test_pods_not_yet_processed_by_the_scheduler_are_reported() -> None:
    assert story(pod(), pod())[0] == "pods: 2 wait for a node: the scheduler has not processed it yet"


def test_revision_story_is_empty_without_groups_or_pods() -> None:
    assert story(pod("a"), groups=[]) == []
    assert story() == []


def test_pods_are_counted_by_revision_in_descending_order() -> None:
    pods = [pod(), pod(revision=""), pod(revision="w"), pod(), pod(phase="Failed")]
    assert pods_by_revision(pods) == "hello-00001 2, others 1, w 1"
    assert pods_by_revision([]) == ""


def test_anticipated_pods_are_reported_until_they_expire() -> None:
    text = AnticipatedPods(count=8, until_s=100.0).text()
    revision = {"metadata": {"name": "hello-00001", "annotations": {ANTICIPATED_PODS_ANNOTATION: text}}}
    assert list(expected_lines([revision, {"metadata": {"name": "w"}}], now_s=99.0)) == [
        "now: hello-00001 expects to need 8 pods within the boot time of a node"
    ]
    assert list(expected_lines([revision], now_s=100.0)) == []
