"""Whole passes: effects, their order, and the state."""

import msgspec

from serving.nodes.nodegroup.decide import Growth, GrowthBound, Shrinkage, grow, nodes_to_untaint, shrink
from serving.nodes.nodegroup.group_memory import BreakerPhase, BreakerState, NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import (
    DeleteNodes,
    Drain,
    GroupLimit,
    GroupRule,
    IncreaseSize,
    PassError,
    RetentionReason,
    Taint,
    Untaint,
)
from serving.nodes.nodegroup.records import CloudGroup, Failures
from tests.unit.nodes.nodegroup.builders import (
    NODE_AMOUNT,
    NOW_S,
    decided,
    load,
    node,
    nodes,
    pod,
    settings,
    snapshot,
    view,
)
from tests.unit.nodes.nodegroup.outcome import carried_out

LOCK = ScaleLock(requested_count=2, locked_at_s=NOW_S - 60.0)
LOCKED = NodeGroupState(lock=LOCK)
OPEN = NodeGroupState(
    breaker=BreakerState(phase=BreakerPhase.OPEN, failure_count=3, node_count_low=10, retry_at_s=NOW_S + 600.0)
)

FREE = CloudGroup(target_size=100, min_size=0, max_size=100)
TAINTED = tuple(node(number, tainted_ago_s=5.0) for number in range(6, 9))


def taint(name: str) -> Taint:
    return Taint(node_name=name, at_s=int(NOW_S), effect="NoSchedule")


def test_scale_up_at_110_percent_of_10_nodes_requests_6_and_locks() -> None:
    group = nodes(10)
    state, plan = decided(snapshot(group, load(110, group)))
    assert plan.effects == (IncreaseSize(count=6),)
    assert (plan.requested_delta, plan.decided_by) == (6, GroupRule.SCALE_UP)
    assert state.lock == ScaleLock(requested_count=6, locked_at_s=NOW_S)
    assert state.breaker.asked_at_s == state.last_scale_up_at_s == NOW_S


def test_idle_group_taints_oldest_nodes() -> None:
    state, plan = decided(snapshot(nodes(10)))
    assert plan.effects == tuple(taint(f"n00{number}") for number in range(5))
    assert (state.lock, state.last_scale_up_at_s, plan.requested_delta) == (None, None, -5)


def test_taint_has_configured_effect() -> None:
    _, plan = decided(snapshot(nodes(2)), settings(taint_effect="NoExecute"))
    assert plan.effects == (Taint(node_name="n000", at_s=int(NOW_S), effect="NoExecute"),)


def test_steady_group_has_no_effects_and_records_node_capacity() -> None:
    group = nodes(4)
    state, plan = decided(snapshot(group, load(50, group)))
    assert (plan.effects, plan.decided_by, plan.pod_count) == ((), GroupRule.STEADY, 4)
    assert state == NodeGroupState(node_capacity=NODE_AMOUNT)


def test_growth_by_untainting_acquires_no_lock() -> None:
    group = (*nodes(4), node(4, tainted_ago_s=5.0))
    state, plan = decided(snapshot(group, load(75, group)))
    assert plan.effects == (Untaint(node_name="n004"),)
    assert state.lock is None


def test_effects_are_ordered_taint_untaint_delete_increase() -> None:
    watched = settings(
        unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=1, max_unhealthy_nodes_percent=0
    )
    group = (
        node(0, is_ready=False),
        *nodes(4, first=1),
        node(5, tainted_ago_s=5.0),
        node(6, tainted_ago_s=700.0, is_ready=False),
        node(7, is_force_tainted=True),
    )
    _, plan = decided(snapshot(group, load(110, group), cloud=(0, 8)), watched)
    assert plan.effects == (
        taint("n000"),
        Untaint(node_name="n005"),
        DeleteNodes(node_names=("n007",)),
        DeleteNodes(node_names=("n006",)),
        IncreaseSize(count=2),
    )
    assert plan.limits == (GroupLimit.CLOUD_MAX,)


