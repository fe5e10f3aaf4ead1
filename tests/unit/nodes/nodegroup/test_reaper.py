"""Nodes to delete, nodes to drain, and the reasons to retain others."""

import pytest

from serving.nodes.nodegroup.plan import PostponedRemoval, RetentionReason
from serving.nodes.nodegroup.reaper import Reaped, fate_of_tainted, reap_force_tainted, reap_tainted
from serving.nodes.nodegroup.records import CloudGroup, Failures, GroupNode, GroupPod, RemovalTaint
from tests.unit.nodes.nodegroup.builders import node, pod, settings, snapshot, view


def reaped(
    *group: GroupNode,
    pods: tuple[GroupPod, ...] = (),
    target: int | None = None,
    cloud_min: int = 0,
    failed: frozenset[str] = frozenset(),
) -> Reaped:
    group_view = view(snapshot(group, pods, failures=Failures(node_names=failed)))
    cloud = CloudGroup(target_size=len(group) if target is None else target, min_size=cloud_min, max_size=30)
    return reap_tainted(group_view.parts.tainted, group_view, cloud, keep_healthy=False)


def fate(group_node: GroupNode, *, has_pod: bool = False, **changes: object) -> RetentionReason | None:
    pods = (pod(on=group_node),) if has_pod else ()
    return fate_of_tainted(group_node, view(snapshot((group_node,), pods), settings(**changes))).keep


@pytest.mark.parametrize(
    ("tainted_ago_s", "has_pod", "keep"),
    [
        (59.0, False, RetentionReason.SOFT_GRACE),
        (60.0, False, RetentionReason.SOFT_GRACE),
        (60.5, False, None),
        (61.0, True, RetentionReason.HARD_GRACE),
        (600.0, True, RetentionReason.HARD_GRACE),
        (600.5, True, RetentionReason.DRAINING),
        (900.0, True, RetentionReason.DRAINING),
        (900.5, True, None),
    ],
)
def test_node_is_retained_until_grace_and_drain_periods_end(
    tainted_ago_s: float, keep: RetentionReason | None, *, has_pod: bool
) -> None:
    assert fate(node(0, tainted_ago_s=tainted_ago_s), has_pod=has_pod) == keep


def test_node_without_drain_grace_is_deleted_after_hard_grace() -> None:
    assert fate(node(0, tainted_ago_s=601.0), has_pod=True, drain_grace_period_s=0.0) is None


def test_protected_node_and_node_without_timestamp_are_retained() -> None:
    assert fate(node(0, tainted_ago_s=9999.0, is_protected=True)) is RetentionReason.PROTECTED
    assert fate(node(0, removal_taint=RemovalTaint(at_s=None))) is RetentionReason.NO_TIMESTAMP
    assert fate(node(0)) is RetentionReason.NO_TIMESTAMP


def test_empty_due_node_is_deleted_and_busy_due_node_is_drained() -> None:
    gone, busy, young = node(0, tainted_ago_s=700.0), node(1, tainted_ago_s=700.0), node(2, tainted_ago_s=5.0)
    assert reaped(gone, busy, young, pods=(pod(on=busy),)) == Reaped(
        deleted=("n000",),
        drained=("n001",),
        kept_nodes=(
            PostponedRemoval(node_name="n001", reason=RetentionReason.DRAINING),
            PostponedRemoval(node_name="n002", reason=RetentionReason.SOFT_GRACE),
        ),
    )


def test_deletions_stop_at_cloud_minimum() -> None:
    group = [node(number, tainted_ago_s=100.0 + number) for number in range(5)]
    done = reaped(*group, cloud_min=3)
    assert done.deleted == ("n004", "n003")
    assert done.is_refused
    assert {kept_node.reason for kept_node in done.kept_nodes} == {RetentionReason.CLOUD_MIN}


def test_empty_nodes_are_deleted_before_nodes_with_pods() -> None:
    busy, empty = node(0, tainted_ago_s=5000.0), node(1, tainted_ago_s=100.0)
    assert reaped(busy, empty, pods=(pod(on=busy),), cloud_min=1).deleted == ("n001",)


def test_nodes_with_failed_effects_are_deleted_last() -> None:
    group = [node(number, tainted_ago_s=100.0) for number in range(2)]
    assert reaped(*group, cloud_min=1, failed=frozenset({"n000"})).deleted == ("n001",)


def test_node_retained_by_cloud_minimum_is_not_drained() -> None:
    busy = [node(number, tainted_ago_s=700.0) for number in range(2)]
    done = reaped(*busy, pods=tuple(pod(on=group_node) for group_node in busy), cloud_min=1)
    assert (done.drained, done.is_refused) == (("n000",), True)
    assert done.kept_nodes[1] == PostponedRemoval(node_name="n001", reason=RetentionReason.CLOUD_MIN)


def test_cloud_below_its_minimum_deletes_no_node() -> None:
    assert reaped(node(0, tainted_ago_s=100.0), target=1, cloud_min=3).deleted == ()


def test_unhealthy_group_deletes_only_unhealthy_nodes() -> None:
    watched = settings(
        unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=100, max_unhealthy_nodes_percent=0
    )
    healthy, sick = node(0, tainted_ago_s=100.0), node(1, tainted_ago_s=100.0, is_ready=False)
    seen = view(snapshot((healthy, sick)), watched)
    done = reap_tainted(seen.parts.tainted, seen, seen.cloud, keep_healthy=True)
    assert done.deleted == ("n001",)
    assert done.kept_nodes == (PostponedRemoval(node_name="n000", reason=RetentionReason.HEALTHY),)


def test_empty_unprotected_force_tainted_node_is_deleted_immediately() -> None:
    empty, busy = node(0, is_force_tainted=True), node(1, is_force_tainted=True)
    protected = node(2, is_force_tainted=True, is_protected=True)
    seen = view(snapshot((empty, busy, protected), (pod(on=busy),)))
    done = reap_force_tainted(seen, seen.cloud)
    assert done.deleted == ("n000",)
    assert done.kept_nodes == (
        PostponedRemoval(node_name="n001", reason=RetentionReason.PODS),
        PostponedRemoval(node_name="n002", reason=RetentionReason.PROTECTED),
    )
