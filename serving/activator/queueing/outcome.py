"""The outcome of an event in the router: dispatches, rejections, wakes and probes."""

import enum
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.wake import Poke
from serving.core.model.knative import RevisionKey, ServingState
from serving.core.traffic.places import QueueLimit, Rejected

RequestId = TypeVar("RequestId", bound=Hashable)


class RejectionReason(enum.StrEnum):
    """The reason for rejecting a request with 503."""

    QUEUE_COUNT = "queue-count"
    QUEUE_BYTES = "queue-bytes"
    WAITED = "waited"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RETIRED = "retired"
    SHUT_DOWN = "shut-down"


class Dispatch(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Send this request to this pod now; it waited for ``waited_s`` seconds."""

    request: RequestId
    pod: ServedPod
    waited_s: float = 0.0


class Rejection(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Reject this request with 503. The client gets ``text``.

    ``detail`` is for the operator: it may have lines of the app's log, paths and addresses, and is never sent to a client.
    """

    request: RequestId
    reason: RejectionReason
    text: str
    detail: str = ""


class RevisionWake(msgspec.Struct, frozen=True, kw_only=True):
    """Set a revision Active if ``flip``, provided ``resource_version`` is its latest; send the poke if there is one."""

    key: RevisionKey
    flip: bool
    poke: Poke | None
    resource_version: str


class SilentPod(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """An ejected pod without responses, and its requests; ``is_new`` marks a new ejection."""

    key: RevisionKey
    pod: ServedPod
    is_new: bool
    requests: tuple[RequestId, ...]


class RoutingOutcome(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Everything to do after an event, in this order."""

    dispatches: Sequence[Dispatch[RequestId]] = ()
    rejections: Sequence[Rejection[RequestId]] = ()
    wakes: Sequence[RevisionWake] = ()
    probes: Sequence[PodProbe] = ()
    cuts: Sequence[RequestId] = ()


def rejected_at_once(request: RequestId, revision: ServedRevision) -> Rejection[RequestId] | None:
    """A rejection without a wait, for a revision without pods."""
    if revision.serving_state is ServingState.RETIRED:
        text = f"revision {revision.key[1]} is retired"
        return Rejection(request=request, reason=RejectionReason.RETIRED, text=text)
    if revision.failure is not None:
        return Rejection(
            request=request,
            reason=RejectionReason.FAILED,
            text=failure_text(revision.key),
            detail=revision.failure,
        )
    return None


def queue_full(request: RequestId, rejected: Rejected) -> Rejection[RequestId]:
    """The rejection of a request that finds the queue full."""
    is_count = rejected.limited_by is QueueLimit.COUNT
    reason = RejectionReason.QUEUE_COUNT if is_count else RejectionReason.QUEUE_BYTES
    text = f"pending request queue full: {rejected.depth} requests with {rejected.depth_bytes} bytes wait already"
    return Rejection(request=request, reason=reason, text=text)


def failure_text(key: RevisionKey) -> str:
    """The text for requests of a revision that fails."""
    # Without the message of its condition, into which apps write.
    return f"revision {key[1]} cannot serve"


def unknown_text(key: RevisionKey) -> str:
    """The text for requests of a revision that does not exist."""
    return f"there is no revision {key[1]}"