def test_node_with_pods_is_drained_after_hard_grace_then_deleted() -> None:
    group = (*nodes(2), node(2, tainted_ago_s=700.0))
    pods = (*load(50, group), pod(1, on=group[2]))
    seen = snapshot(group, pods)
    _, plan = decided(seen)
    assert plan.effects == (Drain(node_name="n002"),)
    _, later = decided(carried_out(seen, plan.effects))
    assert later.effects == (DeleteNodes(node_names=("n002",)),)


def test_locked_group_reaps_nodes_but_neither_grows_nor_taints() -> None:
    group = (*nodes(10), node(10, tainted_ago_s=100.0))
    state, plan = decided(snapshot(group, load(110, group)), state=LOCKED)
    assert plan.effects == (DeleteNodes(node_names=("n010",)),)
    assert (plan.requested_delta, plan.decided_by, state.lock) == (2, GroupRule.LOCK, LOCK)


def test_group_below_minimum_untaints_then_requests_the_rest() -> None:
    group = (*nodes(2), node(2, tainted_ago_s=5.0))
    state, plan = decided(snapshot(group), settings(min_nodes=5))
    assert plan.effects == (Untaint(node_name="n002"), IncreaseSize(count=2))
    assert (plan.requested_delta, plan.error) == (3, None)
    assert state.lock == ScaleLock(requested_count=2, locked_at_s=NOW_S)


def test_group_below_minimum_waits_for_requested_machines() -> None:
    _, plan = decided(snapshot(nodes(1), target=3), settings(min_nodes=3))
    assert (plan.effects, plan.limits, plan.error) == ((), (GroupLimit.NODES_ON_THEIR_WAY,), None)


def test_locked_group_below_minimum_untaints_and_requests_no_nodes() -> None:
    group = (*nodes(1), node(1, tainted_ago_s=5.0))
    _, plan = decided(snapshot(group), settings(min_nodes=3), LOCKED)
    assert plan.effects == (Untaint(node_name="n001"),)
    assert (plan.limits, plan.error, plan.requested_delta) == ((GroupLimit.LOCK,), None, 1)


def test_group_below_minimum_untaints_and_reports_error_if_cloud_is_full() -> None:
    group = (*nodes(1), node(1, tainted_ago_s=5.0))
    _, plan = decided(snapshot(group, cloud=(0, 2)), settings(min_nodes=3))
    assert plan.effects == (Untaint(node_name="n001"),)
    assert (plan.error, plan.requested_delta) == (PassError.CANNOT_GROW, 0)


def test_max_nodes_limits_growth() -> None:
    group = nodes(10)
    _, plan = decided(snapshot(group, load(110, group), target=11), settings(max_nodes=13))
    assert (plan.effects, plan.limits) == ((IncreaseSize(count=2),), (GroupLimit.MAX_NODES,))


def test_nodes_retained_by_cloud_minimum_are_reported() -> None:
    group = (*nodes(2), node(2, tainted_ago_s=100.0))
    _, plan = decided(snapshot(group, load(50, group), cloud=(3, 30)))
    assert (plan.effects, plan.limits) == ((), (GroupLimit.CLOUD_MIN,))
    assert [kept_node.reason for kept_node in plan.kept_nodes] == [RetentionReason.CLOUD_MIN]


def test_open_breaker_blocks_growth_without_lock() -> None:
    group = nodes(10)
    state, plan = decided(snapshot(group, load(110, group)), state=OPEN)
    assert (plan.effects, plan.limits, plan.requested_delta) == ((), (GroupLimit.BREAKER,), 6)
    assert state.lock is None


def test_breaker_due_for_retry_allows_one_node() -> None:
    group = nodes(10)
    _, plan = decided(snapshot(group, load(110, group)), state=OPEN, now_s=NOW_S + 600.0)
    assert plan.effects == (IncreaseSize(count=1),)


def test_scale_ups_without_new_nodes_stop_at_failure_threshold() -> None:
    group = nodes(10)
    seen, state, requests = snapshot(group, load(110, group), cloud=(0, 1000)), NodeGroupState(), []
    for number in range(20):
        state, plan = decided(seen, settings(max_nodes=1000), state, now_s=NOW_S + 60.0 * number)
        seen = carried_out(seen, plan.effects)
        requests += [number * 60.0 for effect in plan.effects if isinstance(effect, IncreaseSize)]
    assert requests == [0.0, 120.0, 240.0, 960.0]


