"""What each rule wants, and which one prevails."""

import msgspec

from serving.nodegroup.lock import ScaleLock
from serving.nodegroup.memory import NodeGroupState
from serving.nodegroup.plan import GroupRule, PassError, WantedNodes
from serving.nodegroup.records import Amount, GroupNode, GroupPod
from serving.nodegroup.rules import Course, RuleVerdict, judge
from serving.nodegroup.utilisation import FromZero, Utilisation
from serving.settings.nodegroup import NodeGroupSettings
from tests.unit.nodegroup.builders import (
    NODE_AMOUNT,
    NOW_S,
    SETTINGS,
    load,
    node,
    nodes,
    pod,
    quirky,
    settings,
    snapshot,
    view,
)

WATCHED = settings(
    unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=100, max_unhealthy_nodes_percent=50
)


def verdict(
    group: tuple[GroupNode, ...],
    pods: tuple[GroupPod, ...] = (),
    state: NodeGroupState | None = None,
    *,
    base: NodeGroupSettings = SETTINGS,
    **changes: object,
) -> RuleVerdict:
    remembered = state or NodeGroupState(node_capacity=NODE_AMOUNT)
    return judge(remembered, view(snapshot(group, pods), msgspec.structs.replace(base, **changes), remembered))


def locked(ago_s: float) -> NodeGroupState:
    return NodeGroupState(lock=ScaleLock(requested_count=6, locked_at_s=NOW_S - ago_s))


def wish(rule: GroupRule, delta: int) -> WantedNodes:
    return WantedNodes(rule=rule, delta=delta)


def test_an_empty_group_that_nobody_needs_is_left_alone() -> None:
    assert verdict((), min_nodes=0) == RuleVerdict(course=Course.STOP, decided_by=GroupRule.EMPTY)


def test_an_empty_group_with_a_minimum_grows_to_it() -> None:
    found = verdict((), min_nodes=3)
    assert (found.course, found.delta) == (Course.GROW_TO_MIN, 3)


def test_below_the_minimum_the_group_grows_to_it_whatever_the_load_and_the_lock() -> None:
    found = verdict((node(0), node(1, is_cordoned=True)), state=locked(10.0), min_nodes=2)
    assert found == RuleVerdict(
        course=Course.GROW_TO_MIN,
        decided_by=GroupRule.BELOW_MIN,
        delta=1,
        wanted=(wish(GroupRule.BELOW_MIN, 1),),
        lock=locked(10.0).lock,
    )


def test_nodes_that_offer_nothing_end_the_pass() -> None:
    found = verdict((node(0, allocatable=Amount()),))
    assert (found.course, found.error, found.delta) == (Course.STOP, PassError.NO_CAPACITY, 0)


def test_while_locked_only_the_reaper_works() -> None:
    group = nodes(10)
    found = verdict(group, load(110, group), locked(60.0))
    assert (found.course, found.decided_by, found.requested_delta, found.delta) == (Course.CHANGE, GroupRule.LOCK, 6, 0)


def test_the_thresholds_decide_and_an_old_lock_is_dropped() -> None:
    group = nodes(10)
    found = verdict(group, load(110, group), locked(120.0))
    assert (found.decided_by, found.delta, found.lock) == (GroupRule.SCALE_UP, 6, None)
    assert isinstance(found.usage, Utilisation)
    assert round(found.usage.percent, 9) == 110.0


def test_from_zero_the_known_capacity_decides() -> None:
    found = verdict((), (pod(8000),), min_nodes=0)
    assert (found.decided_by, found.delta, found.usage) == (GroupRule.FROM_ZERO, 3, FromZero())


def test_a_starving_pod_overrides_shrinking() -> None:
    group = nodes(4)
    pods = (*(pod(1300, on=one, memory_bytes=1) for one in group), pod(3000, memory_bytes=1))
    found = verdict(group, pods, scale_on_starve=True, taint_upper_capacity_threshold_percent=69)
    assert found.wanted == (wish(GroupRule.TAINT_UPPER, -1), wish(GroupRule.STARVE, 1))
    assert (found.decided_by, found.delta) == (GroupRule.STARVE, 1)


def test_starvation_does_not_cut_a_larger_wish() -> None:
    group = nodes(2)
    found = verdict(group, (*load(100, group), pod(4000, memory_bytes=1)), scale_on_starve=True)
    assert (found.decided_by, found.delta) == (GroupRule.SCALE_UP, 3)


def test_nobody_starves_unless_asked_and_below_the_maximum() -> None:
    group = nodes(2)
    pods = (*load(45, group), pod(3000, memory_bytes=1))
    assert verdict(group, pods, scale_up_threshold_percent=90).decided_by is GroupRule.STEADY
    assert (
        verdict(group, pods, scale_up_threshold_percent=90, scale_on_starve=True, max_nodes=2).decided_by
        is GroupRule.STEADY
    )
    assert verdict(group, pods, scale_up_threshold_percent=90, scale_on_starve=True).decided_by is GroupRule.STARVE


def test_without_nodes_the_remembered_capacity_tells_what_is_impossible() -> None:
    found = verdict((), (pod(5000),), min_nodes=0, scale_on_starve=True)
    assert GroupRule.STARVE not in {one.rule for one in found.wanted}
    unknown = verdict((), (pod(5000),), NodeGroupState(), min_nodes=0, scale_on_starve=True)
    assert GroupRule.STARVE in {one.rule for one in unknown.wanted}


def test_an_old_node_at_the_minimum_asks_for_one_more() -> None:
    found = verdict(nodes(3), min_nodes=3, max_node_age_s=3600.0)
    assert (found.decided_by, found.delta) == (GroupRule.MAX_NODE_AGE, 1)


def test_a_sick_node_at_the_minimum_asks_for_one_more() -> None:
    group = (node(0, is_ready=False), *nodes(2, first=1))
    assert verdict(group, min_nodes=3, base=WATCHED).decided_by is GroupRule.REPLACE_UNHEALTHY
    assert verdict(group, min_nodes=2, base=WATCHED).decided_by is GroupRule.TAINT_LOWER


def test_too_many_nodes_override_growth_and_never_soften_shrinking() -> None:
    group = nodes(10)
    up = verdict(group, load(110, group), max_nodes=7)
    assert (up.decided_by, up.delta) == (GroupRule.ABOVE_MAX, -3)
    down = verdict(group, max_nodes=7)
    assert (down.decided_by, down.delta) == (GroupRule.TAINT_LOWER, -5)


def test_a_sick_group_neither_grows_nor_shrinks() -> None:
    group = nodes(4, is_ready=False)
    found = verdict(group, load(110, group), base=WATCHED)
    assert found.wanted == (wish(GroupRule.SCALE_UP, 3), wish(GroupRule.HEALTH_GATE, 0))
    assert (found.decided_by, found.delta) == (GroupRule.HEALTH_GATE, 0)


def test_the_quirk_of_below_min_ends_the_pass() -> None:
    found = judge(NodeGroupState(), view(snapshot(nodes(1)), quirky("below_min_does_nothing", min_nodes=2)))
    assert (found.course, found.error) == (Course.STOP, PassError.BELOW_MIN)
