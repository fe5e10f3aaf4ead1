"""The state of a node group between passes: scale lock, circuit breaker, and node capacity.

The state may be stored as JSON. If it is lost, a group starts with the defaults: without a node's capacity for growth
from zero, without the rest of a cool-down, and without the circuit breaker's observations.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from serving.core.model.errors import IllegalTransition
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.core.traffic.backoff import backoff_s
from serving.nodes.nodegroup.records import Amount

_NOTHING_DONE: Mapping[str, float | None] = {}


class BreakerPhase(enum.StrEnum):
    """The phase of the breaker. Closed allows growth, open forbids it, half-open allows one node as a trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerEvent(enum.StrEnum):
    """An event of the breaker: the group got a node, too many scale-ups have failed, or a trial is due."""

    GREW = "grew"
    TRIPPED = "tripped"
    RETRY_DUE = "retry-due"


TRANSITIONS: Final[Mapping[tuple[BreakerPhase, BreakerEvent], BreakerPhase]] = {
    (BreakerPhase.CLOSED, BreakerEvent.GREW): BreakerPhase.CLOSED,
    (BreakerPhase.CLOSED, BreakerEvent.TRIPPED): BreakerPhase.OPEN,
    (BreakerPhase.OPEN, BreakerEvent.GREW): BreakerPhase.CLOSED,
    (BreakerPhase.OPEN, BreakerEvent.RETRY_DUE): BreakerPhase.HALF_OPEN,
    (BreakerPhase.HALF_OPEN, BreakerEvent.GREW): BreakerPhase.CLOSED,
    (BreakerPhase.HALF_OPEN, BreakerEvent.TRIPPED): BreakerPhase.OPEN,
}


class BreakerState(msgspec.Struct, frozen=True, kw_only=True):
    """The breaker's state.

    ``failure_count`` counts consecutive failed scale-ups. ``asked_at_s`` is the time of the watched scale-up, or None.
    ``node_count_low`` is the smallest number of nodes since the first scale-up without a new node, or None. More nodes
    than that count as growth, so that deleted nodes do not hide new ones. ``retry_at_s`` is when an open breaker allows
    one node as a trial.
    """

    phase: BreakerPhase = BreakerPhase.CLOSED
    failure_count: int = 0
    asked_at_s: float | None = None
    node_count_low: int | None = None
    retry_at_s: float = 0.0


def observe(
    state: BreakerState, *, node_count: int, increase_failed: bool, settings: NodeGroupSettings, now_s: float
) -> BreakerState:
    """The breaker after an observation of the group.

    ``increase_failed``: the cloud refused the last scale-up, which is an immediate failure. Example: with a threshold
    of 3 and a window of 120 s, scale-ups at 0, 120 and 240 s bring no node. The breaker opens at 360 s.
    """
    if settings.scale_up_failure_threshold == 0 or state.node_count_low is None:
        return BreakerState()
    if node_count > state.node_count_low:
        return BreakerState(phase=_advance(state, BreakerEvent.GREW))
    seen = msgspec.structs.replace(state, node_count_low=node_count)
    if seen.asked_at_s is not None:
        window_s = settings.scale_up_failure_window_s or settings.scale_up_cool_down_period_s
        has_failed = increase_failed or now_s - seen.asked_at_s >= window_s
        return _failed(seen, settings=settings, now_s=now_s) if has_failed else seen
    if seen.phase is BreakerPhase.OPEN and now_s >= seen.retry_at_s:
        return msgspec.structs.replace(seen, phase=_advance(seen, BreakerEvent.RETRY_DUE))
    return seen


def allowance(state: BreakerState) -> int | None:
    """Nodes that may be requested from the cloud now; None means no limit."""
    if state.phase is BreakerPhase.CLOSED:
        return None
    return 1 if state.phase is BreakerPhase.HALF_OPEN and state.asked_at_s is None else 0


def growth_requested(
    state: BreakerState, *, node_count: int, settings: NodeGroupSettings, now_s: float
) -> BreakerState:
    """The breaker after a request to the cloud. If a scale-up is already watched, its window continues."""
    if settings.scale_up_failure_threshold == 0:
        return BreakerState()
    low = node_count if state.node_count_low is None else min(node_count, state.node_count_low)
    asked_at_s = now_s if state.asked_at_s is None else state.asked_at_s
    return msgspec.structs.replace(state, asked_at_s=asked_at_s, node_count_low=low)


def _failed(state: BreakerState, *, settings: NodeGroupSettings, now_s: float) -> BreakerState:
    counted = msgspec.structs.replace(state, failure_count=state.failure_count + 1, asked_at_s=None)
    too_many = counted.failure_count - settings.scale_up_failure_threshold
    if too_many < 0:
        return counted
    wait_s = backoff_s(too_many + 1, first_s=settings.scale_up_retry_s, max_s=settings.scale_up_retry_max_s)
    return msgspec.structs.replace(counted, phase=_advance(counted, BreakerEvent.TRIPPED), retry_at_s=now_s + wait_s)


def _advance(state: BreakerState, event: BreakerEvent) -> BreakerPhase:
    after = TRANSITIONS.get((state.phase, event))
    if after is None:
        raise IllegalTransition(subject="scale-up breaker", phase=state.phase, event=event)
    return after


class ScaleLock(msgspec.Struct, frozen=True, kw_only=True):
    """The number of nodes requested last, and the time of the request."""

    requested_count: int
    locked_at_s: float


def lock_in_force(lock: ScaleLock | None, *, cool_down_s: float, now_s: float) -> ScaleLock | None:
    """The lock if it is in force, else None. With a cool-down of 120 s, it is in force at 119 s but not at 120 s."""
    if lock is None or now_s - lock.locked_at_s >= cool_down_s:
        return None
    return lock


class NodeGroupState(msgspec.Struct, frozen=True, kw_only=True):
    """A node group's state between passes.

    ``node_capacity`` is the capacity of one node of the group, for growth from zero; 0 if unknown. ``dry_taints``
    map a node's name to the change that a dry run planned: the time of a taint, or None for an untaint.
    ``last_scale_up_at_s`` is the time of the last growth decision, for the metric of registration lag; None if never.
    ``coming_since_s`` is the time since which the cloud has had machines that are not nodes yet; each new node resets
    it, and None means that there are none.
    """

    node_capacity: Amount = Amount()
    lock: ScaleLock | None = None
    breaker: BreakerState = BreakerState()
    dry_taints: Mapping[str, float | None] = _NOTHING_DONE
    last_scale_up_at_s: float | None = None
    coming_since_s: float | None = None
    coming_count: int = 0
