"""What an activator is to do next: send requests to pods, refuse requests, wake revisions.

The desk says so in answer to every event. A request is whatever its caller takes for one.
"""

import enum
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import msgspec

from serving.activator.readiness import PodProbe
from serving.activator.revisions import PodFacts
from serving.activator.wake import Poke
from serving.model.knative import RevisionKey

__all__ = ["Go", "Outcome", "TurnReason", "Turned", "Wake"]

RequestId = TypeVar("RequestId", bound=Hashable)


class TurnReason(enum.StrEnum):
    """Why a request is refused with 503."""

    QUEUE_COUNT = "queue-count"
    QUEUE_BYTES = "queue-bytes"
    WAITED = "waited"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RETIRED = "retired"
    SHUT_DOWN = "shut-down"


class Go(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Send this request to this pod now; it has waited for ``waited_s`` seconds."""

    request: RequestId
    pod: PodFacts
    waited_s: float = 0.0


class Turned(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """Answer this request with 503: the reason, and a sentence for people."""

    request: RequestId
    reason: TurnReason
    text: str


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """Make a revision Active if ``flip``, for which ``resource_version`` is the latest known; tell the autoscaler of it."""

    key: RevisionKey
    flip: bool
    poke: Poke | None
    resource_version: str


class Outcome(msgspec.Struct, Generic[RequestId], frozen=True, kw_only=True):
    """What is to be done, in this order."""

    go: Sequence[Go[RequestId]] = ()
    turned: Sequence[Turned[RequestId]] = ()
    wakes: Sequence[Wake] = ()
    probes: Sequence[PodProbe] = ()
