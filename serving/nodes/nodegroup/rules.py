"""Evaluates the rules of a group in order; the first applicable one decides the change in nodes.

Input: the state and the view of one pass; output: a verdict, before the cloud's bounds apply. The rules are ordered as
in this file: bounds, lock, thresholds, extra triggers, the upper bound, health. Source: atlassian/escalator 043bb1b,
pkg/controller/controller.go.
"""

import enum
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from serving.core.model.nodata import NoData
from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings
from serving.nodes.nodegroup.group_memory import NodeGroupState, ScaleLock, lock_in_force
from serving.nodes.nodegroup.plan import FromZero, GroupRule, PassError, Usage, Utilisation, WantedNodes, utilisation
from serving.nodes.nodegroup.records import Amount, GroupNode, GroupPod, OthersUsage, PodPhase
from serving.nodes.nodegroup.view import GroupView, takes_room

_NO_OTHERS: Mapping[str, OthersUsage] = {}


def scale_up_delta(usage: Utilisation, *, node_count: int, threshold_percent: int) -> int:
    """Nodes to add so that the utilisation falls to the threshold: ceil(n x (percent - threshold) / threshold).

    Example: 2 nodes at 250 % with a threshold of 70 %: 2 x 180 / 70 = 5.14, so 6; 8 nodes are then at 62.5 %. The
    result is rounded up so that the utilisation is not above the threshold. The resource that needs more nodes decides.
    ``threshold_delta`` calls this function only above the threshold.
    """
    return max(
        math.ceil(node_count * ((percent - threshold_percent) / threshold_percent))
        for percent in (usage.cpu_percent, usage.memory_percent)
    )


def nodes_to_keep(usage: Utilisation, *, node_count: int, threshold_percent: int) -> int:
    """The fewest nodes with a utilisation not above the scale-up threshold: ceil(n x percent / threshold).

    Example: 2 nodes at 36 % with a threshold of 70 %: 2 x 36 / 70 = 1.03, so 2. With one node less the group would be
    at 72 %, and would grow again in the next pass.
    """
    return math.ceil(node_count * usage.percent / threshold_percent)


def from_zero_delta(request: Amount, *, node_capacity: Amount, threshold_percent: int) -> int:
    """Nodes to add to an empty group: ceil(request / capacity of a node / threshold x 100).

    Example: requests of 1800 m, nodes of 1000 m, threshold 70 %: 1.8 / 0.7 = 2.57, so 3. If a node's capacity is
    unknown (0), the result is 1, because the first node shows the capacity.
    """
    if node_capacity.cpu_m == 0 or node_capacity.memory_bytes == 0:
        return 1
    return max(
        math.ceil(request.cpu_m / node_capacity.cpu_m / threshold_percent * 100),
        math.ceil(request.memory_bytes / node_capacity.memory_bytes / threshold_percent * 100),
    )


def nodes_to_add(requested: int, *, target_size: int, max_size: int) -> int:
    """The requested nodes, limited by the cloud's maximum: 6 on top of 5 with a maximum of 10 are 5."""
    return min(requested, max_size - target_size)


def threshold_delta(
    usage: Utilisation | FromZero,
    *,
    request: Amount,
    node_count: int,
    node_capacity: Amount,
    settings: NodeGroupSettings,
) -> WantedNodes:
    """The change that the thresholds request. A utilisation equal to a threshold has not crossed it."""
    threshold = settings.scale_up_threshold_percent
    if isinstance(usage, FromZero):
        delta = from_zero_delta(request, node_capacity=node_capacity, threshold_percent=threshold)
        return WantedNodes(rule=GroupRule.FROM_ZERO, delta=delta)
    if usage.percent < settings.taint_lower_capacity_threshold_percent:
        return WantedNodes(
            rule=GroupRule.TAINT_LOWER,
            delta=-_removable_count(settings.fast_node_removal_rate, usage, node_count, settings=settings),
        )
    if usage.percent < settings.taint_upper_capacity_threshold_percent:
        return WantedNodes(
            rule=GroupRule.TAINT_UPPER,
            delta=-_removable_count(settings.slow_node_removal_rate, usage, node_count, settings=settings),
        )
    if usage.percent > threshold:
        delta = scale_up_delta(usage, node_count=node_count, threshold_percent=threshold)
        assert delta >= 0, "above the threshold nothing can be negative"
        return WantedNodes(rule=GroupRule.SCALE_UP, delta=delta)
    return WantedNodes(rule=GroupRule.STEADY, delta=0)


def _removable_count(rate: int, usage: Utilisation, node_count: int, *, settings: NodeGroupSettings) -> int:
    """The number of nodes to remove: ``rate``, or fewer if the group would immediately add some of them again."""
    if settings.quirks.shrinking_crosses_scale_up_threshold:
        return rate
    threshold = settings.scale_up_threshold_percent
    return min(rate, node_count - nodes_to_keep(usage, node_count=node_count, threshold_percent=threshold))