def test_failed_increase_releases_lock_and_counts_as_failure() -> None:
    group = nodes(10)
    seen = snapshot(group, load(110, group))
    state, _ = decided(seen)
    assert decided(seen, state=state, now_s=NOW_S + 60.0)[1].decided_by is GroupRule.LOCK
    refused = msgspec.structs.replace(seen, failures=Failures(increase_failed=True))
    state, plan = decided(refused, state=state, now_s=NOW_S + 60.0)
    assert plan.effects == (IncreaseSize(count=6),)
    assert state.lock == ScaleLock(requested_count=6, locked_at_s=NOW_S + 60.0)
    assert state.breaker.failure_count == 1


def test_node_with_failed_taint_is_skipped() -> None:
    seen = snapshot(nodes(10), failures=Failures(node_names=frozenset({"n000"})))
    _, plan = decided(seen)
    assert [effect.node_name for effect in plan.effects if isinstance(effect, Taint)] == [
        f"n00{number}" for number in range(1, 6)
    ]


def test_unhealthy_group_deletes_only_unhealthy_nodes() -> None:
    watched = settings(
        unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=100, max_unhealthy_nodes_percent=0
    )
    group = (*nodes(3), node(3, tainted_ago_s=100.0), node(4, tainted_ago_s=100.0, is_ready=False))
    _, plan = decided(snapshot(group), watched)
    assert plan.effects == (DeleteNodes(node_names=("n004",)),)
    assert (plan.decided_by, plan.is_healthy) == (GroupRule.HEALTH_GATE, False)


def test_cloud_bounds_apply_if_group_has_none() -> None:
    _, plan = decided(snapshot(nodes(10), cloud=(8, 30)), settings(min_nodes=0, max_nodes=0))
    assert plan.effects == (taint("n000"), taint("n001"))


def test_dry_mode_withholds_taints_and_records_them() -> None:
    dry = settings(dry_mode=True)
    state, plan = decided(snapshot(nodes(10)), dry)
    assert (plan.effects, len(plan.withheld)) == ((), 5)
    state, again = decided(snapshot(nodes(10)), dry, state)
    assert [len(again.nodes.tainted), len(again.nodes.untainted)] == [5, 5]


def test_dry_mode_withholds_untaint_and_records_it() -> None:
    group = (*nodes(4), node(4, tainted_ago_s=5.0))
    seen = snapshot(group, load(75, group))
    state, plan = decided(seen, settings(dry_mode=True))
    assert plan.withheld == (Untaint(node_name="n004"),)
    assert state.dry_taints == {"n004": None}


def test_dry_taints_are_dropped_for_deleted_nodes_and_outside_dry_mode() -> None:
    remaining = NodeGroupState(dry_taints={"n000": 5.0, "n009": 5.0})
    group = nodes(2)
    seen = snapshot(group, load(25, group))
    assert decided(seen, settings(dry_mode=True), remaining)[0].dry_taints == {"n000": 5.0}
    assert decided(seen, settings(), remaining)[0].dry_taints == {}


def test_dry_mode_growth_changes_neither_lock_nor_breaker() -> None:
    group = nodes(10)
    state, plan = decided(snapshot(group, load(110, group)), settings(dry_mode=True))
    assert plan.withheld == (IncreaseSize(count=6),)
    assert (state.lock, state.breaker) == (None, BreakerState())


def test_machines_without_nodes_are_unregistered_after_window() -> None:
    seen = snapshot(nodes(3), load(50, nodes(3)), target=5)
    state, plan = decided(seen)
    assert plan.unregistered_count == 0
    state, plan = decided(seen, state=state, now_s=NOW_S + 119)
    assert plan.unregistered_count == 0
    state, plan = decided(seen, state=state, now_s=NOW_S + 120)
    assert plan.unregistered_count == 2
    # One machine registers: the window starts again for the other.
    state, plan = decided(snapshot(nodes(4), load(50, nodes(4)), target=5), state=state, now_s=NOW_S + 130)
    assert plan.unregistered_count == 0
    state, plan = decided(snapshot(nodes(5), load(50, nodes(5)), target=5), state=state, now_s=NOW_S + 140)
    assert (plan.unregistered_count, state.coming_since_s) == (0, None)


