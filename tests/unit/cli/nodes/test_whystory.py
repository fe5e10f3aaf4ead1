"""The story from a revision's pods to nodes, and back."""

from typing import Any

from serving.cli.nodes.whystory import expected_lines, pods_by_revision, revision_story
from serving.model.anticipation import AnticipatedPods
from serving.model.knative import ANTICIPATED_PODS_ANNOTATION, REVISION_LABEL

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


def event(message: str, group: str = "default") -> dict[str, Any]:
    return {"involvedObject": {"name": group}, "message": message, "lastTimestamp": "2026-11-22T12:00:01Z"}


EVENTS = [event("ask the cloud for 1 node (scale-up asks for +1)"), event("taint node z", "other")]


def story(*pods: dict[str, Any], groups: list[dict[str, Any]] = GROUPS) -> list[str]:
    return revision_story(pods, nodes=NODES, groups=groups, events=EVENTS)


def test_a_burst_ends_in_a_node() -> None:
    waiting = pod(message="0/1 nodes are available: 1 Insufficient cpu.")
    assert story(pod("a"), pod("a"), waiting) == [
        "pods: 2 on a",
        "pods: 1 waits for a node: 0/1 nodes are available: 1 Insufficient cpu.",
        "12:00:01 nodegroup/default: ask the cloud for 1 node (scale-up asks for +1)",
        "12:00:01 nodegroup/other: taint node z",
        "more: serving why nodegroup/default, serving why nodegroup/other",
    ]


def test_only_the_groups_of_its_nodes_matter_when_no_pod_waits() -> None:
    assert story(pod("a"), pod("a", phase="Succeeded")) == [
        "pods: 1 on a",
        "12:00:01 nodegroup/default: ask the cloud for 1 node (scale-up asks for +1)",
        "more: serving why nodegroup/default",
    ]


def test_pods_that_the_scheduler_has_not_seen_say_so() -> None:
    assert story(pod(), pod())[0] == "pods: 2 wait for a node: the scheduler has not looked at it"


def test_without_groups_or_pods_there_is_no_story() -> None:
    assert story(pod("a"), groups=[]) == []
    assert story() == []


def test_pods_are_counted_by_revision_the_most_first() -> None:
    pods = [pod(), pod(revision=""), pod(revision="w"), pod(), pod(phase="Failed")]
    assert pods_by_revision(pods) == "hello-00001 2, others 1, w 1"
    assert pods_by_revision([]) == ""


def test_what_is_expected_is_said_until_it_expires() -> None:
    text = AnticipatedPods(count=8, until_s=100.0).text()
    revision = {"metadata": {"name": "hello-00001", "annotations": {ANTICIPATED_PODS_ANNOTATION: text}}}
    assert list(expected_lines([revision, {"metadata": {"name": "w"}}], now_s=99.0)) == [
        "now: hello-00001 expects to want 8 pods within the time that a node takes to boot"
    ]
    assert list(expected_lines([revision], now_s=100.0)) == []
