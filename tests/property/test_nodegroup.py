"""Plans for any node group: bounds, protection, order and grace periods are respected."""

import random
from collections import Counter

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.core.settings.nodegroup import ORIGINAL, NodeGroupQuirks, NodeGroupSettings
from serving.nodes.nodegroup.group_memory import BreakerPhase, NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import DeleteNodes, Drain, GroupPlan, IncreaseSize, Taint, Untaint, Utilisation
from serving.nodes.nodegroup.records import Amount, CloudGroup, GroupNode, GroupPod, PodPhase, RemovalTaint
from serving.nodes.nodegroup.rules import from_zero_delta, scale_up_delta
from serving.nodes.nodegroup.states import NodeState, newest_first, oldest_first, partition, state_of
from serving.nodes.nodegroup.view import view_of
from tests.unit.nodes.nodegroup.builders import GIB, LABELS, NODE_AMOUNT, NOW_S, PLACED, settings
from tests.unit.nodes.nodegroup.outcome import Snapshot, carried_out, decide, gathered

NODES_MAX = 12


@st.composite
def nodes(draw: st.DrawFn, number: int) -> GroupNode:
    tainted_ago_s = draw(st.sampled_from([*[None] * 12, 10.0, 60.0, 61.0, 600.0, 700.0, 2000.0]))
    return GroupNode(
        name=f"n{number:03}",
        created_at_s=NOW_S - draw(st.sampled_from([10.0, 300.0, 3600.0, 90000.0])),
        allocatable=draw(st.sampled_from([NODE_AMOUNT, NODE_AMOUNT, Amount(cpu_m=2000, memory_bytes=8 * GIB)])),
        labels=LABELS,
        is_cordoned=draw(st.integers(0, 9)) == 0,
        is_force_tainted=draw(st.integers(0, 9)) == 0,
        removal_taint=None if tainted_ago_s is None else RemovalTaint(at_s=NOW_S - tainted_ago_s),
        is_protected=draw(st.integers(0, 5)) == 0,
        is_ready=draw(st.integers(0, 4)) != 0,
    )


