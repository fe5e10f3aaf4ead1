"""What an activator does next: dispatch requests to pods, reject requests, wake revisions, probe pods.

The router returns it for every event, as values. A request is any hashable of the caller's.
"""

import enum
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.wake import Poke
from serving.model.knative import RevisionKey

RequestId = TypeVar("RequestId", bound=Hashable)


class RejectionReason(enum.StrEnum):
    """Why a request is answered with 503."""

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
    """Answer this request with 503: the reason, and a sentence for people."""

    request: RequestId
    reason: RejectionReason
    text: str


class RevisionWake(msgspec.Struct, frozen=True, kw_only=True):
    """Set a revision Active if ``flip``, on the condition that ``resource_version`` is its latest; send the poke if there is one."""

    key: RevisionKey
    flip: bool
    poke: Poke | None
    resource_version: str


class SilentPod(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """A pod that is ejected because it answers nothing, with the requests that it holds; ``is_new``: since now."""

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
