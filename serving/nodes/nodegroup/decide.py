"""One pass over one node group: a fold from (state, snapshot, settings, time) to (state, plan).

The plan lists effects in order, with reasons. It depends only on the inputs, and stays within the cloud's bounds.
Failed effects are reported to the next pass (``records.Failures``); until then the state assumes that the plan was
executed. The module uses no clock, no API and no other group.

Source: atlassian/escalator 043bb1b, pkg/controller/controller.go, scale_up.go, scale_down.go.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.group_memory import (
    NodeGroupState,
    ScaleLock,
    allowance,
    growth_requested,
    lock_in_force,
    observe,
)
from serving.nodes.nodegroup.plan import (
    DeleteNodes,
    Drain,
    Effect,
    GroupLimit,
    GroupPlan,
    IncreaseSize,
    PassError,
    Taint,
    Untaint,
)
from serving.nodes.nodegroup.reaper import Reaped, reap_force_tainted, reap_tainted
from serving.nodes.nodegroup.records import CloudGroup, Failures, GroupFacts
from serving.nodes.nodegroup.rules import Course, RuleVerdict, crowded_out_count, judge, nodes_to_add
from serving.nodes.nodegroup.states import newest_first, oldest_first
from serving.nodes.nodegroup.view import GroupView, node_capacity, view_of, with_cloud_bounds

# Bounds of growth that end with time; waiting for them is not an error.
_PASSING = frozenset({GroupLimit.LOCK, GroupLimit.NODES_ON_THEIR_WAY})


class GrowthBound(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of growth: at most ``count`` nodes, because of ``limit``."""

    limit: GroupLimit
    count: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes to untaint and the number of nodes to request. ``limits`` are the bounds that reduced the request."""

    untainted: tuple[str, ...] = ()
    added_count: int = 0
    limits: tuple[GroupLimit, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether nodes are missing, but none are requested from the cloud."""
        return self.added_count == 0 and bool(self.limits)

    @property
    def count(self) -> int:
        """Nodes that the group gains."""
        return len(self.untainted) + self.added_count


def nodes_to_untaint(view: GroupView, wanted_count: int) -> tuple[str, ...]:
    """Names of tainted nodes to untaint, newest first, at most ``wanted_count``. Unhealthy nodes stay tainted."""
    able = [node for node in view.parts.tainted if node.name not in view.unhealthy]
    room = wanted_count
    if not view.settings.quirks.scale_up_ignores_max_nodes:
        room = min(room, view.settings.max_nodes - len(view.parts.untainted))
    return tuple(node.name for node in newest_first(able, last=view.failed)[: max(0, room)])


def grow(
    view: GroupView,
    wanted_count: int,
    untainted: tuple[str, ...],
    *,
    target_size: int,
    more_bounds: Sequence[GrowthBound] = (),
) -> Growth:
    """Compute how many nodes to request from the cloud after untainting, within every bound.

    ``target_size`` is the cloud's target after this pass's deletions. Example: max_nodes is 10, 6 nodes are untainted,
    2 more become untainted, 1 is starting, and 5 are wanted. The request to the cloud is min(5 - 2, 10 - 6 - 2 - 1) =
    1.
    """
    remaining = wanted_count - len(untainted)
    if remaining <= 0:
        return Growth(untainted=untainted)
    cloud_room = nodes_to_add(remaining, target_size=target_size, max_size=view.cloud.max_size)
    bounds = [GrowthBound(limit=GroupLimit.CLOUD_MAX, count=cloud_room), *more_bounds]
    if not view.settings.quirks.scale_up_ignores_max_nodes:
        taken = len(view.parts.untainted) + len(untainted) + view.coming_count
        bounds.append(GrowthBound(limit=GroupLimit.MAX_NODES, count=view.settings.max_nodes - taken))
    added = max(0, min(remaining, *(bound.count for bound in bounds)))
    return Growth(
        untainted=untainted,
        added_count=added,
        limits=tuple(bound.limit for bound in bounds if bound.count < remaining),
    )


class Shrinkage(msgspec.Struct, frozen=True, kw_only=True):
    """Names to taint, oldest first, and the bounds that reduced their number."""

    tainted: tuple[str, ...] = ()
    limits: tuple[GroupLimit, ...] = ()


def shrink(view: GroupView, wanted_count: int, cloud: CloudGroup) -> Shrinkage:
    """Taint the oldest untainted nodes, within every bound.

    Example: with 2 untainted nodes and a minimum of 1, a wanted count of 5 taints 1 node. With a cloud target of 4 and
    a cloud minimum of 3, any wanted count taints at most 1 node, because no more could be deleted.
    """
    limits: list[GroupLimit] = []
    count = min(wanted_count, len(view.parts.untainted) - view.settings.min_nodes)
    if count < wanted_count:
        limits.append(GroupLimit.MIN_NODES)
    room = cloud.target_size - cloud.min_size
    is_bound = room >= 0 or not view.settings.quirks.taints_below_cloud_min
    if is_bound and count > room:
        count = room
        limits.append(GroupLimit.CLOUD_MIN)
    oldest = oldest_first(view.parts.untainted, last=view.failed)
    return Shrinkage(tainted=tuple(node.name for node in oldest[: max(0, count)]), limits=tuple(limits))