@st.composite
def pods(draw: st.DrawFn, number: int, names: list[str | None]) -> GroupPod:
    node_name = draw(st.sampled_from(names))
    return GroupPod(
        name=f"p{number}",
        request=Amount(cpu_m=draw(st.integers(0, 4500)), memory_bytes=draw(st.integers(0, 17)) * GIB),
        phase=PodPhase.RUNNING if node_name else PodPhase.PENDING,
        node_name=node_name,
        is_scheduled=node_name is not None,
        placement=PLACED,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    group = tuple(draw(nodes(number)) for number in range(draw(st.integers(0, NODES_MAX))))
    names = [None, *(group_node.name for group_node in group)]
    cloud_min = draw(st.integers(0, 6))
    return Snapshot(
        nodes=group,
        pods=tuple(draw(pods(number, names)) for number in range(draw(st.integers(0, 10)))),
        cloud=CloudGroup(
            target_size=max(0, len(group) + draw(st.integers(-2, 3))),
            min_size=cloud_min,
            max_size=cloud_min + draw(st.integers(0, 20)),
        ),
    )


@st.composite
def options(draw: st.DrawFn) -> NodeGroupSettings:
    min_nodes = draw(st.integers(0, 5))
    return settings(
        min_nodes=min_nodes,
        max_nodes=min_nodes + draw(st.integers(1, 10)),
        scale_on_starve=draw(st.booleans()),
        max_node_age_s=draw(st.sampled_from([0.0, 86400.0])),
        unhealthy_node_grace_period_s=draw(st.sampled_from([0.0, 300.0])),
        health_check_newest_nodes_percent=draw(st.integers(1, 100)),
        max_unhealthy_nodes_percent=draw(st.integers(0, 99)),
    )


def planned(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings, state: NodeGroupState | None = None
) -> GroupPlan:
    return decide(state or NodeGroupState(), snapshot, node_group_settings, now_s=NOW_S)[1]


def tainted_by(plan: GroupPlan) -> list[str]:
    return [effect.node_name for effect in plan.effects if isinstance(effect, Taint)]


def untainted_by(plan: GroupPlan) -> list[str]:
    return [effect.node_name for effect in plan.effects if isinstance(effect, Untaint)]


def deleted_by(plan: GroupPlan) -> list[str]:
    return [name for effect in plan.effects if isinstance(effect, DeleteNodes) for name in effect.node_names]


def added_by(plan: GroupPlan) -> int:
    return sum(effect.count for effect in plan.effects if isinstance(effect, IncreaseSize))


@given(snapshots(), options())
def test_tainting_never_leaves_fewer_than_min_nodes(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    before = len(partition(snapshot.nodes).untainted)
    after = len(partition(carried_out(snapshot, planned(snapshot, node_group_settings).effects).nodes).untainted)
    assert after >= min(before, node_group_settings.min_nodes)


@given(snapshots(), options())
def test_fixed_size_group_taints_at_most_one_below_its_size(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    size = max(1, node_group_settings.min_nodes)
    fixed = msgspec.structs.replace(node_group_settings, min_nodes=size, max_nodes=size)
    before = len(partition(snapshot.nodes).untainted)
    after = len(partition(carried_out(snapshot, planned(snapshot, fixed).effects).nodes).untainted)
    assert after >= min(before, size) - 1


@given(snapshots(), options())
def test_growth_never_exceeds_max_nodes(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    plan = planned(snapshot, node_group_settings)
    coming = max(0, snapshot.cloud.target_size - len(snapshot.nodes))
    before = len(partition(snapshot.nodes).untainted) + coming
    # Tainting an unhealthy node makes room for an untaint in the same pass.
    there = len(partition(carried_out(snapshot, plan.effects).nodes).untainted)
    assert there <= max(before, node_group_settings.max_nodes)
    assert not added_by(plan) or there + coming + added_by(plan) <= node_group_settings.max_nodes


@given(snapshots(), options())
def test_cloud_requests_respect_the_limits_of_the_cloud_group(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    plan = planned(snapshot, node_group_settings)
    lowered = snapshot.cloud.target_size - len(deleted_by(plan))
    assert not deleted_by(plan) or lowered >= snapshot.cloud.min_size
    assert not added_by(plan) or lowered + added_by(plan) <= snapshot.cloud.max_size


@given(snapshots(), options())
def test_node_state_limits_its_taint_untaint_and_delete(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    plan = planned(snapshot, node_group_settings)
    states = {group_node.name: state_of(group_node) for group_node in snapshot.nodes}
    assert {states[name] for name in tainted_by(plan)} <= {NodeState.UNTAINTED}
    assert {states[name] for name in untainted_by(plan)} <= {NodeState.TAINTED}
    assert {states[name] for name in deleted_by(plan)} <= {NodeState.TAINTED, NodeState.FORCE_TAINTED}
    assert plan.capacity == sum((group_node.allocatable for group_node in plan.nodes.untainted), start=Amount())


@given(snapshots(), options())
def test_protected_and_cordoned_nodes_are_never_deleted(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    undeletable_names = {
        group_node.name for group_node in snapshot.nodes if group_node.is_protected or group_node.is_cordoned
    }
    assert not undeletable_names.intersection(deleted_by(planned(snapshot, node_group_settings)))


@given(snapshots(), options())
def test_soft_and_hard_grace_are_respected(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    busy = {group_pod.node_name for group_pod in snapshot.pods}
    plan = planned(snapshot, node_group_settings)
    going = {*deleted_by(plan), *(effect.node_name for effect in plan.effects if isinstance(effect, Drain))}
    for group_node in partition(snapshot.nodes).tainted:
        if group_node.name in going:
            assert group_node.removal_taint is not None
            assert group_node.removal_taint.at_s is not None
            grace_s = (
                node_group_settings.hard_delete_grace_period_s
                if group_node.name in busy
                else node_group_settings.soft_delete_grace_period_s
            )
            assert NOW_S - group_node.removal_taint.at_s > grace_s


@given(snapshots(), options())
def test_nodes_are_tainted_oldest_first_and_untainted_newest_first(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    node_group_settings = msgspec.structs.replace(node_group_settings, unhealthy_node_grace_period_s=0.0)
    plan, parts = planned(snapshot, node_group_settings), partition(snapshot.nodes)
    oldest = [group_node.name for group_node in oldest_first(parts.untainted)]
    newest = [group_node.name for group_node in newest_first(parts.tainted)]
    assert tainted_by(plan) == oldest[: len(tainted_by(plan))]
    assert untainted_by(plan) == newest[: len(untainted_by(plan))]


@given(snapshots(), options(), st.sampled_from([NodeGroupQuirks(), ORIGINAL]))
def test_plan_has_no_duplicate_or_contradictory_effects(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings, quirks: NodeGroupQuirks
) -> None:
    plan = planned(snapshot, msgspec.structs.replace(node_group_settings, quirks=quirks))
    touched = Counter([*tainted_by(plan), *untainted_by(plan), *deleted_by(plan)])
    assert not touched or max(touched.values()) == 1
    assert not (added_by(plan) and plan.requested_delta < 0)
    assert plan.requested_delta >= 0 or not untainted_by(plan)


@given(snapshots(), options())
def test_every_tainted_node_is_deleted_untainted_or_has_a_reason(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings
) -> None:
    plan = planned(snapshot, node_group_settings)
    assume(plan.error is None)
    explained = {*deleted_by(plan), *untainted_by(plan), *(kept_node.node_name for kept_node in plan.kept_nodes)}
    on_their_way_out = (*plan.nodes.tainted, *plan.nodes.force_tainted)
    assert {group_node.name for group_node in on_their_way_out} == explained


@given(snapshots(), options(), st.integers(0, 119))
def test_scale_lock_prevents_growth_and_the_plan_is_stable(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings, ago_s: int
) -> None:
    locked = NodeGroupState(lock=ScaleLock(requested_count=2, locked_at_s=NOW_S - ago_s))
    state, plan = decide(locked, snapshot, node_group_settings, now_s=NOW_S)
    assert added_by(plan) == 0
    assert decide(state, snapshot, node_group_settings, now_s=NOW_S) == (state, plan)


@given(snapshots(), options())
def test_dry_mode_withholds_exactly_the_effects(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    dry = planned(snapshot, msgspec.structs.replace(node_group_settings, dry_mode=True))
    assert dry.effects == ()
    assert dry.withheld == planned(snapshot, node_group_settings).effects


@given(snapshots(), options(), st.randoms(use_true_random=False))
def test_effects_are_independent_of_the_order_of_nodes_and_pods(
    snapshot: Snapshot, node_group_settings: NodeGroupSettings, order: random.Random
) -> None:
    shuffled = msgspec.structs.replace(
        snapshot,
        nodes=tuple(order.sample(snapshot.nodes, len(snapshot.nodes))),
        pods=tuple(order.sample(snapshot.pods, len(snapshot.pods))),
    )
    assert planned(shuffled, node_group_settings).effects == planned(snapshot, node_group_settings).effects


@given(snapshots(), options())
def test_state_and_plan_round_trip_through_json(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    state, plan = decide(
        NodeGroupState(), snapshot, msgspec.structs.replace(node_group_settings, dry_mode=True), now_s=NOW_S
    )
    assert msgspec.json.decode(msgspec.json.encode(state), type=NodeGroupState) == state
    assert msgspec.json.decode(msgspec.json.encode(plan), type=GroupPlan) == plan


@given(snapshots(), options())
def test_each_node_is_in_exactly_one_part(snapshot: Snapshot, node_group_settings: NodeGroupSettings) -> None:
    parts = view_of(NodeGroupState(), gathered(snapshot, node_group_settings), node_group_settings, now_s=NOW_S).parts
    names = [group_node.name for part in msgspec.structs.astuple(parts) for group_node in part]
    assert sorted(names) == sorted(group_node.name for group_node in snapshot.nodes)


@given(st.integers(1, 200), st.integers(1, 150), st.floats(0, 1000), st.floats(0, 1000))
def test_scale_up_delta_is_the_smallest_that_reaches_the_threshold(
    node_count: int, threshold: int, cpu_percent: float, memory_percent: float
) -> None:
    usage = Utilisation(cpu_percent=cpu_percent, memory_percent=memory_percent)
    assume(usage.percent > threshold)
    delta = scale_up_delta(usage, node_count=node_count, threshold_percent=threshold)
    assert delta >= 1
    assert usage.percent * node_count / (node_count + delta) <= threshold * (1 + 1e-9)
    assert usage.percent * node_count / (node_count + delta - 1) > threshold * (1 - 1e-9)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 150))
def test_more_requests_never_lower_the_delta_from_zero(less: int, more: int, node_cpu_m: int, threshold: int) -> None:
    capacity = Amount(cpu_m=node_cpu_m, memory_bytes=GIB)
    deltas = [
        from_zero_delta(Amount(cpu_m=cpu_m), node_capacity=capacity, threshold_percent=threshold)
        for cpu_m in sorted((less, more))
    ]
    assert 0 <= deltas[0] <= deltas[1]


@given(st.integers(1, 6), st.integers(2, 9))
def test_breaker_opens_exactly_after_its_threshold(threshold: int, node_count: int) -> None:
    node_group_settings = settings(scale_up_failure_threshold=threshold, max_nodes=10**6, min_nodes=1)
    group = tuple(
        GroupNode(name=f"n{number}", created_at_s=NOW_S, allocatable=NODE_AMOUNT, labels=LABELS)
        for number in range(node_count)
    )
    wanting = GroupPod(name="p", request=Amount(cpu_m=10**6), placement=PLACED)
    snapshot = Snapshot(
        nodes=group,
        pods=(wanting,),
        cloud=CloudGroup(target_size=node_count, min_size=0, max_size=10**9),
    )
    state = NodeGroupState()
    for number in range(threshold):
        state, plan = decide(
            state, snapshot, node_group_settings, now_s=NOW_S + number * node_group_settings.scale_up_cool_down_period_s
        )
        assert state.breaker.phase is BreakerPhase.CLOSED
        assert added_by(plan) > 0
    state, plan = decide(
        state, snapshot, node_group_settings, now_s=NOW_S + threshold * node_group_settings.scale_up_cool_down_period_s
    )
    assert state.breaker.phase is BreakerPhase.OPEN
    assert added_by(plan) == 0


def with_machines_started(snapshot: Snapshot, now_s: float) -> Snapshot:
    """A perfect cloud: every request is fulfilled."""
    missing = snapshot.cloud.target_size - len(snapshot.nodes)
    new = tuple(
        GroupNode(name=f"m{now_s:.0f}-{number:03}", created_at_s=now_s, allocatable=NODE_AMOUNT, labels=LABELS)
        for number in range(missing)
    )
    return msgspec.structs.replace(snapshot, nodes=(*snapshot.nodes, *new))


@given(st.integers(0, 20), st.integers(0, 200), st.integers(1, 3))
def test_node_group_settles_below_the_threshold_under_steady_load(
    node_count: int, pod_count: int, min_nodes: int
) -> None:
    node_group_settings = settings(min_nodes=min_nodes, max_nodes=60)
    start = CloudGroup(target_size=node_count, min_size=0, max_size=100)
    waiting = tuple(
        GroupPod(name=f"p{number}", request=Amount(cpu_m=500, memory_bytes=1), placement=PLACED)
        for number in range(pod_count)
    )
    seen, state = Snapshot(nodes=(), pods=waiting, cloud=start), NodeGroupState()
    plan, now_s = None, NOW_S
    for number in range(40):
        now_s = NOW_S + number * 120.0
        seen = with_machines_started(seen, now_s)
        state, plan = decide(state, seen, node_group_settings, now_s=now_s)
        seen = carried_out(seen, plan.effects)
    assert plan is not None
    assert plan.effects == ()
    assert isinstance(plan.usage, Utilisation)
    assert plan.usage.percent <= node_group_settings.scale_up_threshold_percent
