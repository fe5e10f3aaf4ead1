"""Each quirk of the original, off and on, in the same situation."""

from collections.abc import Callable

import pytest

from serving.core.model.quantity import Resources
from serving.core.settings.nodegroup import ORIGINAL, NodeGroupQuirks, NodeGroupSettings
from serving.core.settings.nodegroup_options import problems_of_node_group
from serving.nodes.nodegroup.facts import InitContainer, pod_request
from serving.nodes.nodegroup.group_memory import NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import DeleteNodes, Effect, GroupPlan, IncreaseSize, PassError, Untaint
from serving.nodes.nodegroup.records import Amount, Placement, PodPhase
from tests.unit.core.settings.test_nodegroup_options import OPTIONS
from tests.unit.nodes.nodegroup.builders import (
    NODE_AMOUNT,
    NOW_S,
    decided,
    load,
    node,
    nodes,
    pod,
    quirky,
    settings,
    snapshot,
)

GROUP = nodes(10)
FULL = load(110, GROUP)
HALF = load(50, GROUP)
DUE = node(10, tainted_ago_s=100.0)
LOCKED = NodeGroupState(lock=ScaleLock(requested_count=2, locked_at_s=NOW_S - 60.0))
WATCHED: dict[str, object] = {
    "unhealthy_node_grace_period_s": 300.0,
    "health_check_newest_nodes_percent": 100,
    "max_unhealthy_nodes_percent": 50,
}


def summary_of(plan: GroupPlan) -> tuple[object, ...]:
    """Effects in short: +n requested from the cloud, names tainted, untainted (~) or deleted (!)."""
    return tuple(_short(effect) for effect in (*plan.effects, *plan.withheld))


def _short(effect: Effect) -> object:
    if isinstance(effect, IncreaseSize):
        return effect.count
    if isinstance(effect, DeleteNodes):
        return "!" + ",".join(effect.node_names)
    return ("~" if isinstance(effect, Untaint) else "") + effect.node_name


def max_nodes(node_group_settings: NodeGroupSettings) -> object:
    return summary_of(decided(snapshot(GROUP, FULL), _with(node_group_settings, max_nodes=12))[1])


def lock_and_reaper(node_group_settings: NodeGroupSettings) -> object:
    return summary_of(decided(snapshot((*GROUP, DUE), FULL), node_group_settings, LOCKED)[1])


def growth_and_reaper(node_group_settings: NodeGroupSettings) -> object:
    protected = node(11, tainted_ago_s=100.0, is_ready=False)
    watched = _with(node_group_settings, **WATCHED)
    return summary_of(decided(snapshot((*GROUP, protected), FULL), watched)[1])


def sick_nodes(node_group_settings: NodeGroupSettings) -> object:
    group = (*nodes(2, is_ready=False), *nodes(3, first=2))
    watched = _with(node_group_settings, **WATCHED, min_nodes=4)
    return summary_of(decided(snapshot(group, load(50, group)), watched)[1])


def whole_batch(node_group_settings: NodeGroupSettings) -> object:
    due = (node(10, tainted_ago_s=100.0), node(11, tainted_ago_s=200.0))
    return summary_of(decided(snapshot((*GROUP, *due), HALF, cloud=(11, 30)), node_group_settings)[1])


def force_and_protection(node_group_settings: NodeGroupSettings) -> object:
    group_node = node(10, is_force_tainted=True, is_protected=True)
    return summary_of(decided(snapshot((*GROUP, group_node), HALF), node_group_settings)[1])


def too_few_nodes(node_group_settings: NodeGroupSettings) -> object:
    plan = decided(snapshot(nodes(1)), _with(node_group_settings, min_nodes=3))[1]
    return (*summary_of(plan), plan.error)


def below_min_again(node_group_settings: NodeGroupSettings) -> object:
    group = (*nodes(2), node(2, is_cordoned=True))
    return summary_of(decided(snapshot(group, target=4), _with(node_group_settings, min_nodes=3), LOCKED)[1])


