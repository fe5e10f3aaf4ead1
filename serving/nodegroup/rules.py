"""What each rule wants of a group, and which one prevails.

Input: the state and the view of one pass; output: a verdict, which does not yet know what can be done. The order of the
rules is the order of this file: bounds, lock, thresholds, extra triggers, the upper bound, health. Source:
atlassian/escalator 043bb1b, pkg/controller/controller.go.
"""

import enum
from collections.abc import Iterator

import msgspec

from serving.model.nodata import NoData
from serving.nodegroup.age import renewal_is_due
from serving.nodegroup.delta import threshold_delta
from serving.nodegroup.lock import ScaleLock, lock_in_force
from serving.nodegroup.memory import NodeGroupState
from serving.nodegroup.plan import GroupRule, PassError, WantedNodes
from serving.nodegroup.records import Amount
from serving.nodegroup.starve import free_amounts, starving_pods
from serving.nodegroup.utilisation import FromZero, Usage, Utilisation, utilisation
from serving.nodegroup.view import GroupView


class Course(enum.StrEnum):
    """What the pass goes on to do: nothing more, grow to the minimum, or change by the verdict's delta and reap."""

    STOP = "stop"
    GROW_TO_MIN = "grow-to-min"
    CHANGE = "change"


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The rules' answer.

    ``requested_delta`` is what is reported, ``delta`` what is acted on: they differ while the lock holds. ``lock`` is
    the stored lock, which only the rule of that name takes away.
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
    """Ask the rules in their order."""
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
    """The thresholds' wish, raised by the extra triggers, cut by the upper bound, and dropped if the group is sick."""
    prevailing = threshold_delta(
        usage,
        request=view.request,
        node_count=len(view.parts.untainted),
        node_capacity=state.node_capacity,
        settings=view.settings,
    )
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


def _triggers(state: NodeGroupState, view: GroupView) -> Iterator[WantedNodes]:
    """The rules that ask for one node more, whatever the thresholds say."""
    settings, untainted = view.settings, view.parts.untainted
    if settings.scale_on_starve and len(untainted) < settings.max_nodes and _starves(state, view):
        yield WantedNodes(rule=GroupRule.STARVE, delta=1)
    if renewal_is_due(untainted, tainted_count=len(view.parts.tainted), settings=settings, now_s=view.now_s):
        yield WantedNodes(rule=GroupRule.MAX_NODE_AGE, delta=1)
    sick = [node for node in untainted if node.name in view.unhealthy]
    if sick and len(untainted) == settings.min_nodes and not settings.quirks.unhealthy_tainted_without_limit:
        yield WantedNodes(rule=GroupRule.REPLACE_UNHEALTHY, delta=1)


def _starves(state: NodeGroupState, view: GroupView) -> bool:
    largest = {node.allocatable for node in view.nodes} or {state.node_capacity}
    free = free_amounts(view.parts.untainted, view.pods)
    return bool(starving_pods(view.pods, free=free, largest=tuple(largest - {Amount()}), quirks=view.settings.quirks))