def renewal_is_due(
    untainted: Sequence[GroupNode], *, tainted_count: int, settings: NodeGroupSettings, now_s: float
) -> bool:
    """Whether to add one node so that an old one can be removed.

    Only a group at exactly its minimum, with no tainted node, adds a node for renewal; the minimum must be above 0. A
    node is too old if its age is above the maximum age. A maximum age of 0 or less disables the rule.
    """
    age_max_s = settings.max_node_age_s
    if age_max_s <= 0 or settings.min_nodes == 0 or tainted_count or len(untainted) != settings.min_nodes:
        return False
    return any(now_s - node.created_at_s > age_max_s for node in untainted)


def free_amounts(
    nodes: Iterable[GroupNode], pods: Iterable[GroupPod], others_taken: Mapping[str, OthersUsage] = _NO_OTHERS
) -> dict[str, Amount]:
    """Free amounts of each node: allocatable minus the requests of its unfinished pods.

    ``pods`` are the group's pods; ``others_taken`` are the amounts of other pods. Example: with 400 m of the group's
    pods and 450 m of DaemonSets, a node of 1000 m has 150 m free.
    """
    taken: dict[str, Amount] = defaultdict(Amount)
    for pod in pods:
        if pod.node_name is not None and takes_room(pod):
            taken[pod.node_name] += pod.request
    nothing = OthersUsage()
    return {
        node.name: node.allocatable - taken[node.name] - others_taken.get(node.name, nothing).total for node in nodes
    }


def starving_pods(
    pods: Collection[GroupPod], *, free: Mapping[str, Amount], largest: Sequence[Amount], quirks: NodeGroupQuirks
) -> tuple[str, ...]:
    """Names of pending pods for which no untainted node has room, in the order of the input.

    ``free`` has the free amounts of each untainted node. ``largest`` has the amounts that empty nodes of the group
    offer besides DaemonSets; empty if unknown. Example: five nodes of 4000 m have 2000 m free each. A pod of 2001 m
    starves, a pod of 2000 m does not. A pod of 4100 m fits on no node of the group, so it does not count, except with
    the quirk ``starve_counts_impossible_pods``.
    """
    pending = [pod for pod in pods if pod.phase is PodPhase.PENDING]
    if not quirks.starve_counts_bound_pods:
        pending = [pod for pod in pending if pod.node_name is None]
    if not quirks.starve_counts_impossible_pods and largest:
        pending = [pod for pod in pending if any(pod.request.fits_in(whole) for whole in largest)]
    rooms = list(free.values())
    if quirks.starve_compares_resources_apart:
        rooms = [
            Amount(
                cpu_m=max((room.cpu_m for room in rooms), default=0),
                memory_bytes=max((room.memory_bytes for room in rooms), default=0),
            )
        ]
    # A pod without requests fits everywhere; an overcommitted node has no room, rather than a negative amount.
    rooms = [Amount(cpu_m=max(0, room.cpu_m), memory_bytes=max(0, room.memory_bytes)) for room in (*rooms, Amount())]
    fits = {request: any(request.fits_in(room) for room in rooms) for request in {pod.request for pod in pending}}
    return tuple(pod.name for pod in pending if not fits[pod.request])


