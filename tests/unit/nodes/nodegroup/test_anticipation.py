"""Anticipated pods count as pending pods."""

from typing import Any

from serving.core.model.anticipation import AnticipatedPods
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION, REVISION_LABEL
from serving.nodes.nodegroup.anticipation import AnticipatedBook
from serving.nodes.nodegroup.plan import GroupRule, IncreaseSize
from serving.nodes.nodegroup.records import Amount, PodPhase
from tests.unit.nodes.nodegroup.builders import GIB, LABELS, NOW_S, decided, nodes, settings, snapshot

KEY = ("default", "hello-00001")
LABELLED = {"namespace": KEY[0], "labels": {REVISION_LABEL: KEY[1]}}


def deployment(replicas: int | None) -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
    spec = {"containers": [container], "nodeSelector": LABELS}
    return {"metadata": {"name": "d", **LABELLED}, "spec": {"replicas": replicas, "template": {"spec": spec}}}


def revision(count: int, *, until_s: float = NOW_S + 60) -> dict[str, Any]:
    text = AnticipatedPods(count=count, until_s=until_s).text()
    annotations = {ANTICIPATED_PODS_ANNOTATION: text}
    return {"metadata": {"namespace": KEY[0], "name": KEY[1], "annotations": annotations}}


def pod(name: str, **metadata: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **LABELLED, **metadata}}


def new_book(replicas: int | None, published: int | None = None, *, pods: int = 0) -> AnticipatedBook:
    anticipated_book = AnticipatedBook()
    anticipated_book.set_deployment(deployment(replicas))
    if published is not None:
        anticipated_book.set_revision(revision(published))
    for number in range(pods):
        anticipated_book.set_pod(f"default/p{number}", pod(f"p{number}"))
    return anticipated_book


def test_published_count_minus_existing_pods_is_pending() -> None:
    missing = new_book(3, 8, pods=2).pods(NOW_S)
    assert len(missing) == 6
    assert {
        (group_pod.request, group_pod.phase, group_pod.node_name, group_pod.is_anticipated)
        for group_pod in missing.values()
    } == {(Amount(cpu_m=2000, memory_bytes=GIB), PodPhase.PENDING, None, True)}


def test_replicas_without_pods_are_pending() -> None:
    assert len(new_book(3, pods=1).pods(NOW_S)) == 2
    assert len(new_book(None).pods(NOW_S)) == 1


def test_expired_anticipation_adds_no_pods() -> None:
    assert not new_book(0, 8).pods(NOW_S + 60)


def test_deleted_and_terminating_pods_are_anticipated_again() -> None:
    anticipated_book = new_book(2, pods=2)
    anticipated_book.set_pod("default/p0", pod("p0", deletionTimestamp="now"))
    assert len(anticipated_book.pods(NOW_S)) == 1
    anticipated_book.drop_pod("default/p1")
    anticipated_book.drop_pod("default/p1")
    assert len(anticipated_book.pods(NOW_S)) == 2


def test_updated_pod_is_counted_once() -> None:
    anticipated_book = new_book(2, pods=2)
    anticipated_book.set_pod("default/p0", pod("p0"))
    assert not anticipated_book.pods(NOW_S)


def test_deleted_revision_or_deployment_anticipates_no_pods() -> None:
    anticipated_book = new_book(0, 8)
    anticipated_book.drop_revision(KEY)
    assert not anticipated_book.pods(NOW_S)
    anticipated_book.set_revision(revision(8))
    anticipated_book.set_revision({"metadata": {"namespace": KEY[0], "name": KEY[1]}})
    assert not anticipated_book.pods(NOW_S)
    anticipated_book.set_revision(revision(8))
    anticipated_book.drop_deployment(deployment(0))
    anticipated_book.drop_deployment({"metadata": {}})
    assert not anticipated_book.pods(NOW_S)


def test_terminating_and_unlabelled_deployments_are_ignored() -> None:
    anticipated_book = AnticipatedBook()
    anticipated_book.set_deployment({"metadata": {"name": "other"}, "spec": {"replicas": 5}})
    gone = deployment(5)
    gone["metadata"]["deletionTimestamp"] = "now"
    anticipated_book.set_deployment(gone)
    assert not anticipated_book.pods(NOW_S)


def test_group_grows_for_anticipated_pods_only_if_enabled() -> None:
    group = nodes(1)
    seen = snapshot(group, tuple(new_book(0, 2).pods(NOW_S).values()))
    _, plan = decided(seen, settings(anticipation=True))
    # 4000 m of 4000 m at a threshold of 70 %: ceil(1 x 30 / 70) = 1 node more.
    assert (plan.effects, plan.pod_count, plan.anticipated_count) == ((IncreaseSize(count=1),), 0, 2)
    _, plan = decided(seen, settings())
    assert (plan.decided_by, plan.anticipated_count) == (GroupRule.TAINT_LOWER, 0)


def test_empty_group_grows_for_anticipated_pods() -> None:
    seen = snapshot((), tuple(new_book(0, 1).pods(NOW_S).values()))
    _, plan = decided(seen, settings(anticipation=True, min_nodes=0))
    assert (plan.decided_by, plan.effects) == (GroupRule.FROM_ZERO, (IncreaseSize(count=1),))
