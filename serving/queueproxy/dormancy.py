"""Decides when a pod's app is frozen and thawed: phases, transitions and due times.

A dormant pod keeps its memory and sockets, and uses no cpu. ``io/dormant.py`` freezes and thaws the app, and reports
each result as an event. Requests wait while the app is not running. Times are of one monotonic clock. A clock that goes
backwards only delays the sleep.
"""

import enum
import math
from collections.abc import Mapping

import msgspec

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.backoff import backoff_s

# First pause after a failed freeze, in seconds; it doubles up to the maximum.
_RETRY_FIRST_S = 10.0
_RETRY_MAX_S = 600.0


class Phase(enum.StrEnum):
    """The phase of a pod's app. Requests reach the app in ``RUNNING`` only."""

    RUNNING = "running"
    FREEZING = "freezing"
    DORMANT = "dormant"
    THAWING = "thawing"


class AppEvent(enum.StrEnum):
    """An event of a pod's app."""

    IDLE = "idle"
    """The app has been idle for the configured time."""
    DEMAND = "demand"
    """A request, an order to wake, or the end of the app's process."""
    FROZEN = "frozen"
    REFUSED = "refused"
    """The freeze failed."""
    THAWED = "thawed"


TRANSITIONS: Mapping[tuple[Phase, AppEvent], Phase] = {
    (Phase.RUNNING, AppEvent.IDLE): Phase.FREEZING,
    (Phase.RUNNING, AppEvent.DEMAND): Phase.RUNNING,
    (Phase.FREEZING, AppEvent.FROZEN): Phase.DORMANT,
    (Phase.FREEZING, AppEvent.REFUSED): Phase.THAWING,
    (Phase.FREEZING, AppEvent.DEMAND): Phase.THAWING,
    (Phase.DORMANT, AppEvent.DEMAND): Phase.THAWING,
    (Phase.THAWING, AppEvent.DEMAND): Phase.THAWING,
    (Phase.THAWING, AppEvent.THAWED): Phase.RUNNING,
}


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The activity that keeps an app running.

    ``request_count`` are requests that run or wait, open tunnels included; ``probe_count`` are probes under way. An app
    that is not ready yet, or that drains, is not frozen either.
    """

    request_count: int = 0
    probe_count: int = 0
    is_ready: bool = True
    is_draining: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether the app may be frozen."""
        return self.is_ready and not (self.request_count or self.probe_count or self.is_draining)


class DormancyState(msgspec.Struct, frozen=True, kw_only=True):
    """The dormancy of one pod: whether its app is frozen, and since when it is idle.

    ``idle_since_s`` is the end of the pod's last activity. The app is not frozen before ``awake_until_s``.
    ``refused_count`` counts the failed attempts to freeze it since the last success.
    """

    idle_since_s: float
    phase: Phase = Phase.RUNNING
    awake_until_s: float = -math.inf
    refused_count: int = 0


def after_event(state: DormancyState, event: AppEvent, now_s: float) -> DormancyState:
    """The state after an event.

    Raises:
        IllegalTransition: when the table does not allow the event in this phase.
    """
    phase = TRANSITIONS.get((state.phase, event))
    if phase is None:
        raise IllegalTransition(subject="dormancy of a pod", phase=state.phase, event=event)
    if event is AppEvent.REFUSED:
        pause_s = backoff_s(state.refused_count + 1, first_s=_RETRY_FIRST_S, max_s=_RETRY_MAX_S)
        return msgspec.structs.replace(
            state,
            phase=phase,
            refused_count=state.refused_count + 1,
            awake_until_s=max(state.awake_until_s, now_s + pause_s),
        )
    if event is AppEvent.FROZEN:
        return msgspec.structs.replace(state, phase=phase, refused_count=0)
    if event in (AppEvent.THAWED, AppEvent.DEMAND):
        return msgspec.structs.replace(state, phase=phase, idle_since_s=max(state.idle_since_s, now_s))
    return msgspec.structs.replace(state, phase=phase)


def with_awake_until(state: DormancyState, until_s: float) -> DormancyState:
    """The state of an app that must run until ``until_s``."""
    return msgspec.structs.replace(state, awake_until_s=max(state.awake_until_s, until_s))


def sleep_due_s(state: DormancyState, activity: Activity, *, after_s: float) -> float:
    """When to freeze the app; infinite while it is held awake or is not running.

    Example: the pod is idle since 100 s, ``after_s`` is 10 s, and the app is held awake until 130 s: freeze at 130 s.
    """
    if state.phase is not Phase.RUNNING or not activity.is_idle:
        return math.inf
    return max(state.idle_since_s + after_s, state.awake_until_s)
