"""The proposal of each rule, and which rule decides."""

import msgspec
import pytest

from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings
from serving.nodes.nodegroup.group_memory import NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import FromZero, GroupRule, PassError, Utilisation, WantedNodes
from serving.nodes.nodegroup.records import Amount, GroupNode, GroupPod, Placement, PodPhase
from serving.nodes.nodegroup.rules import (
    Course,
    RuleVerdict,
    crowded_out_count,
    free_amounts,
    judge,
    renewal_is_due,
    starving_pods,
)
from tests.unit.nodes.nodegroup.builders import (
    GIB,
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

GROUP = nodes(2)
HALF_FULL = tuple(pod(2000, on=group_node) for group_node in GROUP)
SMALL = Amount(cpu_m=1000, memory_bytes=3 * GIB)
DAEMON = Placement(owner_kind="DaemonSet")
OTHER = Placement(node_selector={"customer": "other"})


def new_verdict(
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


def wanted(rule: GroupRule, delta: int) -> WantedNodes:
    return WantedNodes(rule=rule, delta=delta)


def test_empty_group_without_requests_stops_the_pass() -> None:
    assert new_verdict((), min_nodes=0) == RuleVerdict(course=Course.STOP, decided_by=GroupRule.EMPTY)


def test_empty_group_grows_to_min_nodes() -> None:
    rule_verdict = new_verdict((), min_nodes=3)
    assert (rule_verdict.course, rule_verdict.delta) == (Course.GROW_TO_MIN, 3)


def test_locked_group_below_minimum_grows_to_minimum() -> None:
    rule_verdict = new_verdict((node(0), node(1, is_cordoned=True)), state=locked(10.0), min_nodes=2)
    assert rule_verdict == RuleVerdict(
        course=Course.GROW_TO_MIN,
        decided_by=GroupRule.BELOW_MIN,
        delta=1,
        wanted=(wanted(GroupRule.BELOW_MIN, 1),),
        lock=locked(10.0).lock,
    )


def test_nodes_without_allocatable_stop_the_pass() -> None:
    rule_verdict = new_verdict((node(0, allocatable=Amount()),))
    assert (rule_verdict.course, rule_verdict.error, rule_verdict.delta) == (Course.STOP, PassError.NO_CAPACITY, 0)


def test_locked_group_has_delta_0() -> None:
    group = nodes(10)
    rule_verdict = new_verdict(group, load(110, group), locked(60.0))
    assert (rule_verdict.course, rule_verdict.decided_by, rule_verdict.requested_delta, rule_verdict.delta) == (
        Course.CHANGE,
        GroupRule.LOCK,
        6,
        0,
    )


def test_expired_lock_is_dropped_and_thresholds_decide() -> None:
    group = nodes(10)
    rule_verdict = new_verdict(group, load(110, group), locked(120.0))
    assert (rule_verdict.decided_by, rule_verdict.delta, rule_verdict.lock) == (GroupRule.SCALE_UP, 6, None)
    assert isinstance(rule_verdict.usage, Utilisation)
    assert round(rule_verdict.usage.percent, 9) == 110.0


def test_from_zero_uses_remembered_node_capacity() -> None:
    rule_verdict = new_verdict((), (pod(8000),), min_nodes=0)
    assert (rule_verdict.decided_by, rule_verdict.delta, rule_verdict.usage) == (GroupRule.FROM_ZERO, 3, FromZero())


def test_starving_pod_overrides_shrinking() -> None:
    group = nodes(4)
    pods = (*(pod(1300, on=group_node, memory_bytes=1) for group_node in group), pod(3000, memory_bytes=1))
    rule_verdict = new_verdict(group, pods, scale_on_starve=True, taint_upper_capacity_threshold_percent=69)
    assert rule_verdict.wanted == (wanted(GroupRule.TAINT_UPPER, -1), wanted(GroupRule.STARVE, 1))
    assert (rule_verdict.decided_by, rule_verdict.delta) == (GroupRule.STARVE, 1)


def small_group(
    count: int, *waiting_m: int, daemons_m: int = 450
) -> tuple[tuple[GroupNode, ...], tuple[GroupPod, ...]]:
    """Nodes of 1000 m with a DaemonSet pod each, two pods of 200 m on the first node, and pending pods."""
    group = nodes(count, allocatable=SMALL)
    daemons = [pod(daemons_m, on=group_node, memory_bytes=1, placement=DAEMON) for group_node in group]
    own = [pod(200, on=group[0], memory_bytes=1) for _ in range(2)]
    pending = [pod(cpu_m, name=f"waits-{cpu_m}", memory_bytes=1) for cpu_m in waiting_m]
    return group, (*daemons, *own, *pending)


def test_pod_starves_if_daemon_sets_use_the_room() -> None:
    group, pods = small_group(1, 200)
    rule_verdict = new_verdict(group, pods, scale_on_starve=True)
    assert (rule_verdict.decided_by, rule_verdict.delta) == (GroupRule.STARVE, 1)
    assert isinstance(rule_verdict.usage, Utilisation)
    assert round(rule_verdict.usage.percent, 9) == 60.0, "usage excludes DaemonSets, as in Escalator"
    assert new_verdict(group, pods).decided_by is GroupRule.STEADY


def test_crowded_out_pods_are_counted() -> None:
    def crowded_out(*seen: GroupPod) -> int:
        return crowded_out_count(view(snapshot(group, seen)))

    group, pods = small_group(1, 200, 900)
    assert crowded_out(*pods) == 1, "900 m do not fit even without the DaemonSet pod"
    assert crowded_out(*pods[:3]) == 0, "no pod is pending"
    assert crowded_out(*pods[1:]) == 0, "the nodes have no other pods"
    foreign = pod(450, on=group[0], memory_bytes=1, placement=OTHER)
    assert crowded_out(foreign, *pods[1:]) == 1


def test_pod_that_never_fits_next_to_daemon_set_adds_no_nodes() -> None:
    group, pods = small_group(1, 600)
    assert new_verdict(group, pods, scale_on_starve=True, scale_up_threshold_percent=100).decided_by is GroupRule.STEADY
    foreign = (pod(450, on=group[0], memory_bytes=1, placement=OTHER), *pods[1:])
    rule_verdict = new_verdict(group, foreign, scale_on_starve=True, scale_up_threshold_percent=100)
    assert rule_verdict.decided_by is GroupRule.STARVE, "a new node does not have the foreign pod"


def test_shrinking_excludes_node_whose_pods_would_starve() -> None:
    group, pods = small_group(2)
    busy = (*pods, pod(200, on=group[1], memory_bytes=1))
    assert new_verdict(group, busy).delta == -1
    assert new_verdict(group, busy, scale_on_starve=True).delta == 0
    assert new_verdict(group, pods, scale_on_starve=True).delta == -1, "400 m fit on one node"
    full = small_group(2, daemons_m=1000)
    assert new_verdict(*full, scale_on_starve=True).delta == 0


def test_starvation_does_not_reduce_larger_scale_up() -> None:
    group = nodes(2)
    rule_verdict = new_verdict(group, (*load(100, group), pod(4000, memory_bytes=1)), scale_on_starve=True)
    assert (rule_verdict.decided_by, rule_verdict.delta) == (GroupRule.SCALE_UP, 3)


def test_starving_pod_adds_node_only_below_max_nodes() -> None:
    group = nodes(2)
    pods = (*load(45, group), pod(3000, memory_bytes=1))
    assert new_verdict(group, pods, scale_up_threshold_percent=90).decided_by is GroupRule.STEADY
    assert (
        new_verdict(group, pods, scale_up_threshold_percent=90, scale_on_starve=True, max_nodes=2).decided_by
        is GroupRule.STEADY
    )
    assert new_verdict(group, pods, scale_up_threshold_percent=90, scale_on_starve=True).decided_by is GroupRule.STARVE


def test_empty_group_finds_impossible_pods_by_remembered_capacity() -> None:
    rule_verdict = new_verdict((), (pod(5000),), min_nodes=0, scale_on_starve=True)
    assert GroupRule.STARVE not in {wanted_nodes.rule for wanted_nodes in rule_verdict.wanted}
    unknown = new_verdict((), (pod(5000),), NodeGroupState(), min_nodes=0, scale_on_starve=True)
    assert GroupRule.STARVE in {wanted_nodes.rule for wanted_nodes in unknown.wanted}


def test_expired_node_at_minimum_adds_one_node() -> None:
    rule_verdict = new_verdict(nodes(3), min_nodes=3, max_node_age_s=3600.0)
    assert (rule_verdict.decided_by, rule_verdict.delta) == (GroupRule.MAX_NODE_AGE, 1)


def test_unhealthy_node_at_minimum_is_replaced() -> None:
    group = (node(0, is_ready=False), *nodes(2, first=1))
    assert new_verdict(group, min_nodes=3, base=WATCHED).decided_by is GroupRule.REPLACE_UNHEALTHY
    assert new_verdict(group, min_nodes=2, base=WATCHED).decided_by is GroupRule.TAINT_LOWER


def test_above_max_overrides_growth_but_not_larger_shrinking() -> None:
    group = nodes(10)
    up = new_verdict(group, load(110, group), max_nodes=7)
    assert (up.decided_by, up.delta) == (GroupRule.ABOVE_MAX, -3)
    down = new_verdict(group, max_nodes=7)
    assert (down.decided_by, down.delta) == (GroupRule.TAINT_LOWER, -5)


def test_unhealthy_group_does_not_grow() -> None:
    group = nodes(4, is_ready=False)
    rule_verdict = new_verdict(group, load(110, group), base=WATCHED)
    assert rule_verdict.wanted == (wanted(GroupRule.SCALE_UP, 3), wanted(GroupRule.HEALTH_GATE, 0))
    assert (rule_verdict.decided_by, rule_verdict.delta) == (GroupRule.HEALTH_GATE, 0)


def test_below_min_quirk_stops_the_pass_with_error() -> None:
    rule_verdict = judge(NodeGroupState(), view(snapshot(nodes(1)), quirky("below_min_does_nothing", min_nodes=2)))
    assert (rule_verdict.course, rule_verdict.error) == (Course.STOP, PassError.BELOW_MIN)


def due(*group: GroupNode, tainted_count: int = 0, min_nodes: int = 1, max_node_age_s: float = 3600.0) -> bool:
    node_group_settings = settings(min_nodes=min_nodes, max_node_age_s=max_node_age_s)
    return renewal_is_due(group, tainted_count=tainted_count, settings=node_group_settings, now_s=NOW_S)


@pytest.mark.parametrize(("age_s", "is_due"), [(3600.0, False), (3600.5, True)])
def test_renewal_is_due_beyond_maximum_age(age_s: float, *, is_due: bool) -> None:
    assert due(node(0, age_s=age_s)) is is_due


def test_renewal_is_not_due_above_minimum() -> None:
    assert not due(node(0), node(1))


def test_renewal_is_not_due_while_a_node_is_tainted() -> None:
    assert not due(node(0), tainted_count=1)


def test_renewal_is_not_due_in_empty_group() -> None:
    assert not due(min_nodes=0)


@pytest.mark.parametrize("max_node_age_s", [0.0, -60.0])
def test_maximum_age_of_0_or_less_disables_renewal(max_node_age_s: float) -> None:
    assert not due(node(0), max_node_age_s=max_node_age_s)


def starving(*pods: GroupPod, largest: tuple[Amount, ...] = (NODE_AMOUNT,), **quirks: bool) -> tuple[str, ...]:
    everything = (*HALF_FULL, *pods)
    free = free_amounts(GROUP, everything)
    return starving_pods(everything, free=free, largest=largest, quirks=NodeGroupQuirks(**quirks))


def waiting(
    cpu_m: int, *, on: GroupNode | None = None, memory_bytes: int = GIB, phase: PodPhase = PodPhase.PENDING
) -> GroupPod:
    return pod(cpu_m, name="waiting", on=on, memory_bytes=memory_bytes, phase=phase)


def test_free_amount_is_allocatable_minus_scheduled_pods() -> None:
    group_node = node(0)
    pods = (
        pod(1000, on=group_node),
        pod(500, on=group_node, phase=PodPhase.PENDING),
        pod(300, on=group_node, is_scheduled=False),
        pod(200, on=group_node, phase=PodPhase.UNKNOWN),
        pod(100),
    )
    assert free_amounts([group_node], pods) == {"n000": Amount(cpu_m=2500, memory_bytes=14 * GIB)}


def test_pod_that_fits_exactly_does_not_starve() -> None:
    assert starving(waiting(2000)) == ()
    assert starving(waiting(2001)) == ("waiting",)


def test_pod_starves_for_lack_of_memory() -> None:
    assert starving(waiting(1, memory_bytes=15 * GIB + 1)) == ("waiting",)


def test_pod_larger_than_any_node_is_not_starving() -> None:
    assert starving(waiting(4100)) == ()
    assert starving(waiting(4100), starve_counts_impossible_pods=True) == ("waiting",)


def test_no_pod_is_impossible_without_known_nodes() -> None:
    assert starving(waiting(4100), largest=()) == ("waiting",)


def test_bound_pod_is_not_starving() -> None:
    starting = waiting(2000, on=GROUP[0], phase=PodPhase.PENDING)
    other = pod(2000, on=GROUP[1])
    assert starving(starting, other) == ()
    assert starving(starting, other, starve_counts_bound_pods=True) == ("waiting",)


def test_pod_starves_if_no_single_node_has_both_resources() -> None:
    split = (pod(1000, on=GROUP[0], memory_bytes=14 * GIB), pod(2000, on=GROUP[1], memory_bytes=GIB))
    asking = waiting(500, memory_bytes=10 * GIB)
    assert starving(*split, asking) == ("waiting",)
    assert starving(*split, asking, starve_compares_resources_apart=True) == ()


def test_pod_without_requests_fits_overcommitted_node() -> None:
    overcommitted = tuple(pod(3000, on=group_node) for group_node in GROUP)
    assert starving(*overcommitted, waiting(0, memory_bytes=0)) == ()


def test_every_pending_pod_starves_without_untainted_nodes() -> None:
    quirks = NodeGroupQuirks(starve_compares_resources_apart=True)
    assert starving_pods([waiting(1)], free={}, largest=(), quirks=quirks) == ("waiting",)
    assert starving_pods([waiting(1)], free={}, largest=(), quirks=NodeGroupQuirks()) == ("waiting",)