def dry_lock(node_group_settings: NodeGroupSettings) -> object:
    return decided(snapshot(GROUP, FULL), _with(node_group_settings, dry_mode=True))[0].lock is not None


def dry_states(node_group_settings: NodeGroupSettings) -> object:
    group = (*nodes(2), node(2, is_cordoned=True), node(3, tainted_ago_s=5.0))
    parts = decided(snapshot(group), _with(node_group_settings, dry_mode=True))[1].nodes
    return (len(parts.untainted), len(parts.tainted), len(parts.cordoned))


def cached_capacity(node_group_settings: NodeGroupSettings) -> object:
    large = node(0, allocatable=NODE_AMOUNT + NODE_AMOUNT)
    return decided(snapshot((large, node(1))), node_group_settings)[0].node_capacity.cpu_m


def foreign_pods(node_group_settings: NodeGroupSettings) -> object:
    other = pod(on=DUE, placement=Placement(node_selector={"customer": "other"}))
    return summary_of(decided(snapshot((*GROUP, DUE), (*HALF, other)), node_group_settings)[1])


def impossible_pod(node_group_settings: NodeGroupSettings) -> object:
    pods = (*HALF, pod(4100, memory_bytes=1))
    return summary_of(decided(snapshot(GROUP, pods), _with(node_group_settings, scale_on_starve=True))[1])


def starting_pod(node_group_settings: NodeGroupSettings) -> object:
    pods = (*HALF, pod(2000, on=GROUP[0], memory_bytes=1, phase=PodPhase.PENDING))
    busy = tuple(pod(1, on=group_node, memory_bytes=1) for group_node in GROUP)
    return summary_of(decided(snapshot(GROUP, (*pods, *busy)), _with(node_group_settings, scale_on_starve=True))[1])


def others_on_the_nodes(node_group_settings: NodeGroupSettings) -> object:
    daemons = (
        pod(1000, on=group_node, memory_bytes=1, placement=Placement(owner_kind="DaemonSet")) for group_node in GROUP
    )
    pods = (*HALF, *daemons, pod(1500, memory_bytes=1))
    return summary_of(decided(snapshot(GROUP, pods), _with(node_group_settings, scale_on_starve=True))[1])


def split_room(node_group_settings: NodeGroupSettings) -> object:
    group = nodes(2)
    pods = (
        pod(3900, on=group[0], memory_bytes=1),
        pod(1, on=group[1], memory_bytes=NODE_AMOUNT.memory_bytes - 1),
        pod(1000, memory_bytes=2**30),
    )
    asking = _with(node_group_settings, scale_on_starve=True, scale_up_threshold_percent=80)
    return summary_of(decided(snapshot(group, pods), asking)[1])


def below_cloud_min(node_group_settings: NodeGroupSettings) -> object:
    return summary_of(decided(snapshot(GROUP, load(20, GROUP), target=2, cloud=(3, 30)), node_group_settings)[1])


def small_group(node_group_settings: NodeGroupSettings) -> object:
    group = nodes(2)
    return summary_of(decided(snapshot(group, load(36, group)), node_group_settings)[1])


def _with(node_group_settings: NodeGroupSettings, **changes: object) -> NodeGroupSettings:
    return settings(quirks=node_group_settings.quirks, **changes)