class Course(enum.StrEnum):
    """What a pass does: stop, grow to the minimum, or change the size and delete tainted nodes."""

    STOP = "stop"
    GROW_TO_MIN = "grow-to-min"
    CHANGE = "change"


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of the rules: what the pass does (``course``), and by how many nodes the size changes (``delta``).

    ``requested_delta`` is the reported change; it differs from ``delta`` while the lock is in force. ``decided_by`` is
    the deciding rule, and ``wanted`` the proposals of all rules. ``lock`` is the lock to store: an expired one is
    removed once the rule LOCK is evaluated. ``error`` is why the pass ends early, or None.
    """

    course: Course
    decided_by: GroupRule
    requested_delta: int = 0
    delta: int = 0
    wanted: tuple[WantedNodes, ...] = ()
    lock: ScaleLock | None = None
    usage: Utilisation | FromZero | None = None
    error: PassError | None = None


def judge(state: NodeGroupState, view: GroupView) -> RuleVerdict:
    """Apply the rules in their order."""
    settings, lock = view.settings, state.lock
    node_count, untainted_count = len(view.nodes), len(view.parts.untainted)
    fills_up = not settings.quirks.below_min_does_nothing
    if node_count == 0 and not view.pods and not (fills_up and settings.min_nodes):
        return RuleVerdict(course=Course.STOP, decided_by=GroupRule.EMPTY, lock=lock)
    if node_count < settings.min_nodes and not fills_up:
        return RuleVerdict(course=Course.STOP, decided_by=GroupRule.BELOW_MIN, lock=lock, error=PassError.BELOW_MIN)
    if untainted_count < settings.min_nodes:
        missing = settings.min_nodes - untainted_count
        return RuleVerdict(
            course=Course.GROW_TO_MIN,
            decided_by=GroupRule.BELOW_MIN,
            delta=missing,
            wanted=(WantedNodes(rule=GroupRule.BELOW_MIN, delta=missing),),
            lock=lock,
        )
    usage: Usage = utilisation(view.request, view.capacity, untainted_count=untainted_count)
    if isinstance(usage, NoData):
        return RuleVerdict(course=Course.STOP, decided_by=GroupRule.NO_CAPACITY, lock=lock, error=PassError.NO_CAPACITY)
    lock = lock_in_force(lock, cool_down_s=settings.scale_up_cool_down_period_s, now_s=view.now_s)
    if lock:
        course = Course.STOP if settings.quirks.lock_stops_reaping else Course.CHANGE
        wanted = (WantedNodes(rule=GroupRule.LOCK, delta=lock.requested_count),)
        return RuleVerdict(
            course=course,
            decided_by=GroupRule.LOCK,
            requested_delta=lock.requested_count,
            wanted=wanted,
            lock=lock,
            usage=usage,
        )
    return _weighed(usage, state, view)


def _weighed(usage: Utilisation | FromZero, state: NodeGroupState, view: GroupView) -> RuleVerdict:
    """The change that thresholds and extra triggers request, up to the maximum; none for an unhealthy group."""
    prevailing = threshold_delta(
        usage,
        request=view.request,
        node_count=len(view.parts.untainted),
        node_capacity=state.node_capacity,
        settings=view.settings,
    )
    if prevailing.delta < 0 and view.settings.scale_on_starve and view.others_taken:
        prevailing = msgspec.structs.replace(prevailing, delta=max(prevailing.delta, -_roomy_spare_count(view)))
    wanted = [prevailing]
    for trigger in _triggers(state, view):
        wanted.append(trigger)
        prevailing = max(prevailing, trigger, key=lambda wish: wish.delta)
    excess = len(view.parts.untainted) - view.settings.max_nodes
    if excess > 0:
        wanted.append(WantedNodes(rule=GroupRule.ABOVE_MAX, delta=-excess))
        prevailing = min(prevailing, wanted[-1], key=lambda wish: wish.delta)
    if not view.is_healthy:
        prevailing = WantedNodes(rule=GroupRule.HEALTH_GATE, delta=0)
        wanted.append(prevailing)
    return RuleVerdict(
        course=Course.CHANGE,
        decided_by=prevailing.rule,
        requested_delta=prevailing.delta,
        delta=prevailing.delta,
        wanted=tuple(wanted),
        usage=usage,
    )


def _roomy_spare_count(view: GroupView) -> int:
    """The most nodes to remove so that the pods of the group and of DaemonSets still fit on the others.

    Example: two nodes of 1000 m with DaemonSets of 450 m each, and pods of 600 m: 2 x 600 / 1100 = 1.09, so both stay.
    On one node the evicted pods would starve and bring the second node back.
    """
    nodes, nothing = view.parts.untainted, OthersUsage()
    room = view.capacity - sum((view.others_taken.get(node.name, nothing).daemons for node in nodes), start=Amount())
    if room.cpu_m <= 0 or room.memory_bytes <= 0:
        return 0
    usage = utilisation(view.request, room, untainted_count=len(nodes))
    assert isinstance(usage, Utilisation), "there is room"
    return max(0, len(nodes) - nodes_to_keep(usage, node_count=len(nodes), threshold_percent=100))


def _triggers(state: NodeGroupState, view: GroupView) -> Iterator[WantedNodes]:
    """The rules that request one more node, regardless of the thresholds."""
    settings, untainted = view.settings, view.parts.untainted
    if settings.scale_on_starve and len(untainted) < settings.max_nodes and _starves(state, view):
        yield WantedNodes(rule=GroupRule.STARVE, delta=1)
    if renewal_is_due(untainted, tainted_count=len(view.parts.tainted), settings=settings, now_s=view.now_s):
        yield WantedNodes(rule=GroupRule.MAX_NODE_AGE, delta=1)
    sick = [node for node in untainted if node.name in view.unhealthy]
    if sick and len(untainted) == settings.min_nodes and not settings.quirks.unhealthy_tainted_without_limit:
        yield WantedNodes(rule=GroupRule.REPLACE_UNHEALTHY, delta=1)


def _starves(state: NodeGroupState, view: GroupView) -> bool:
    # DaemonSets use part of a new node too; otherwise a pod without room there would add nodes forever.
    nothing = OthersUsage()
    largest = {node.allocatable - view.others_taken.get(node.name, nothing).daemons for node in view.nodes}
    largest = largest or {state.node_capacity}
    free = free_amounts(view.parts.untainted, view.pods, view.others_taken)
    return bool(starving_pods(view.pods, free=free, largest=tuple(largest - {Amount()}), quirks=view.settings.quirks))


def crowded_out_count(view: GroupView) -> int:
    """The number of pending pods that would have room without pods outside the group, such as DaemonSet pods."""
    if not view.others_taken or all(pod.phase is not PodPhase.PENDING for pod in view.pods):
        return 0
    starving = [
        starving_pods(
            view.pods,
            free=free_amounts(view.parts.untainted, view.pods, taken),
            largest=(),
            quirks=view.settings.quirks,
        )
        for taken in (view.others_taken, _NO_OTHERS)
    ]
    return len(starving[0]) - len(starving[1])