class _GroupActions(msgspec.Struct, frozen=True, kw_only=True):
    force_reaped: Reaped = Reaped()
    growth: Growth = Growth()
    reaped: Reaped = Reaped()
    shrinkage: Shrinkage = Shrinkage()


def decide(
    state: NodeGroupState, facts: GroupFacts, settings: NodeGroupSettings, *, now_s: float
) -> tuple[NodeGroupState, GroupPlan]:
    """Decide a pass of a group. ``now_s`` is in unix seconds, as are the times of nodes and taints.

    Example: 10 untainted nodes of 4000 m with requests of 44,000 m are at 110 %. With a threshold of 70 % the rules
    want ceil(10 x 40 / 70) = 6 more. No node is tainted, so the plan is one ``IncreaseSize(count=6)``, and the scale
    lock is set.
    """
    settings = with_cloud_bounds(settings, facts.cloud)
    view = view_of(state, facts, settings, now_s=now_s)
    state = _brought_up_to_date(state, view, facts.failures)
    verdict = judge(state, view)
    actions = _act(state, view, verdict)
    plan = _plan(view, verdict, actions, state=state)
    return _remembered(state, view, verdict, actions=actions), plan


def _brought_up_to_date(state: NodeGroupState, view: GroupView, failures: Failures) -> NodeGroupState:
    """Update the state with the nodes of this pass, and with the failures of the last plan."""
    names = {node.name for node in view.nodes}
    return msgspec.structs.replace(
        state,
        node_capacity=node_capacity(state, view),
        lock=None if failures.increase_failed else state.lock,
        breaker=observe(
            state.breaker,
            node_count=len(view.nodes),
            increase_failed=failures.increase_failed,
            settings=view.settings,
            now_s=view.now_s,
        ),
        dry_taints={name: at_s for name, at_s in state.dry_taints.items() if name in names},
        coming_since_s=_coming_since(state, view),
        coming_count=view.coming_count,
    )


def _coming_since(state: NodeGroupState, view: GroupView) -> float | None:
    """Since when machines without a node have been starting; None if all machines have nodes.

    The time begins again whenever their number changes.
    """
    if not view.coming_count:
        return None
    is_same = state.coming_since_s is not None and view.coming_count == state.coming_count
    return state.coming_since_s if is_same else view.now_s


def _act(state: NodeGroupState, view: GroupView, verdict: RuleVerdict) -> _GroupActions:
    """Select the nodes on which to execute the verdict of the rules.

    The nodes to untaint are selected before the reaper runs. The reaper's deletions change the cloud's target, and
    therefore the bounds for adding and tainting nodes.
    """
    if verdict.course is Course.STOP:
        return _GroupActions()
    stops_reaping = view.settings.quirks.scale_up_stops_reaping and verdict.delta > 0
    force_reaped = Reaped()
    if not (stops_reaping and verdict.course is Course.GROW_TO_MIN):
        force_reaped = reap_force_tainted(view, view.cloud)
    cloud = _lowered(view.cloud, force_reaped)
    untainted = nodes_to_untaint(view, verdict.delta)
    reaped = Reaped()
    if not stops_reaping:
        on_their_way_out = [node for node in view.parts.tainted if node.name not in untainted]
        reaped = reap_tainted(on_their_way_out, view, cloud, keep_healthy=not view.is_healthy)
    cloud = _lowered(cloud, reaped)
    growth = grow(
        view,
        verdict.delta,
        untainted,
        target_size=cloud.target_size,
        more_bounds=_bounds_of_the_moment(state, view, verdict, untainted=untainted),
    )
    shrinkage = shrink(view, -verdict.delta, cloud) if verdict.delta < 0 else Shrinkage()
    return _GroupActions(force_reaped=force_reaped, growth=growth, reaped=reaped, shrinkage=shrinkage)


def _lowered(cloud: CloudGroup, reaped: Reaped) -> CloudGroup:
    return msgspec.structs.replace(cloud, target_size=cloud.target_size - len(reaped.deleted))