def test_shrink_taints_oldest_nodes() -> None:
    assert shrink(view(snapshot(nodes(5))), 2, FREE) == Shrinkage(tainted=("n000", "n001"))


def test_shrink_tries_node_with_failed_taint_last() -> None:
    failures = Failures(node_names=frozenset({"n000"}))
    assert shrink(view(snapshot(nodes(5), failures=failures)), 2, FREE).tainted == ("n001", "n002")


def test_shrink_stops_at_min_nodes() -> None:
    shrunk = shrink(view(snapshot(nodes(2))), 5, FREE)
    assert shrunk == Shrinkage(tainted=("n000",), limits=(GroupLimit.MIN_NODES,))


def test_shrink_taints_no_node_below_min_nodes() -> None:
    assert shrink(view(snapshot(nodes(2)), settings(min_nodes=3)), 1, FREE).tainted == ()


def test_shrink_stops_at_cloud_minimum() -> None:
    cloud = CloudGroup(target_size=4, min_size=3, max_size=9)
    shrunk = shrink(view(snapshot(nodes(5))), 4, cloud)
    assert shrunk == Shrinkage(tainted=("n000",), limits=(GroupLimit.CLOUD_MIN,))


def test_newest_tainted_nodes_are_untainted_first() -> None:
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED))), 2) == ("n008", "n007")


def test_node_with_failed_untaint_is_untainted_last() -> None:
    failures = Failures(node_names=frozenset({"n008"}))
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED), failures=failures)), 2) == ("n007", "n006")


def test_unhealthy_nodes_are_not_untainted() -> None:
    watched = settings(unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=1)
    sick = node(7, tainted_ago_s=5.0, is_ready=False)
    assert nodes_to_untaint(view(snapshot((TAINTED[0], sick)), watched), 2) == ("n006",)


def test_untainting_stops_at_max_nodes() -> None:
    group = snapshot((*nodes(6), *TAINTED))
    assert nodes_to_untaint(view(group, settings(max_nodes=7)), 3) == ("n008",)
    assert nodes_to_untaint(view(group, settings(max_nodes=5)), 3) == ()


def test_negative_delta_untaints_no_node() -> None:
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED))), -2) == ()


def test_growth_requests_the_nodes_that_untainting_does_not_provide() -> None:
    assert grow(view(snapshot(nodes(6))), 5, ("n008", "n007"), target_size=6) == Growth(
        untainted=("n008", "n007"), added_count=3
    )


def test_growth_requests_no_machine_if_untainting_suffices() -> None:
    assert grow(view(snapshot(nodes(6))), 1, ("n008",), target_size=6) == Growth(untainted=("n008",))


def test_requested_and_untainted_nodes_count_against_max_nodes() -> None:
    seen = view(snapshot((*nodes(6), *TAINTED[:2]), target=9), settings(max_nodes=10))
    grown = grow(seen, 5, ("n007", "n006"), target_size=9)
    assert (grown.added_count, grown.limits, grown.count) == (1, (GroupLimit.MAX_NODES,), 3)


def test_cloud_maximum_limits_growth() -> None:
    grown = grow(view(snapshot(nodes(6), cloud=(0, 8))), 5, (), target_size=6)
    assert (grown.added_count, grown.limits) == (2, (GroupLimit.CLOUD_MAX,))


def test_growth_limited_to_zero_is_refused() -> None:
    seen = view(snapshot(nodes(6)))
    grown = grow(seen, 5, (), target_size=6, more_bounds=[GrowthBound(limit=GroupLimit.BREAKER, count=0)])
    assert (grown.added_count, grown.limits, grown.is_refused) == (0, (GroupLimit.BREAKER,), True)
    assert not grow(seen, 1, ("n008",), target_size=6).is_refused


def test_growth_above_cloud_maximum_is_zero_not_negative() -> None:
    assert grow(view(snapshot(nodes(6), cloud=(0, 3))), 1, (), target_size=6).added_count == 0