DECISIONS: dict[str, tuple[Callable[[NodeGroupSettings], object], object, object]] = {
    "scale_up_ignores_max_nodes": (max_nodes, (2,), (6,)),
    "lock_stops_reaping": (lock_and_reaper, ("!n010",), ()),
    "scale_up_stops_reaping": (growth_and_reaper, ("!n011", 6), (6,)),
    "unhealthy_tainted_without_limit": (sick_nodes, ("n000", 1), ("n000", "n001", 1)),
    "deletes_all_or_none": (whole_batch, ("!n011",), ()),
    "force_taint_overrides_no_delete": (force_and_protection, (), ("!n010",)),
    "below_min_does_nothing": (too_few_nodes, (2, None), (PassError.BELOW_MIN,)),
    "below_min_asks_every_pass": (below_min_again, (), (1,)),
    "dry_mode_takes_lock": (dry_lock, False, True),
    "dry_mode_ignores_real_state": (dry_states, (2, 1, 1), (4, 0, 0)),
    "capacity_cached_from_first_node": (cached_capacity, 4000, 8000),
    "foreign_pods_do_not_protect": (foreign_pods, (), ("!n010",)),
    "starve_counts_impossible_pods": (impossible_pod, (), (1,)),
    "starve_counts_bound_pods": (starting_pod, (), (1,)),
    "starve_compares_resources_apart": (split_room, (1,), ()),
    "starve_ignores_other_pods": (others_on_the_nodes, (1,), ()),
    "shrinking_crosses_scale_up_threshold": (small_group, (), ("n000",)),
    "taints_below_cloud_min": (below_cloud_min, (), ("n000", "n001")),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decision_without_quirk_is_safe(name: str) -> None:
    decide, safe, _ = DECISIONS[name]
    assert decide(settings()) == safe


@pytest.mark.parametrize("name", DECISIONS)
def test_decision_with_quirk_equals_original(name: str) -> None:
    decide, _, original = DECISIONS[name]
    assert decide(quirky(name)) == original


def problem_count(quirks: NodeGroupQuirks, **changes: object) -> int:
    return len(problems_of_node_group({**OPTIONS, **changes}, where="here", quirks=quirks))


CHECKS: dict[str, tuple[dict[str, object], int, int]] = {
    "min_equal_to_max_refused": ({"min_nodes": 3, "max_nodes": 3}, 0, 1),
    "negative_rates_accepted": ({"slow_node_removal_rate": -1}, 1, 0),
    "follow_on_problems_reported": ({"hard_delete_grace_period": ""}, 1, 3),
}


@pytest.mark.parametrize("name", CHECKS)
def test_validation_quirk_changes_problem_count(name: str) -> None:
    changes, safe, original = CHECKS[name]
    assert problem_count(NodeGroupQuirks(), **changes) == safe
    assert problem_count(NodeGroupQuirks(**{name: True}), **changes) == original


def test_sidecar_request_is_added_to_containers_unless_quirk_is_set() -> None:
    sidecar = [InitContainer(request=Resources(cpu_m=500), is_sidecar=True)]
    amounts = [
        pod_request([Resources(cpu_m=1000)], sidecar, sidecars_count_as_init_containers=quirk)
        for quirk in (NodeGroupQuirks().sidecars_count_as_init_containers, ORIGINAL.sidecars_count_as_init_containers)
    ]
    assert amounts == [Amount(cpu_m=1500), Amount(cpu_m=1000)]


def test_every_quirk_is_covered_by_this_file() -> None:
    shown = {*DECISIONS, *CHECKS, "sidecars_count_as_init_containers"}
    assert shown == set(NodeGroupQuirks.__struct_fields__)


def test_original_enables_all_quirks_and_default_none() -> None:
    names = NodeGroupQuirks.__struct_fields__
    assert {getattr(ORIGINAL, name) for name in names} == {True}
    assert {getattr(NodeGroupQuirks(), name) for name in names} == {False}


def test_growth_to_minimum_stops_reaping_only_with_quirk() -> None:
    seen = snapshot((*nodes(2), node(2, is_force_tainted=True)))
    assert summary_of(decided(seen, settings(min_nodes=3))[1]) == ("!n002", 1)
    assert summary_of(decided(seen, quirky("scale_up_stops_reaping", min_nodes=3))[1]) == (1,)


def test_negative_removal_rate_grows_idle_group() -> None:
    accepting = quirky("negative_rates_accepted", fast_node_removal_rate=-1)
    assert summary_of(decided(snapshot(nodes(3)), accepting)[1]) == (1,)