def _bounds_of_the_moment(
    state: NodeGroupState, view: GroupView, verdict: RuleVerdict, *, untainted: Sequence[str]
) -> list[GrowthBound]:
    """The bounds from the breaker and, below the minimum, from the scale lock and from nodes that are starting."""
    bounds: list[GrowthBound] = []
    allowed = allowance(state.breaker)
    if allowed is not None:
        bounds.append(GrowthBound(limit=GroupLimit.BREAKER, count=allowed))
    if verdict.course is Course.GROW_TO_MIN and not view.settings.quirks.below_min_asks_every_pass:
        cool_down_s = view.settings.scale_up_cool_down_period_s
        if lock_in_force(state.lock, cool_down_s=cool_down_s, now_s=view.now_s):
            bounds.append(GrowthBound(limit=GroupLimit.LOCK, count=0))
        open_count = verdict.delta - len(untainted) - view.coming_count
        bounds.append(GrowthBound(limit=GroupLimit.NODES_ON_THEIR_WAY, count=open_count))
    return bounds


def _unregistered_count(state: NodeGroupState, view: GroupView) -> int:
    """The number of machines that should be nodes by now: they run, but no node has the group's label.

    Machines count once the window has passed in which requested machines must become nodes.
    """
    window_s = view.settings.scale_up_failure_window_s or view.settings.scale_up_cool_down_period_s
    since_s = state.coming_since_s
    return view.coming_count if since_s is not None and view.now_s - since_s >= window_s else 0


def _plan(view: GroupView, verdict: RuleVerdict, actions: _GroupActions, *, state: NodeGroupState) -> GroupPlan:
    effects = _effects(view, actions)
    is_dry = view.settings.dry_mode
    growth = actions.growth
    refused = [GroupLimit.CLOUD_MIN] if actions.force_reaped.is_refused or actions.reaped.is_refused else []
    error, requested_delta = verdict.error, verdict.requested_delta
    if verdict.course is Course.GROW_TO_MIN:
        is_stuck = growth.is_refused and not _PASSING.intersection(growth.limits)
        error = PassError.CANNOT_GROW if is_stuck else None
        requested_delta = 0 if is_stuck else growth.count
    return GroupPlan(
        requested_delta=requested_delta,
        decided_by=verdict.decided_by,
        wanted=verdict.wanted,
        effects=() if is_dry else effects,
        withheld=effects if is_dry else (),
        limits=tuple(dict.fromkeys([*growth.limits, *actions.shrinkage.limits, *refused])),
        kept_nodes=(*actions.force_reaped.kept_nodes, *actions.reaped.kept_nodes),
        error=error,
        usage=verdict.usage,
        unregistered_count=_unregistered_count(state, view),
        request=view.request,
        capacity=view.capacity,
        nodes=view.parts,
        pod_count=len(view.pods) - view.anticipated_count,
        anticipated_count=view.anticipated_count,
        crowded_out_count=crowded_out_count(view),
        is_healthy=view.is_healthy,
    )


def _effects(view: GroupView, actions: _GroupActions) -> tuple[Effect, ...]:
    """The effects in order: taint unhealthy nodes, untaint, delete and drain, request machines, taint spare nodes."""
    effects: list[Effect] = [_taint(name, view) for name in view.unhealthy_tainted]
    effects += [Untaint(node_name=name) for name in actions.growth.untainted]
    for reaped in (actions.force_reaped, actions.reaped):
        if reaped.deleted:
            effects.append(DeleteNodes(node_names=reaped.deleted))
        effects += [Drain(node_name=name) for name in reaped.drained]
    if actions.growth.added_count:
        effects.append(IncreaseSize(count=actions.growth.added_count))
    effects += [_taint(name, view) for name in actions.shrinkage.tainted]
    return tuple(effects)


def _taint(name: str, view: GroupView) -> Taint:
    return Taint(node_name=name, at_s=int(view.now_s), effect=view.settings.taint_effect)


def _remembered(
    state: NodeGroupState, view: GroupView, verdict: RuleVerdict, *, actions: _GroupActions
) -> NodeGroupState:
    added, is_dry = actions.growth.added_count, view.settings.dry_mode
    lock, breaker = verdict.lock, state.breaker
    if added and (not is_dry or view.settings.quirks.dry_mode_takes_lock):
        lock = ScaleLock(requested_count=added, locked_at_s=view.now_s)
    if added and not is_dry:
        breaker = growth_requested(breaker, node_count=len(view.nodes), settings=view.settings, now_s=view.now_s)
    return msgspec.structs.replace(
        state,
        lock=lock,
        breaker=breaker,
        dry_taints=_dry_taints(state, view, actions) if is_dry else {},
        last_scale_up_at_s=view.now_s if verdict.delta > 0 else state.last_scale_up_at_s,
    )


def _dry_taints(state: NodeGroupState, view: GroupView, actions: _GroupActions) -> Mapping[str, float | None]:
    at_s = int(view.now_s)
    return {
        **state.dry_taints,
        **dict.fromkeys((*view.unhealthy_tainted, *actions.shrinkage.tainted), at_s),
        **dict.fromkeys(actions.growth.untainted),
    }
