"""The router's outcome of an event: dispatches, rejections, wakes and probes."""

import enum
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.wake import Poke
from serving.core.model.knative import RevisionKey, ServingState
from serving.core.model.scaledworkload import PlaceholderResponse
from serving.core.traffic.places import QueueLimit, Rejected
from serving.core.traffic.prefixes import PrefixMatch

RequestId = TypeVar("RequestId", bound=Hashable)


class RejectionReason(enum.StrEnum):
    """Why a request is rejected. The response is a 503, or the placeholder of a ScaledWorkload that is starting.

    The queue is full, by the number of requests or by their bytes. WAITED: the request has waited for its maximum time.
    FAILED: pods of the revision fail. STARTING: a placeholder is sent instead of waiting. UNKNOWN and RETIRED: the
    revision does not exist or is retired. SHUT_DOWN: the activator ends.
    """

    QUEUE_COUNT = "queue-count"
    QUEUE_BYTES = "queue-bytes"
    WAITED = "waited"
    FAILED = "failed"
    STARTING = "starting"
    UNKNOWN = "unknown"
    RETIRED = "retired"
    SHUT_DOWN = "shut-down"


class Dispatch(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Send this request to this pod; it waited for ``waited_s`` seconds.

    ``prefix`` is the part of its prompt in the pod's cache; None if prompts do not choose pods.
    """

    request: RequestId
    pod: ServedPod
    waited_s: float = 0.0
    prefix: PrefixMatch | None = None


class Rejection(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Reject this request with 503. The client gets ``text``, unless there is a ``placeholder``.

    ``detail`` is for the operator and is never sent to a client: it may contain lines of the app's log, paths and
    addresses. A request with a ``fallback`` is sent there instead.
    """

    request: RequestId
    reason: RejectionReason
    text: str
    detail: str = ""
    placeholder: PlaceholderResponse | None = None
    fallback: RevisionKey | None = None


class RevisionWake(msgspec.Struct, frozen=True, kw_only=True):
    """A wake: set the revision Active if ``flip`` and ``resource_version`` is current; send ``poke`` unless None."""

    key: RevisionKey
    flip: bool
    poke: Poke | None
    resource_version: str


class SilentPod(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A pod that was ejected because it is silent, and its requests. ``is_new``: it was ejected just now."""

    key: RevisionKey
    pod: ServedPod
    is_new: bool
    requests: tuple[RequestId, ...]


class RoutingOutcome(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """All actions that follow from one event. They are executed in the order of the fields.

    ``cuts`` are requests to cut off, because their clients do not read the responses. ``failures`` are revisions whose
    decision raised an exception; it is repeated with their next report.
    """

    dispatches: Sequence[Dispatch[RequestId]] = ()
    rejections: Sequence[Rejection[RequestId]] = ()
    wakes: Sequence[RevisionWake] = ()
    probes: Sequence[PodProbe] = ()
    cuts: Sequence[RequestId] = ()
    failures: Sequence[tuple[RevisionKey, Exception]] = ()


def rejected_at_once(request: RequestId, revision: ServedRevision) -> Rejection[RequestId] | None:
    """The immediate rejection of a request if no pod of its revision will serve it soon; None if it may wait."""
    if revision.serving_state is ServingState.RETIRED:
        text = f"revision {revision.key[1]} is retired"
        return Rejection(request=request, reason=RejectionReason.RETIRED, text=text)
    placeholder = revision.cold_start.placeholder_at_once(waiting_max=revision.waiting_max)
    if placeholder is not None:
        text = "no pod is ready; the placeholder was sent"
        return Rejection(request=request, reason=RejectionReason.STARTING, text=text, placeholder=placeholder)
    if revision.failure is not None:
        return Rejection(
            request=request,
            reason=RejectionReason.FAILED,
            text=failure_text(revision.key),
            detail=revision.failure,
            fallback=revision.fallback,
        )
    return None


def queue_full(
    request: RequestId, rejected: Rejected, *, placeholder: PlaceholderResponse | None
) -> Rejection[RequestId]:
    """The rejection of a request because the queue is full."""
    is_count = rejected.limited_by is QueueLimit.COUNT
    reason = RejectionReason.QUEUE_COUNT if is_count else RejectionReason.QUEUE_BYTES
    text = f"pending request queue full: {rejected.depth} requests with {rejected.depth_bytes} bytes wait already"
    return Rejection(request=request, reason=reason, text=text, placeholder=placeholder)


def failure_text(key: RevisionKey) -> str:
    """The error text for requests of a failed revision."""
    # Without the condition's message, which apps influence.
    return f"revision {key[1]} cannot serve"


def unknown_text(key: RevisionKey) -> str:
    """The error text for requests of an unknown revision."""
    return f"there is no revision {key[1]}"
