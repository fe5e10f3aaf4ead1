"""The states of a pod on one machine, and all transitions.

``TRANSITIONS`` is the life of every pod, from its object to the removal of its files. ``PodRun`` performs the actions
of a state, reports an event, and lets ``advance`` decide; the kind of the pod supplies the actions (``podkinds``).
"""

import enum
from collections.abc import Mapping

from serving.core.model.errors import IllegalTransition


class PodState(enum.StrEnum):
    """The state of a pod, in the order of its life.

    A pod is planned on a node, admitted with an address, and gets its volumes and network. Then its app and its
    queue-proxy start. It is probed when the queue-proxy has reached the app, and ready when all probes have passed.
    Finally it terminates and is removed.
    """

    PLANNED = "planned"
    """Bound to this node; waiting for a start slot. The status is its creator's, or a crash loop's after evictions."""
    ADMITTED = "admitted"
    """Has an address; waiting for sources and images. Pending, with the reason for which a container waits."""
    NETWORK = "network"
    """Has volumes and network; runs init containers. Pending, and not Initialized until all have exited with 0."""
    APP_STARTED = "app started"
    """An app is started; the queue-proxy is next. Running with the first process, and not Ready, until ``READY``."""
    PROXY_STARTED = "queue-proxy started"
    """The queue-proxy, if any, is started. Some kinds start their apps after it."""
    PROBED = "probed"
    """The queue-proxy has reached the app; a kubelet probe has not passed, or a container is not running."""
    READY = "ready"
    """Receives requests. Ready."""
    TERMINATING = "terminating"
    """Deleted or evicted; draining. Not Ready; Failed if evicted."""
    REMOVED = "removed"
    """Processes, network and files are removed, and then the object, unless the pod was evicted or is retried."""


class PodEvent(enum.StrEnum):
    """An event that may change the state of a pod: a step of its start, an observation of its readiness, or its end."""

    ADMITTED = "admitted"
    """The pod has a start slot and an address, or an earlier control process has started it."""
    PREPARED = "prepared"
    """Sources, images and network exist."""
    APP_STARTED = "app started"
    PROXY_STARTED = "queue-proxy started"
    UNREADY = "unready"
    """Observed: the app is not reachable."""
    PROBED = "probed"
    """Observed: the queue-proxy reaches the app."""
    READY = "ready"
    """Observed: the queue-proxy reaches the app, and all containers run and pass their probes."""
    STOPPED = "stopped"
    """The pod is deleted or evicted."""
    FREED = "freed"
    """Processes, network and files were removed, also after a failed attempt."""


# Container reports do not change this state: a running init container makes no pod ready.
_UNMOVED = {
    state: state
    for state in (
        PodState.ADMITTED,
        PodState.NETWORK,
        PodState.APP_STARTED,
        PodState.TERMINATING,
        PodState.REMOVED,
    )
}
_STARTED = (PodState.PROXY_STARTED, PodState.PROBED, PodState.READY)

TRANSITIONS: Mapping[PodEvent, Mapping[PodState, PodState]] = {
    PodEvent.ADMITTED: {PodState.PLANNED: PodState.ADMITTED},
    PodEvent.PREPARED: {PodState.ADMITTED: PodState.NETWORK},
    PodEvent.APP_STARTED: {
        PodState.NETWORK: PodState.APP_STARTED,
        PodState.APP_STARTED: PodState.APP_STARTED,
        PodState.PROXY_STARTED: PodState.PROXY_STARTED,
        # An adopted queue-proxy reports immediately.
        PodState.PROBED: PodState.PROBED,
    },
    PodEvent.PROXY_STARTED: dict.fromkeys((PodState.NETWORK, PodState.APP_STARTED), PodState.PROXY_STARTED),
    PodEvent.UNREADY: _UNMOVED | dict.fromkeys(_STARTED, PodState.PROXY_STARTED),
    PodEvent.PROBED: _UNMOVED | dict.fromkeys(_STARTED, PodState.PROBED),
    PodEvent.READY: _UNMOVED | dict.fromkeys(_STARTED, PodState.READY),
    PodEvent.STOPPED: dict.fromkeys(
        (PodState.ADMITTED, PodState.NETWORK, PodState.APP_STARTED, *_STARTED), PodState.TERMINATING
    ),
    PodEvent.FREED: dict.fromkeys(PodState, PodState.REMOVED),
}


def advance(state: PodState, event: PodEvent) -> PodState:
    """The state after an event.

    Raises:
        IllegalTransition: for an event that is not allowed in the state.
    """
    following = TRANSITIONS[event].get(state)
    if following is None:
        raise IllegalTransition(subject="pod", phase=state, event=event)
    return following


def observation(*, is_reached: bool, is_fit: bool) -> PodEvent:
    """The event for an observation.

    ``is_reached``: the queue-proxy reaches the app. ``is_fit``: all containers run and pass their probes.
    """
    if not is_reached:
        return PodEvent.UNREADY
    return PodEvent.READY if is_fit else PodEvent.PROBED
